"""BERT (arXiv 1810.04805): an encoder whose tokens attend in both directions, and its two heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megads.families.spec import by_name
from megads.models.gpt import GPT, norm_of, normed
from megads.models.layers import Context, Layer, make_norm
from megads.parallel.collectives import copy_to_group, reduce_from_group
from megads.parallel.documents import Documents
from megads.parallel.tensor import Shard, WholeLinear, column_parallel_linear, parameter


@dataclass(frozen=True)
class PairLabels:
    """What a micro-batch of BERT with a binary head is to say.

    Attributes:
        tokens: ``[B, S / SP]`` int64: the token that was there; negative where none is hidden.
        pairs: ``[B]`` int64: 1 where the halves of a sample are exchanged, else 0; negative on the
            sequence ranks that do not have the sample's first token.
    """

    tokens: Tensor
    pairs: Tensor


class TokenTypes(nn.Module):
    """A vector for every type of token, whole on every rank."""

    def __init__(self, num_types: int, width: int, context: Context):
        super().__init__()
        self.weight = parameter((num_types, width), None)
        self.context = context

    def forward(self, types: Tensor) -> Tensor:
        """Return the rows of this rank's tokens, ``[B, s, width]``; ``types`` is ``[B, S / SP]`` int64."""
        group = self.context.scattered_over
        if group is not None:
            types = types.chunk(group.size(), dim=1)[group.rank()]
        return F.embedding(types, copy_to_group(self.weight, group))


class LMHead(nn.Module):
    """``norm(gelu(dense(x)))`` projected onto the vocabulary, with a bias for every column.

    The gelu is that of the layers, except in Megatron's form (norms before attention and MLP), where it is the exact
    erf form also if the layers use its tanh approximation.
    """

    def __init__(self, output: Layer, context: Context, epsilon: float, activation: str, *, is_megatron: bool):
        super().__init__()
        self.context = context
        self.approximate = "tanh" if activation == "gelu_tanh" and not is_megatron else "none"
        width = output["lm_head.dense.weight"].shape[0]
        rows = output["lm_head.bias"].size
        self.dense = WholeLinear(width, width, context.scattered_over)
        self.norm = make_norm("lm_head.norm", output, epsilon, context)
        self.bias = parameter((rows,), Shard(0, (rows,)), context.groups.tensor)

    def forward(self, x: Tensor, table: Tensor, use: Callable[..., Tensor] | None = None) -> Tensor:
        """Map ``[B, s, H]`` to this rank's columns ``[B, S, V/t]``; ``table`` is its part of the embedding.

        With ``use`` to what that makes of the output layer's input, weight and bias.
        """
        x = self.norm(F.gelu(self.dense(x), approximate=self.approximate))
        if use is not None:
            return use(x, table, self.bias)
        group, scattered, chunks = self.context.groups.tensor, self.context.scatter_norms, self.context.tp_overlap
        return column_parallel_linear(x, table, self.bias, group, scattered=scattered, chunks=chunks)


class Pooler(nn.Module):
    """``tanh(dense(x))`` of the first token of each sample."""

    def __init__(self, width: int, context: Context):
        super().__init__()
        self.context = context
        self.dense = WholeLinear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, s, H]`` to ``[B, H]``, the same on every tensor-parallel rank.

        On sequence ranks but the first it is that of another token, whose loss does not count.
        """
        first, group = x[:, 0], self.context.scattered_over
        if group is not None:  # the first token is on the first rank
            first = reduce_from_group(first if group.rank() == 0 else first * 0.0, group)
        return torch.tanh(self.dense(first))


class BERT(GPT):
    """An encoder with a masked-LM head, and with ``model.binary_head`` one for pairs of sentences.

    Layers are those of a decoder without the causal mask. ``norm_position`` "before" is Megatron's form, "behind_sum"
    the original, which normalises the embedding as well. See :class:`megads.models.gpt.GPT`.
    """

    is_causal: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        model, context = self.config, self.context
        width, output = model.hidden_size, by_name(self.spec.output)
        if model.binary_head:
            self.loss_names = ("lm_loss", "sop_loss")
        if self.has_embedding:
            self.token_types = TokenTypes(model.token_types, width, context) if model.token_types else None
            self.embedding_norm = norm_of("embedding_norm", by_name(self.spec.embedding), model.norm_epsilon, context)
        if self.has_head and not model.num_classes:
            is_megatron = model.norm_position == "before"
            self.lm_head = LMHead(output, context, model.norm_epsilon, model.activation, is_megatron=is_megatron)
            if model.binary_head:
                self.pooler = Pooler(width, context)
                self.binary_head = WholeLinear(width, 2)

    def finish_embedding(self, x: Tensor, documents: Documents | None) -> Tensor:
        """Add the types of tokens to ``[B, s, H]``, 0 where none are given, and normalise the sum."""
        if self.token_types is not None:
            types = documents.types if documents else None
            if types is None:
                scattered = self.context.scattered_over
                length = x.shape[1] * (1 if scattered is None else scattered.size())
                types = torch.zeros(x.shape[0], length, dtype=torch.int64, device=x.device)
            x = x + self.token_types(types)
        return normed(self.embedding_norm, x)

    def outputs(self, x: Tensor) -> Any:
        """Map ``[B, s, H]`` to :meth:`logits`, or with chunks the states in their place."""
        if not self.recompute.loss_chunk:
            return self.logits(x)
        x = self.states(x)
        return (x, self._of_pairs(x)) if self.config.binary_head else x

    def logits(self, x: Tensor) -> Any:
        """Map ``[B, s, H]`` to the outputs: the logits ``[B, S, V/t]``, with a binary head also ``[B, 2]``."""
        x = self.states(x)
        logits = self.project(x)
        return (logits, self._of_pairs(x)) if self.config.binary_head else logits

    def project(self, states: Tensor, use: Callable[..., Tensor] | None = None) -> Tensor:
        """Map ``states`` to the logits ``[B, S, V/t]``; see :meth:`megads.models.gpt.GPT.project`."""
        return self.lm_head(states, self.embedding.weight, use)

    def _of_pairs(self, x: Tensor) -> Tensor:
        return self.binary_head(self.pooler(x))

    def loss(self, outputs: Any, labels: Any, weight: Tensor | None = None) -> Tensor:
        """Return the masked-LM loss, and with :class:`PairLabels` the sum of it and the loss of the pairs.

        Args:
            outputs: of :meth:`outputs`.
            labels: :class:`PairLabels`, or those of tokens alone.
            weight: [] float32, of a token's loss. A pair's is such that the mean over micro-batches and
                data x seq ranks is the mean over all samples. Without a weight: means of what counts.
        """
        if not isinstance(labels, PairLabels):
            return super().loss(outputs[0] if isinstance(outputs, tuple) else outputs, labels, weight)
        logits, pairs = outputs
        tokens = super().loss(logits, labels.tokens, weight)
        found = _pair_losses(pairs, labels.pairs).sum()
        if weight is None:
            found = found / (labels.pairs >= 0).sum().clamp(min=1)
        else:
            found = found * (self.context.groups.seq_size / len(labels.pairs))
        self.losses = torch.stack([tokens.detach(), found.detach()])
        return tokens + found

    def sample_losses(self, outputs: Any, labels: Any) -> Tensor:
        """Return ``[B, 2]``, or with :class:`PairLabels` ``[B, 4]``: sums and numbers of tokens, then of pairs."""
        if not isinstance(labels, PairLabels):
            return super().sample_losses(outputs[0] if isinstance(outputs, tuple) else outputs, labels)
        logits, pairs = outputs
        found = _pair_losses(pairs, labels.pairs)
        counts = torch.stack([found, (labels.pairs >= 0).to(found)], dim=1)
        return torch.cat([super().sample_losses(logits, labels.tokens), counts], dim=1)


def _pair_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return ``[B]``, the cross entropy of every pair, 0 where the label is negative; float32 at least."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide, labels.clamp(min=0), reduction="none").masked_fill(labels < 0, 0.0)
