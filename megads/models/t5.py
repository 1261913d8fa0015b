"""T5 (arXiv 1910.10683): an encoder, and a decoder that looks at its output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megads.comm.rng import Draws
from megads.config.schema import ModelConfig
from megads.errors import ConfigError
from megads.families.spec import by_name
from megads.models.attention import Attention
from megads.models.cross_attention import CrossAttention, RelativeAttention
from megads.models.gpt import GPT, Block
from megads.models.layers import Context, Layer, make_norm
from megads.models.relative import RelativeTable
from megads.models.rope import Rotary
from megads.parallel.documents import Documents
from megads.parallel.tensor import Group, Shard, parameter


class Parts(NamedTuple):
    """How many rows of an activation ``[B, e + d + r, H]`` are what, on this rank.

    Encoder and decoder are cut over sequence ranks each by itself, and with scattered norms over tensor ranks. Tables
    of relative positions travel along, as rows of every sample of which the first one's is used: so
    every pipeline stage has them, their gradients come back as an activation's do, and no stage holds a copy.
    """

    encoder: int  # e, tokens of the encoder
    decoder: int  # d, of the decoder
    tables: int  # r; 0 without relative positions

    @classmethod
    def of(cls, model: ModelConfig, context: Context, length: int, documents: Documents | None) -> Parts:
        """Return the parts of an activation with ``length`` rows; see ``Documents.encoder_tokens``."""
        tokens = documents.encoder_tokens if documents else None
        encoder = model.seq_length // context.groups.seq_size if tokens is None else tokens
        if context.scatter_norms:
            encoder //= context.groups.tensor_size
        tables = table_rows(model, context.groups.tensor_size)
        return cls(encoder, length - encoder - tables, tables)


def table_rows(model: ModelConfig, tensor: int) -> int:
    """Return how many rows of width H the tables of relative positions fill on one of ``tensor`` ranks."""
    if model.position_embedding != "relative":
        return 0
    return -(-2 * model.relative_buckets * (model.num_heads // tensor) // model.hidden_size)


class _Half(Block):
    """A layer of :class:`T5`: what encoder and decoder have in common."""

    def __init__(
        self,
        model: ModelConfig,
        layer: Layer,
        context: Context,
        rotary: Rotary | None,
        index: int,
        *,
        is_causal: bool = True,
    ):
        super().__init__(model, layer, context, rotary, index, is_causal=is_causal)
        self.model, self.is_causal = model, is_causal

    def attention_class(self, model: ModelConfig) -> type[Attention]:
        """Return the class of the attention among the tokens of one part."""
        return RelativeAttention if model.position_embedding == "relative" else Attention

    def among(self, documents: Documents | None, x: Tensor, parts: Parts) -> Documents:
        """Return what the attention among the tokens of this part, of the activation ``x``, has to know."""
        documents = documents or Documents()
        lengths, relative = None if self.is_causal else documents.lengths, None
        cache = documents.cache if self.is_causal else None  # the encoder's tokens are whole
        if parts.tables:
            heads = self.model.num_heads // self.context.groups.tensor_size
            shape = 2, self.model.relative_buckets, heads
            numbers = x[0, -parts.tables :].flatten()[: 2 * self.model.relative_buckets * heads]
            relative = numbers.view(shape)[int(self.is_causal)]
        return replace(documents, lengths=lengths, relative=relative, cache=cache)


class EncoderBlock(_Half):
    """A layer of the encoder: changes its part, passes the rest on. The last one normalises what it hands on."""

    def __init__(self, model: ModelConfig, layer: Layer, context: Context, rotary: Rotary | None, index: int):
        super().__init__(model, layer, context, rotary, index, is_causal=False)
        is_last = "encoder_norm.weight" in layer
        self.encoder_norm = make_norm("encoder_norm", layer, model.norm_epsilon, context) if is_last else None

    def forward(self, x: Tensor, documents: Documents | None = None, draws: Draws | None = None) -> Tensor:
        """Map ``[B, e + d + r, H]`` to the same; see :class:`Parts`."""
        parts = Parts.of(self.model, self.context, x.shape[1], documents)
        if not parts.encoder:  # a decode step
            return x
        mine = super().forward(x[:, : parts.encoder], self.among(documents, x, parts), draws)
        mine = mine if self.encoder_norm is None else self.encoder_norm(mine)
        return torch.cat([mine, x[:, parts.encoder :]], dim=1)


class DecoderBlock(_Half):
    """A layer of the decoder: changes its part, and looks at the encoder's.

    Besides the collectives of :class:`megads.models.gpt.Block` for its own tokens, attention to the encoder has on the
    tensor axis an all-reduce of the decoder's part in either direction and one of the encoder's in the backward
    pass, scattered the gathers and scatters that take their place; on the sequence axis three all-to-alls.
    """

    def __init__(self, model: ModelConfig, layer: Layer, context: Context, rotary: Rotary | None, index: int):
        super().__init__(model, layer, context, rotary, index)
        self.cross_norm = make_norm("cross_norm", layer, model.norm_epsilon, context)
        self.cross_attention = CrossAttention(model, layer, context, f"{index}.cross_attention")

    def forward(self, x: Tensor, documents: Documents | None = None, draws: Draws | None = None) -> Tensor:
        """Map ``[B, e + d + r, H]`` to the same; see :class:`Parts`."""
        parts = Parts.of(self.model, self.context, x.shape[1], documents)
        encoded, mine, tables = x.split(parts, dim=1)
        mine = self.attend(mine, self.among(documents, x, parts), draws)
        seen = self.cross_attention(self.cross_norm(mine), encoded, documents or Documents(), draws)
        probability = self.probability if self.training else 0.0
        mine = mine + self.context.dropout(seen, probability, draws, self.layer, "cross")
        return torch.cat([encoded, self.change(mine, draws), tables], dim=1)


class OutputBias(nn.Module):
    """A number for every token, added to its logit; split as the embedding's rows are."""

    def __init__(self, rows: int, group: Group):
        super().__init__()
        self.bias = parameter((rows,), Shard(0, (rows,)), group)

    def forward(self, logits: Tensor) -> Tensor:
        """Return ``logits`` ``[B, D, V/t]`` with the bias."""
        return logits + self.bias


class T5(GPT):
    """An encoder with a decoder: Megatron-LM's form, or with relative positions transformers'.

    What a stage works on is ``[B, e + d + r, H]``, see :class:`Parts`. What :meth:`embed` reads is ``[B, E/SP + D/SP]``
    tokens: this sequence rank's of the encoder, as many as ``Documents.encoder_tokens``, then of the decoder. Labels
    are ``[B, D/SP]``, the decoder's. See :class:`megads.models.gpt.GPT`.

    Where tied embeddings give the logits, transformers' form scales their input by ``1 / sqrt(H)``, and Megatron's
    adds a bias.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        model, group = self.config, self.context.groups.tensor
        self.table_rows = table_rows(model, self.context.groups.tensor_size)
        if self.has_embedding and self.table_rows:
            self.encoder_bias = RelativeTable(model.relative_buckets, model.num_heads, group)
            self.decoder_bias = RelativeTable(model.relative_buckets, model.num_heads, group)
        if self.has_head:
            found = [each for each in self.spec.output if each.name == "output_bias.bias"]
            self.output_bias = OutputBias(found[0].size, group) if found else None

    def make_layer(self, index: int, rotary: Rotary | None) -> nn.Module:
        """Return the layer with number ``index``: the encoder's come first."""
        layer = by_name(self.spec.layer_of(index))
        kind = EncoderBlock if index < self.config.num_layers else DecoderBlock
        return kind(self.config, layer, self.context, rotary, index)

    def embed(self, tokens: Tensor, documents: Documents | None = None, draws: Draws | None = None) -> Tensor:
        """Map ``[B, E/SP + D/SP]`` tokens to ``[B, e + d + r, H]``.

        Raises:
            ConfigError: a part cannot be scattered over the tensor ranks, or is too long for learned positions.
        """
        context, model = self.context, self.config
        given = documents.encoder_tokens if documents else None
        encoder = model.seq_length // context.groups.seq_size if given is None else given
        decoder = tokens.shape[1] - encoder
        x = self.embedding(self._as_scattered(tokens, encoder))
        if model.position_embedding == "learned":
            first, length = context.groups.seq_rank, max(encoder, decoder)
            where = documents.positions if documents else None
            if where is None:
                here = [torch.arange(first * each, (first + 1) * each, device=x.device) for each in (encoder, decoder)]
                where = torch.cat(here).unsqueeze(0)
            x = x + self.positions(length, self._as_scattered(where, encoder))
        x = context.dropout(x, model.hidden_dropout if self.training else 0.0, draws, "embedding")
        if not self.table_rows:
            return x
        numbers = torch.cat([self.encoder_bias().flatten(), self.decoder_bias().flatten()]).to(x.dtype)
        rows = F.pad(numbers, (0, self.table_rows * x.shape[2] - numbers.numel())).view(1, self.table_rows, -1)
        return torch.cat([x, rows.expand(len(x), -1, -1)], dim=1)

    def _as_scattered(self, tokens: Tensor, encoder: int) -> Tensor:
        """Return ``tokens`` in an order in which the part of every tensor rank is its share of either part."""
        degree = self.context.groups.tensor_size
        if not self.context.scatter_norms:
            return tokens
        parts = tokens[:, :encoder], tokens[:, encoder:]
        for name, part in zip(("SEQ", "DECODER_SEQ"), parts, strict=True):
            if part.shape[1] % degree:
                seq = self.context.groups.seq_size
                fitting = -(-part.shape[1] // degree) * degree * seq
                raise ConfigError(
                    f"SCATTER_NORMS=1: the {part.shape[1]} tokens of a rank ({name} / SP) cannot be split over "
                    f"TP={degree} ranks; use {name}={fitting}, or SCATTER_NORMS=0"
                )
        shares = zip(*(part.chunk(degree, dim=1) for part in parts), strict=True)
        return torch.cat([share for of_rank in shares for share in of_rank], dim=1)

    def steps(self, documents: Documents | None = None, draws: Draws | None = None) -> list[Callable[[Tensor], Tensor]]:
        """Return what this stage does to one micro-batch; see :meth:`megads.models.gpt.GPT.steps`."""
        found = super().steps(documents, draws)
        return [*found[:-1], partial(self.outputs, documents=documents)] if self.has_head else found

    def outputs(self, x: Tensor, documents: Documents | None = None) -> Any:
        """Map ``[B, e + d + r, H]`` to what the loss of the decoder's tokens takes; see :class:`GPT`."""
        x = self._decoders(x, documents)
        return self.states(x) if self.recompute.loss_chunk else self.decoder_logits(x)

    def logits(self, x: Tensor, documents: Documents | None = None) -> Tensor:
        """Map ``[B, e + d + r, H]`` to this rank's columns ``[B, D/SP, V/t]`` of the logits of the decoder's tokens."""
        return self.decoder_logits(self._decoders(x, documents))

    def _decoders(self, x: Tensor, documents: Documents | None) -> Tensor:
        parts = Parts.of(self.config, self.context, x.shape[1], documents)
        return x[:, parts.encoder : parts.encoder + parts.decoder]

    def decoder_logits(self, x: Tensor) -> Tensor:
        """Map the decoder's part ``[B, d, H]`` to this rank's columns ``[B, D/SP, V/t]`` of the logits."""
        return self.project(self.states(x))

    def project(self, states: Tensor, use: Callable[..., Tensor] | None = None) -> Tensor:
        """Map ``states`` to the logits ``[B, D/SP, V/t]``; see :meth:`megads.models.gpt.GPT.project`."""
        scale = self.config.hidden_size**-0.5 if self.config.tied_embeddings and self.table_rows else None
        if use is not None:
            bias = self.output_bias.bias if self.output_bias is not None else None
            scaled = states if scale is None else states * scale
            return super().project(scaled, lambda x, weight, _: use(x, weight, bias))
        logits = super().project(states)
        logits = logits if scale is None else logits * scale
        return logits if self.output_bias is None else self.output_bias(logits)

    def boundary(self, micro_batch: int, length: int) -> tuple[int, ...]:
        """Return the shape of what passes between two stages for ``length`` tokens of a sequence rank."""
        rows, tokens, width = super().boundary(micro_batch, length)
        return rows, tokens + self.table_rows, width
