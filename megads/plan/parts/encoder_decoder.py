"""Multiply-adds of an encoder with a decoder: of a sample's forward pass, because its two texts differ in length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from megads.config.schema import ModelConfig, RunConfig
from megads.config.stages import chunk_steps
from megads.families.decoder import spec_of


@dataclass(frozen=True)
class LayerProducts:
    """Of one layer, for a whole sample."""

    core: int  # both products of its attentions
    rest: int  # its matrices

    @property
    def whole(self) -> int:
        """All of it."""
        return self.core + self.rest


def layer_products(model: ModelConfig, *, causal: bool = False) -> list[LayerProducts]:
    """Return the multiply-adds of every layer. ``model`` is derived.

    Tokens of the decoder attend to those before them (``causal`` counts half of the square), and to all of the
    encoder's, of which each layer of the decoder makes keys and values.
    """
    own, seen, queries = model.decoder_seq_length, model.seq_length, model.num_heads * model.head_dim
    found = []
    for layer in spec_of(model).layers():
        matrices = {each.name.removesuffix(".weight"): each.size for each in layer if each.kind == "matrix"}
        of_encoder = matrices.pop("cross_attention.kv", 0)
        if of_encoder:
            core = queries * own * (own * (1 if causal else 2) + 2 * seen)
            found.append(LayerProducts(core, own * sum(matrices.values()) + seen * of_encoder))
        else:
            found.append(LayerProducts(2 * queries * seen * seen, seen * sum(matrices.values())))
    return found


def logit_products(model: ModelConfig) -> int:
    """Return the multiply-adds of the logits of a sample, over the padded vocabulary."""
    return (model.decoder_seq_length or model.seq_length) * spec_of(model).tables[-1].size


def again_products(run: RunConfig, layers: Sequence[LayerProducts], steps: Sequence[range] = ()) -> int:
    """Return the multiply-adds of what is computed again in the chunks with ``steps``, all of them by default."""
    given, total = run.recompute, 0
    for stage in steps or chain(*chunk_steps(run)):
        mine = [layers[step - 1] for step in stage if 0 < step <= len(layers)]
        if given.granularity == "selective":
            total += sum(each.core for each in mine)
        elif given.granularity == "full":
            total += sum(each.whole for each in (mine[: given.num_layers] if given.method == "block" else mine))
    return total
