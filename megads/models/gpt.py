"""The decoder: GPT and Llama are two configurations of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megads.comm.groups import Groups
from megads.comm.rng import Draws
from megads.config.schema import ModelConfig
from megads.errors import ConfigError
from megads.families.decoder import spec_of
from megads.families.spec import by_name
from megads.models.attention import Attention
from megads.models.layers import Context, Layer, make_column, make_mlp, make_norm
from megads.models.lora import drawing
from megads.models.rope import Rotary, frequencies
from megads.parallel.collectives import copy_to_group, split_rows
from megads.parallel.documents import Documents
from megads.parallel.linear_loss import LinearLoss
from megads.parallel.loss import (
    CrossEntropy,
    draw_labels,
    most_likely,
    vocab_parallel_cross_entropy,
    whole_cross_entropy,
)
from megads.parallel.recompute import Recompute
from megads.parallel.tensor import VocabParallelEmbedding, column_parallel_linear, parameter


class Positions(nn.Module):
    """A learned vector for every position, whole on every rank."""

    def __init__(self, num_positions: int, width: int, context: Context):
        super().__init__()
        self.weight = parameter((num_positions, width), None)
        self.context = context

    def forward(self, length: int, positions: Tensor | None = None) -> Tensor:
        """Return the rows of this rank's tokens, ``[s, width]``; with ``positions`` ``[B, s, width]``.

        Args:
            positions: ``[B, length]`` int64 of that part; None: those in the sequence.

        Raises:
            ConfigError: the sequence is longer than the table.
        """
        groups, rows = self.context.groups, self.weight.shape[0]
        if length * groups.seq_size > rows:
            raise ConfigError(
                f"a sequence of {length * groups.seq_size} tokens does not fit MAX_POSITIONS={rows}; "
                "raise MAX_POSITIONS or lower SEQ"
            )
        scattered_over = self.context.scattered_over
        if positions is not None:
            if scattered_over is not None:
                positions = positions.chunk(groups.tensor_size, dim=1)[groups.tensor_rank]
            return F.embedding(positions, copy_to_group(self.weight, scattered_over))
        first = groups.seq_rank * length
        return split_rows(self.weight[first : first + length], scattered_over)


class Block(nn.Module):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``; or each norm behind what it is before here, or the sum.

    Its collectives, for B samples::

                       forward                             backward
        tensor axis    2 all-reduces                       2 all-reduces
        scattered      2 all-gathers, 2 reduce-scatters    4 all-gathers, 2 reduce-scatters,
                                                           2 all-reduces of a norm's gradients
        seq axis       2 all-to-alls                       2 all-to-alls

    With ZeRO 0 and 1 the last two are one for all layers and micro-batches, see
    ``megads.engine.partial_gradients``. On the tensor axis each is of ``[B, S/SP, H]``; two of
    the four all-gathers bring back an input that was not kept. On the sequence axis the first all-to-all carries
    ``[B, S/SP, heads, D]`` of q, k and v (heads that several ranks use, several times), the
    second that of the result.
    """

    def __init__(
        self,
        model: ModelConfig,
        layer: Layer,
        context: Context,
        rotary: Rotary | None,
        index: int | str,
        *,
        is_causal: bool = True,
    ):
        super().__init__()
        self.probability, self.context, self.layer = model.hidden_dropout, context, index
        self.normalises_sums = model.norm_position == "behind_sum"
        norm = partial(norm_of, layer=layer, epsilon=model.norm_epsilon, context=context)
        self.input_norm = norm("input_norm")
        attention = self.attention_class(model)
        self.attention = attention(model, layer, context, rotary, f"{index}.attention", is_causal=is_causal)
        self.attention_norm, self.post_norm = norm("attention_norm"), norm("post_norm")
        self.mlp = make_mlp(layer, context, model.activation)
        self.mlp_norm = norm("mlp_norm")

    def forward(self, x: Tensor, documents: Documents | None = None, draws: Draws | None = None) -> Tensor:
        """Map ``[B, s, H]`` to ``[B, s, H]``; this rank's part of the sequence, see :class:`Attention`."""
        if not self.context.adapter_dropout:
            return self.change(self.attend(x, documents, draws), draws)
        with drawing(draws, self.layer):
            return self.change(self.attend(x, documents, draws), draws)

    def attention_class(self, model: ModelConfig) -> type[Attention]:
        """Return the class of the layer's attention."""
        return Attention

    def attend(self, x: Tensor, documents: Documents | None, draws: Draws | None) -> Tensor:
        """Do the layer's first half: attention."""
        mixed = self.attention(normed(self.input_norm, x), documents, draws)
        return self._added(x, mixed, self.attention_norm, draws, "out")

    def change(self, x: Tensor, draws: Draws | None) -> Tensor:
        """Do the layer's second half: the MLP."""
        return self._added(x, self.mlp(normed(self.post_norm, x)), self.mlp_norm, draws, "mlp")

    def _added(self, x: Tensor, change: Tensor, norm: nn.Module | None, draws: Draws | None, name: str) -> Tensor:
        probability = self.probability if self.training else 0.0
        if self.normalises_sums:
            return normed(norm, x + self.context.dropout(change, probability, draws, self.layer, name))
        return x + self.context.dropout(normed(norm, change), probability, draws, self.layer, name)


def norm_of(name: str, layer: Layer, epsilon: float, context: Context) -> nn.Module | None:
    """Return the norm ``name``, of the width of the residual stream; None where ``layer`` has none."""
    return make_norm(name, layer, epsilon, context) if f"{name}.weight" in layer else None


def normed(norm: nn.Module | None, x: Tensor) -> Tensor:
    """Return ``norm(x)``; ``x`` where there is no norm."""
    return x if norm is None else norm(x)


class GPT(nn.Module):
    """A causal language model over a vocabulary that is padded and split over tensor-parallel ranks.

    One object is one pipeline stage. Names and full shapes do not depend on the layout; every parameter carries
    ``shard``, which says how it is cut (None: whole on every rank). Built with
    uninitialised float32 weights on the CPU; see ``megads.models.build``.

    Args:
        steps: what this pipeline stage holds, see ``megads.families.spec``; None: everything.
        scatter_norms: Megatron's sequence parallelism (arXiv 2205.05198, section 4.2.2).
        recompute: what is computed again in the backward pass; None: nothing.
        tp_overlap: chunks of a split layer's products and collectives, see ``megads.parallel.overlap``.

    Attributes:
        loss_names: of the terms that the loss is the sum of.
        losses: the terms of the last loss, by those names; None where there is one.

    Raises:
        ConfigError: a size cannot be split over the tensor-parallel ranks.
        DependencyError: an optional package that ``model`` asks for is missing.
    """

    is_causal: ClassVar[bool] = True
    loss_names: tuple[str, ...] = ("lm_loss",)
    losses: Tensor | None = None

    def __init__(
        self,
        model: ModelConfig,
        groups: Groups,
        *,
        steps: range | None = None,
        scatter_norms: bool = False,
        recompute: Recompute | None = None,
        tp_overlap: int = 1,
    ):
        super().__init__()
        self.cross_entropy: CrossEntropy = whole_cross_entropy
        adapted = model if model.lora_rank else None
        context = Context(
            groups, recompute or Recompute(), scatter_norms, tp_overlap, adapted, adapter_dropout=model.lora_dropout
        )
        self.config, self.group, self.context, self.recompute = model, groups.tensor, context, context.recompute
        self.spec = spec_of(model)
        last = self.spec.num_layers + 1
        mine = range(last + 1) if steps is None else steps
        self.has_embedding, self.has_head = 0 in mine, last in mine
        rotary = Rotary(frequencies(model)) if model.position_embedding == "rope" else None
        embedding = by_name(self.spec.embedding)
        (rows, width), positions = embedding["embedding.weight"].shape, embedding.get("positions.weight")
        if self.has_embedding or (self.has_head and self.spec.is_tied):
            self.embedding = VocabParallelEmbedding(rows, width, groups.tensor, scattered=scatter_norms)
        if self.has_embedding and positions:
            self.positions = Positions(positions.shape[0], width, context)
        layers = [step - 1 for step in mine if 0 < step < last]
        # A dictionary, because a stage holds the layers of its numbers and none below.
        output = by_name(self.spec.output)
        self.layers = nn.ModuleDict({str(index): self.make_layer(index, rotary) for index in layers})
        if self.has_head:
            self.final_norm = norm_of("final_norm", output, model.norm_epsilon, context)
            self.head = make_column("head", output, context) if "head.weight" in output else None

    def make_layer(self, index: int, rotary: Rotary | None) -> nn.Module:
        """Return the layer with number ``index``."""
        layer = by_name(self.spec.layer_of(index))
        return Block(self.config, layer, self.context, rotary, index, is_causal=self.is_causal)

    def boundary(self, micro_batch: int, length: int) -> tuple[int, ...]:
        """Return the shape of what passes between two stages for ``length`` tokens of a sequence rank."""
        scattered_over = self.context.groups.tensor_size if self.context.scatter_norms else 1
        return micro_batch, length // scattered_over, self.config.hidden_size

    def forward(
        self,
        x: Tensor,
        labels: Tensor | None = None,
        weight: Tensor | None = None,
        documents: Documents | None = None,
        draws: Draws | None = None,
        measure: Callable[[Any, Any], Tensor] | None = None,
    ) -> Tensor:
        """Return the loss, or without labels what this stage's last step gives (:meth:`outputs` of the last one).

        Args:
            x: ``[B, S]`` int64 tokens, this sequence rank's; behind the first pipeline stage
                the output of the stage before.
            labels: ``[B, S]`` int64: the token that follows each, or a negative number where
                none counts.
            weight: [] float32, see :meth:`loss`.
            documents: where positions start again, and who attends to whom; None: rows are whole.
            draws: of this micro-batch; None: dropout uses the default generator as it is.
            measure: returns what is wanted instead of the loss, of the outputs and ``labels``.

        Returns:
            ``[]`` float32 (float64 in a float64 model), or ``[B, S, V/t]`` with V the
            padded vocabulary; columns of padding carry no meaning.
        """
        for step in self.steps(documents, draws):
            x = step(x)
        if measure is not None:
            return measure(x, labels)
        return x if labels is None else self.loss(x, labels, weight)

    def steps(self, documents: Documents | None = None, draws: Draws | None = None) -> list[Callable[[Tensor], Tensor]]:
        """Return what this stage does to one micro-batch, in order; each step's output is the next one's input.

        The steps keep ``documents`` and ``draws``: micro-batches take turns, and a step may be done again long after.
        """
        kept: dict[str, Any] = {"documents": documents, "draws": draws}
        return [
            *([partial(self.embed, **kept)] if self.has_embedding else []),
            *self.recompute.layers([partial(layer, **kept) for layer in self.layers.values()]),
            *([self.outputs] if self.has_head else []),
        ]

    def embed(self, tokens: Tensor, documents: Documents | None = None, draws: Draws | None = None) -> Tensor:
        """Map ``[B, S]`` tokens to ``[B, s, H]``; s is S, or S/t with ``scatter_norms``.

        Raises:
            ConfigError: S cannot be scattered over the tensor-parallel ranks, or is too long for learned positions.
        """
        context, length = self.context, tokens.shape[1]
        if context.scatter_norms and length % context.groups.tensor_size:
            tensor, seq = context.groups.tensor_size, context.groups.seq_size
            fitting = -(-length // tensor) * tensor * seq
            raise ConfigError(
                f"SCATTER_NORMS=1: the {length} tokens of a rank (SEQ / SP) cannot be split over TP={tensor} ranks; "
                f"use SEQ={fitting}, or SCATTER_NORMS=0"
            )
        x = self.embedding(tokens)
        if self.config.position_embedding == "learned":
            x = x + self.positions(length, documents.positions if documents else None)
        x = self.finish_embedding(x, documents)
        if self.spec.is_adapted and self.recompute.granularity == "full" and torch.is_grad_enabled():
            x.requires_grad_()  # a layer that is computed again in a backward pass of its own needs such an input
        return context.dropout(x, self.config.hidden_dropout if self.training else 0.0, draws, "embedding")

    def finish_embedding(self, x: Tensor, documents: Documents | None) -> Tensor:
        """Return ``x``, the sum of the embeddings of tokens and positions, with what else is done to it."""
        return x

    def outputs(self, x: Tensor) -> Any:
        """Map ``[B, s, H]`` to what :meth:`loss` takes: logits, or the states that they are linear in.

        The latter with ``recompute.loss_chunk``, where logits stand for a few tokens at a time.
        """
        return self.states(x) if self.recompute.loss_chunk else self.logits(x)

    def states(self, x: Tensor) -> Any:
        """Map ``[B, s, H]`` to the states that the output layer maps to logits, ``[B, s, H]``."""
        return normed(self.final_norm, x)

    def logits(self, x: Tensor) -> Any:
        """Map ``[B, s, H]`` to this rank's columns ``[B, S, V/t]`` of the logits."""
        return self.project(self.states(x))

    def project(self, states: Tensor, use: Callable[..., Tensor] | None = None) -> Tensor:
        """Map ``states`` to the logits ``[B, S, V/t]``; with ``use`` to what that makes of input, weight and bias."""
        if self.head is not None:
            return self.head(states) if use is None else self.head(states, use)
        if use is not None:
            return use(states, self.embedding.weight, None)
        scattered, chunks = self.context.scatter_norms, self.context.tp_overlap
        table = self.embedding.weight
        return column_parallel_linear(states, table, None, self.group, scattered=scattered, chunks=chunks)

    def loss(self, outputs: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the cross entropy, summed over the counted tokens and multiplied by ``weight``.

        A token counts unless its label is negative. Without a weight: their mean, 0 when
        none counts. It is the loss of this sequence rank's tokens only. Labels may be numbers in
        [0, 1), from which those of the model itself are drawn (``megads.parallel.loss``).
        """
        if self.recompute.loss_chunk:
            total = self.project(outputs, partial(self._in_chunks.total, labels=labels))
        else:
            if labels.is_floating_point():
                labels = draw_labels(outputs.detach(), labels, self.group, self.config.vocab_size)
            total = self._token_losses(outputs, labels).sum()
        return total * weight if weight is not None else total / (labels >= 0).sum().clamp(min=1)

    @property
    def columns(self) -> int:
        """How many numbers :meth:`sample_losses` gives of a sample: sum and count of every term of the loss."""
        return 2 * len(self.loss_names)

    def sample_losses(self, outputs: Any, labels: Any) -> Tensor:
        """Return ``[B, 2]``: of every sample the sum of its counted tokens' cross entropies, and their number.

        Of this sequence rank's tokens only; see :meth:`loss`.
        """
        losses = self._token_losses(outputs, labels)
        return torch.stack([losses.sum(dim=1), (labels >= 0).sum(dim=1).to(losses)], dim=1)

    def sample_scores(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return ``[B, 2]`` float64: of every sample its labels' summed log-probability, and how many are wrong.

        Wrong: another token is the most likely one. Negative labels do not count. Of this sequence rank's tokens only.
        """
        found = -self._token_losses(outputs, labels).double().sum(dim=1)
        if self.recompute.loss_chunk:
            likely = self.project(outputs, partial(self._in_chunks.most_likely, labels=labels))
        else:
            likely = most_likely(outputs, self.group, self.config.vocab_size)
        wrong = (likely != labels) & (labels >= 0)
        return torch.stack([found, wrong.sum(dim=1).double()], dim=1)

    def _token_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if self.recompute.loss_chunk:
            return self.project(outputs, partial(self._in_chunks.of_tokens, labels=labels))
        words, vocabulary = labels.clamp(min=0), self.config.vocab_size
        losses = vocab_parallel_cross_entropy(outputs, words, self.group, vocabulary, self.cross_entropy)
        return losses.masked_fill(labels < 0, 0.0)

    @property
    def _in_chunks(self) -> LinearLoss:
        return LinearLoss(
            self.group, self.config.vocab_size, self.recompute.loss_chunk, is_scattered=self.context.scatter_norms
        )
