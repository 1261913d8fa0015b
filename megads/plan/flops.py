"""Floating-point operations of training, for TFLOP/s and utilisation. Arithmetic, no torch.

Counted are the matrix products: a multiply-add is two FLOPs, and the backward pass is twice
the forward pass; of frozen weights, whose gradients nobody computes, as much as the forward pass.
Per layer the q, k, v and output projections, the attention core (scores
times values, two products) and the MLP; once the logits over the padded vocabulary. Not
counted: embedding look-up, norms, softmax, activations, rotary turns, dropout, the loss,
the optimizer, collectives, and what attention kernels compute again inside themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from megads.config.schema import ModelConfig, RunConfig
from megads.config.stages import chunk_steps
from megads.families.decoder import spec_of
from megads.families.encoder_decoder import has_decoder
from megads.families.table import FAMILIES
from megads.plan.parts import retro
from megads.plan.parts.encoder_decoder import LayerProducts, again_products, layer_products, logit_products


@dataclass(frozen=True)
class Flops:
    """What one token costs, over all ranks together."""

    model: float  # forward and backward, whatever is computed twice (for MFU)
    recomputed: float  # forward passes of what is computed again in the backward pass
    full: float | None = None  # as ``model``, with the full square of causal attention; None: ``model``
    causal: float | None = None  # with the half of it that the mask leaves; None: ``model``

    @property
    def hardware(self) -> float:
        """All of it (for HFU)."""
        return self.model + self.recomputed


@dataclass(frozen=True)
class Products:
    """Multiply-adds of one token's forward pass: of one layer, by part, and of the logits."""

    projections: int  # to queries, keys and values, and of the output
    core: int  # the two products of attention
    mlp: int  # its matrices, two or with a gate three
    logits: int  # over the padded vocabulary, tied or not, with what an encoder's head does before; 0 behind a task
    pooled: int = 0  # of an encoder's heads for a whole sample, per sample
    adapters: int = 0  # of low rank, in one layer

    @property
    def layer(self) -> int:
        """Of one layer."""
        return self.projections + self.core + self.mlp + self.adapters


def products(model: ModelConfig, seq_length: int, *, causal: bool = False) -> Products:
    """Return the multiply-adds of one token's forward pass. ``model`` is derived.

    Args:
        model: sizes; neither heads x head_dim nor the key/value heads need be what the width suggests.
        seq_length: tokens that a token attends to.
        causal: half of them, instead of the full square, in a decoder. Kernels that skip what is
            masked compute about half; formulas in use (Megatron-LM 2024, arXiv 2205.05198) count all.
    """
    spec = spec_of(model)
    causal = causal and FAMILIES[model.family].samples in ("causal", "retro")
    heads = {each.name: each.size for each in spec.output if each.kind == "matrix"}
    transform = heads.pop("lm_head.dense.weight", 0)
    queries = model.num_heads * model.head_dim
    return Products(
        projections=sum(each.size for each in spec.matrices("attention")),
        core=queries * seq_length * (1 if causal else 2),
        mlp=sum(each.size for each in spec.matrices("mlp")),
        logits=0 if model.num_classes else spec.tables[-1].size + transform,
        pooled=sum(heads.values()),
        adapters=sum(each.size for each in spec.layer if each.kind == "adapter"),
    )


def train_flops_per_token(model: ModelConfig, seq_length: int, *, causal: bool = False) -> float:
    """Return the model FLOPs of one token's forward and backward pass, without recomputation.

    Equal to Megatron-LM's (2024)
    ``12 L h^2 [(1 + g/a + s/h) (k a / h) + (f/h) (3/2 if swiglu else 1) + V / (2 L h)]``
    for ``L`` layers of width ``h``, ``a`` heads and ``g`` key/value heads of width ``k``,
    inner width ``f``, sequence length ``s`` and padded vocabulary ``V``; with ``causal``
    its ``s`` is halved. Documents that are masked from each other count as one whole row. Of an encoder with a
    decoder a token is one of the encoder's, and costs its share of a sample.
    """
    if parts_of := _products_of(model):
        total = sum(each.whole for each in parts_of(model, causal=causal)) + logit_products(model)
        return 6.0 * total / model.seq_length
    parts = products(model, seq_length, causal=causal)
    if parts.adapters:
        # Of frozen weights there are no gradients: two products in place of three.
        frozen = model.num_layers * (parts.projections + parts.mlp) + parts.logits
        return 4.0 * frozen + 6.0 * model.num_layers * (parts.core + parts.adapters)
    return 6.0 * (model.num_layers * parts.layer + parts.logits + parts.pooled / model.seq_length)


def _products_of(model: ModelConfig) -> Callable[..., list[LayerProducts]] | None:
    """Return what counts the products of every layer by itself, where layers differ."""
    if has_decoder(model):
        return layer_products
    return retro.layer_products if FAMILIES[model.family].samples == "retro" else None


def flops_per_token(run: RunConfig, *, core_again: int = 1) -> Flops:
    """Return what one token of a derived ``run`` costs, by its model, its recomputation and ``FLOPS_CAUSAL``.

    Recomputation: ``selective`` the attention core of every layer; ``full`` with ``uniform``
    every layer, with ``block`` the first ``num_layers`` of each pipeline stage or
    chunk, or as many as it has. Each piece counts whole, as in arXiv 2104.04473 and 2205.05198, whichever
    checkpoint function does it; torch's skips a piece's last product, whose result nobody needs.

    Args:
        core_again: forward passes of the core that selective recomputation counts. One is what is
            computed; the HFU printed in arXiv 2205.05198 follows from three (its ``s / 3h`` for ``2 s / 9h``).
    """
    model, given = run.model, run.recompute
    causal = run.profile.flops_causal
    full, half = (train_flops_per_token(model, model.seq_length, causal=each) for each in (False, True))
    counted = half if causal else full
    if parts_of := _products_of(model):
        computed_again = again_products(run, parts_of(model, causal=causal)) / model.seq_length
        return Flops(counted, 2.0 * computed_again, full, half)
    parts = products(model, model.seq_length, causal=causal)
    again = 0
    if given.granularity == "selective":
        again = model.num_layers * parts.core * core_again
    elif given.granularity == "full":
        again = recomputed_layers(run) * parts.layer
    return Flops(counted, 2.0 * again, full, half)


def recomputed_layers(run: RunConfig) -> int:
    """Return how many layers, of all pipeline stages, are computed again whole."""
    given, layers = run.recompute, run.model.num_layers
    if given.granularity != "full":
        return 0
    if given.method == "uniform":
        return layers
    held = (sum(0 < step <= layers for step in steps) for chunks in chunk_steps(run) for steps in chunks)
    return sum(min(given.num_layers, count) for count in held)


def basis(run: RunConfig) -> str:
    """Return in a few words what the MFU of ``run`` counts."""
    if FAMILIES[run.model.family].samples == "bert":
        text = "attention counted in full"
    elif run.profile.flops_causal:
        text = "causal attention counted half, in full as mfu_full"
    else:
        text = "causal attention counted in full, half as mfu_causal"
    return text + (", each row as one document" if run.data.reset_attention_mask else "")
