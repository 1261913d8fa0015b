"""Retro (arXiv 2112.04426): a decoder some of whose layers look at neighbours of the chunks of a sample.

A row of ``S`` tokens has ``L`` chunks of ``m`` tokens, each with ``k`` neighbours of ``r`` tokens. The neighbours of a
chunk are encoded with a look at the chunk, and seen by its last token and by all of the next chunk but its last:
token ``t`` looks at the neighbours of chunk ``(t + 1) // m - 1``, so no token sees what a later one was answered with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from megads.comm.rng import Draws
from megads.config.schema import ModelConfig
from megads.families.retro import first_layer, looks
from megads.families.spec import by_name
from megads.models.attention import Attention
from megads.models.chunk_attention import ChunkAttention, NeighborAttention, TextAttention
from megads.models.gpt import GPT, Block
from megads.models.layers import Context, Layer, make_norm
from megads.models.rope import Rotary
from megads.parallel.documents import Documents, Neighbors
from megads.parallel.shift import from_previous


class EncoderBlock(Block):
    """A layer of the encoder of neighbours, which are rows ``[B L k, r, H]`` of their own; the first has one more look.

    Its collectives on the tensor axis are those of :class:`megads.models.gpt.Block`, for ``k r / m`` times the tokens
    of the decoder. On the sequence axis it has none: a rank encodes the neighbours of its own chunks.
    """

    def __init__(self, model: ModelConfig, layer: Layer, context: Context, rotary: Rotary | None, place: str):
        rates = model.retro_encoder_hidden_dropout, model.retro_encoder_attention_dropout
        own = model.model_copy(update=dict(zip(("hidden_dropout", "attention_dropout"), rates, strict=True)))
        super().__init__(own, layer, context, rotary, place, is_causal=False)
        self.cross_norm, self.cross_attention = None, None
        if "cross_norm.weight" in layer:
            self.cross_norm = make_norm("cross_norm", layer, model.norm_epsilon, context)
            self.cross_attention = NeighborAttention(model, layer, context, f"{place}.cross_attention")

    def attention_class(self, model: ModelConfig) -> type[Attention]:
        """Return the class of the attention among the tokens of a neighbour."""
        return TextAttention

    def encode(self, x: Tensor, chunks: Tensor, draws: Draws | None) -> Tensor:
        """Map ``[B L k, r, H]`` to the same.

        Args:
            chunks: ``[B, s, H]``, states of the decoder; what the first layer looks at.
        """
        x = self.attend(x, None, draws)
        if self.cross_norm is not None and self.cross_attention is not None:
            seen = self.cross_attention(self.cross_norm(x), chunks, draws)
            x = self._added(x, seen, None, draws, "cross")
        return self.change(x, draws)


class LookingBlock(Block):
    """A layer of the decoder that looks at neighbours between its attention and its MLP; the first one encodes them.

    Besides the collectives of :class:`megads.models.gpt.Block`, on the tensor axis those of one attention more, whose
    keys are of ``k r / m`` times as many tokens; scattered norms gather and scatter them. On the sequence axis, in
    the first such layer alone, the encoded neighbours of a rank's last chunk go to the next rank, and their
    gradient comes back.
    """

    def __init__(self, model: ModelConfig, layer: Layer, context: Context, rotary: Rotary | None, index: int):
        super().__init__(model, layer, context, rotary, index)
        self.gate = model.retro_attention_gate
        local = replace(context, groups=context.groups.within_sequence_rank())
        self.cross_norm = make_norm("cross_norm", layer, model.norm_epsilon, context)
        seq = context.groups.seq_rank if context.groups.seq else None
        self.cross_attention = ChunkAttention(model, layer, local, f"{index}.cross_attention", seq)
        self.retriever: nn.ModuleList | None = None
        if index == first_layer(model.num_layers):
            names = [f"retriever.{number}." for number in range(model.retro_encoder_layers)]
            parts = [{k.removeprefix(name): v for k, v in layer.items() if k.startswith(name)} for name in names]
            self.retriever = nn.ModuleList(
                EncoderBlock(model, part, local, rotary, f"{index}.{name}"[:-1])
                for name, part in zip(names, parts, strict=True)
            )

    def forward(self, x: Tensor, documents: Documents | None = None, draws: Draws | None = None) -> Tensor:
        """Map ``[B, s, H]`` to ``[B, s, H]``, with a look at ``documents.neighbors`` where there are any."""
        x = self.attend(x, documents, draws)
        neighbors = documents.neighbors if documents else None
        if neighbors is not None and neighbors.embedded is not None:
            x = self.look(x, neighbors, draws)
        return self.change(x, draws)

    def look(self, x: Tensor, neighbors: Neighbors, draws: Draws | None) -> Tensor:
        """Return ``x`` with what the layer sees in the neighbours."""
        states = self.cross_norm(x)
        encoded = neighbors.encoded if self.retriever is None else self._encode(states, neighbors, draws)
        assert encoded is not None
        seen = self.cross_attention(states, encoded, draws)
        probability = self.probability if self.training else 0.0
        seen = self.context.dropout(seen, probability, draws, self.layer, "cross")
        return x + (seen if self.gate == 1 else seen * self.gate)

    def _encode(self, states: Tensor, neighbors: Neighbors, draws: Draws | None) -> Tensor:
        """Return what the encoder makes of the neighbours; with sequence ranks, behind that of the chunk before."""
        assert self.retriever is not None
        assert neighbors.embedded is not None
        encoded = neighbors.embedded
        for layer in self.retriever:
            assert isinstance(layer, EncoderBlock)
            encoded = layer.encode(encoded, states, draws)
        group = self.context.groups.seq
        if group is not None:
            of_rows = encoded.unflatten(0, (states.shape[0], -1))
            last = from_previous(of_rows[:, -neighbors.of_chunk :], group)
            encoded = torch.cat([last, of_rows], dim=1).flatten(0, 1)
        # A layer that is computed again leaves what the later layers have used.
        if neighbors.encoded is None:
            neighbors.encoded = encoded
        return encoded


class Retro(GPT):
    """A decoder that looks at neighbours. What :meth:`embed` reads is ``[B, S/SP + n]`` tokens.

    This sequence rank's of the row, as many as ``Documents.encoder_tokens``, then those of the neighbours
    of its chunks, chunk by chunk. A row may end anywhere: neighbours of a chunk that is not whole are seen by no token.
    With ``RETRO_ATTENTION_GATE=0``, and where no neighbours are given, the rest is a GPT. Neighbours are embedded as
    other tokens are, and of every one positions begin at 0.

    They do not pass through the layers between: what is embedded and encoded is kept in ``Documents``, from
    the step that makes it to those that use it. So a pipeline cannot cut it.
    """

    def make_layer(self, index: int, rotary: Rotary | None) -> nn.Module:
        """Return the layer with number ``index``."""
        layer, model = by_name(self.spec.layer_of(index)), self.config
        kind = LookingBlock if looks(index, model.num_layers) else Block
        return kind(model, layer, self.context, rotary, index)

    def steps(self, documents: Documents | None = None, draws: Draws | None = None) -> list[Callable[[Tensor], Tensor]]:
        """Return what is done to one micro-batch; see :meth:`megads.models.gpt.GPT.steps`."""
        neighbors = Neighbors(self.config.retro_num_neighbors)
        return super().steps(replace(documents or Documents(), neighbors=neighbors), draws)

    def embed(self, tokens: Tensor, documents: Documents | None = None, draws: Draws | None = None) -> Tensor:
        """Map ``[B, S/SP + n]`` tokens to ``[B, s, H]``, and the neighbours to ``documents.neighbors.embedded``."""
        model, given = self.config, documents.encoder_tokens if documents else None
        own = min(model.seq_length // self.context.groups.seq_size if given is None else given, tokens.shape[1])
        x = super().embed(tokens[:, :own], documents, draws)
        retrieved = model.retro_chunk_length * model.retro_retrieved_chunks
        of_chunk = model.retro_num_neighbors * retrieved
        chunks = min((tokens.shape[1] - own) // of_chunk, own // model.retro_chunk_length)
        if chunks and model.retro_attention_gate and documents and documents.neighbors:
            texts = tokens[:, own : own + chunks * of_chunk].reshape(-1, retrieved)
            documents.neighbors.embedded = self._embed_neighbors(texts, draws)
        return x

    def _embed_neighbors(self, texts: Tensor, draws: Draws | None) -> Tensor:
        """Map ``[B L k, r]`` tokens to ``[B L k, r, H]``; of scattered norms this rank's of the ``r``."""
        x = self.embedding(texts)
        if self.config.position_embedding == "learned":
            length = texts.shape[1]
            x = x + self.positions(0, torch.arange(length, device=texts.device).unsqueeze(0))
        return self.context.dropout(x, self.config.hidden_dropout if self.training else 0.0, draws, "neighbors")
