"""Models that score whole rows: one token's state, dropout, and a linear layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megads.comm.rng import Draws
from megads.families.spec import by_name
from megads.models.bert import BERT, Pooler
from megads.models.gpt import GPT, normed
from megads.models.layers import Context, Layer
from megads.parallel.collectives import copy_to_group, reduce_from_group
from megads.parallel.documents import Documents
from megads.parallel.tensor import parameter


class Classifier(nn.Module):
    """Maps one token's state of every row to scores, whole on every rank."""

    def __init__(self, output: Layer, context: Context):
        super().__init__()
        self.context = context
        self.weight = parameter(output["classifier.weight"].shape, None)
        bias = output.get("classifier.bias")  # behind an encoder; as in transformers, a decoder's head has none
        self.bias = parameter(bias.shape, None) if bias is not None else None

    def forward(self, state: Tensor, probability: float, draws: Draws | None) -> Tensor:
        """Return the scores ``[B, K]`` of ``state``, ``[B, H]``, which is 0 on sequence ranks that do not have it.

        Sequence ranks sum the scores, and in the backward pass their gradients: one of them has the loss.

        Args:
            probability: of dropout on the state.
        """
        if probability:
            if draws is not None:
                draws.begin("classifier", is_split=False)
            state = F.dropout(state, probability)
        group = self.context.groups.seq
        scores = copy_to_group(reduce_from_group(F.linear(state, self.weight), group), group)
        return scores if self.bias is None else scores + self.bias


def class_losses(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return of every row the cross entropy, 0 where its label is negative, its likeliest class, and how likely it is.

    Args:
        scores: ``[B, K]``; or ``[B * C, 1]`` where a row has C choices, and the label is that of the right one.
        labels: ``[B]`` int64.
    """
    found = scores.view(len(labels), -1)
    wide = found if found.dtype == torch.float64 else found.float()
    losses = F.cross_entropy(wide, labels.clamp(min=0), reduction="none")
    likely, best = wide.softmax(dim=1).max(dim=1)
    return losses.masked_fill(labels < 0, 0.0), best, likely


class RowScores(GPT):
    """A model with a :class:`Classifier` in place of the output layer; see :class:`megads.models.gpt.GPT`.

    Labels are ``[B]``: the class of each row, or which of its choices is right; negative where it does not count.
    """

    def __init__(self, *args: Any, **more: Any):
        super().__init__(*args, **more)
        self.loss_names = ("lm_loss",)
        if self.has_head:
            self.classifier = Classifier(by_name(self.spec.output), self.context)

    def steps(self, documents: Documents | None = None, draws: Draws | None = None) -> list[Callable[[Tensor], Tensor]]:
        """Return what this stage does to one micro-batch; the last step gives scores."""
        steps = super().steps(documents, draws)
        if self.has_head:
            steps[-1] = partial(self.scores, documents=documents, draws=draws)
        return steps

    def scores(self, x: Tensor, documents: Documents | None = None, draws: Draws | None = None) -> Tensor:
        """Map ``[B, s, H]`` to the scores ``[B, K]`` of every row."""
        probability = self.config.hidden_dropout if self.training else 0.0
        return self.classifier(self.state_of(normed(self.final_norm, x), documents), probability, draws)

    def state_of(self, x: Tensor, documents: Documents | None) -> Tensor:
        """Return the state that stands for each row, ``[B, H]``; 0 on sequence ranks that do not have it."""
        raise NotImplementedError

    def loss(self, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the cross entropy, summed over counted rows and multiplied by ``weight``; without one, their mean."""
        total = class_losses(logits, labels)[0].sum()
        return total * weight if weight is not None else total / (labels >= 0).sum().clamp(min=1)

    @property
    def columns(self) -> int:
        """How many numbers :meth:`sample_losses` gives of a row."""
        return 4

    def sample_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return ``[B, 4]``: of every row the cross entropy, whether it counts, its likeliest class, and how likely."""
        losses, best, likely = class_losses(logits, labels)
        counts = (labels >= 0).to(losses)
        return torch.stack([losses, counts, best.to(losses) * counts, likely.to(losses) * counts], dim=1)


class DecoderClassifier(RowScores):
    """GPT or Llama: the state of the last real token stands for a row."""

    def state_of(self, x: Tensor, documents: Documents | None) -> Tensor:
        """Return the state of the last real token, from the rank that holds it."""
        groups, scattered = self.context.groups, self.context.scattered_over
        part = groups.seq_rank
        if scattered is not None:
            part = part * groups.tensor_size + groups.tensor_rank
        size = x.shape[1]
        if documents is not None and documents.lengths is not None:
            last = documents.lengths.tokens - 1
        else:
            parts = groups.seq_size * (1 if scattered is None else groups.tensor_size)
            last = torch.full((len(x),), parts * size - 1, device=x.device)
        local = last - part * size
        is_here = (local >= 0) & (local < size)
        state = x[torch.arange(len(x), device=x.device), local.clamp(0, size - 1)]
        return reduce_from_group(state.masked_fill(~is_here.unsqueeze(1), 0.0), scattered)


class EncoderClassifier(RowScores, BERT):
    """BERT: the pooler's output stands for a row."""

    def __init__(self, *args: Any, **more: Any):
        super().__init__(*args, **more)
        if self.has_head:
            self.pooler = Pooler(self.config.hidden_size, self.context)

    def state_of(self, x: Tensor, documents: Documents | None) -> Tensor:
        """Return the pooled state of the first token, from the first sequence rank."""
        state = self.pooler(x)
        return state if self.context.groups.seq_rank == 0 else state * 0.0
