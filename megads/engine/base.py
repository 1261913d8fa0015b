"""What the training loop asks of an engine.

An engine owns the model and the optimizer on this rank. It turns micro-batches into one
parameter update, and it hands out every number that decides the next update, in runs that say which
numbers of the model they are, in every layout; what is written to them, it resumes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from megads.checkpoint.owned_shard import OwnedShard


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did; the same on every rank."""

    loss: Tensor  # [] float32: mean over the step's counted tokens, on whatever rank they are
    grad_norm: float  # of the whole gradient, before clipping
    skipped: bool  # True when a non-finite gradient made the optimizer leave the weights alone
    loss_scale: float  # 1.0 unless fp16
    rejected: bool = False  # True when it was skipped because ``accepts`` said so
    num_zeros: int | None = None  # in the gradient; None: not asked for, or nothing was updated
    params_norm: float | None = None  # of all float32 weights after the step; None: not asked for


@dataclass(frozen=True)
class ParameterState:
    """Everything that is known of one parameter on this tensor-parallel rank.

    ``tensors`` maps ``"weight"`` (the float32 master) and the optimizer's moments to
    tensors of the shape this rank's shard has; the data-parallel ranks' parts are joined.
    """

    name: str
    parameter: nn.Parameter
    tensors: dict[str, Tensor]


class Engine(Protocol):
    """A model and its optimizer on this rank."""

    @property
    def module(self) -> nn.Module:
        """The model, or this stage of it."""

    def train_step(
        self,
        batches: Sequence[Tensor],
        lr: float,
        *,
        first_sample: int = 0,
        weight_decay: float | None = None,
        accepts: Callable[[float], bool] | None = None,
    ) -> StepResult:
        """Update the weights once.

        Args:
            batches: one ``[micro_batch, seq_length + 1]`` int64 tensor per accumulation step.
            lr: learning rate of this step.
            first_sample: number of the step's first sample, counted from the begin of the run; with
                the seed it decides what dropout draws.
            weight_decay: of the parameters that decay; None: as the settings say.
            accepts: asked on every rank, with the step's loss, before the weights change; where it
                says no, the same everywhere, they stay and the step counts as skipped. None: do not ask.
        """

    def eval_loss(self, batches: Sequence[Tensor]) -> Tensor:
        """Return the mean loss over the counted tokens of ``batches`` on all ranks, without gradients.

        Args:
            batches: ``[micro_batch, seq_length + 1]`` int64 tensors, as many on every rank.

        Returns:
            [] float32, the same on every rank. Dropout is off and no generator moves.
        """

    def eval_losses(self, batches: Sequence[Tensor]) -> Tensor:
        """Return the loss of every sample of ``batches`` on all ranks; :meth:`eval_loss` is sum / count of all.

        One all-reduce, however many batches.

        Args:
            batches: ``[micro_batch, seq_length + 1]`` int64 tensors of one size, as many on every rank.

        Returns:
            ``[samples, 2]`` float32, the same on every rank: of each sample the summed loss of its
            counted tokens, in nats, and their number. Samples come as loaders deal them out:
            ``micro_batch`` of every data-parallel rank in turn for each of ``batches``. Dropout is
            off and no generator moves.
        """

    def states(self) -> Iterator[ParameterState]:
        """Yield every parameter's state, in the same order on every rank. Collective."""

    def pieces(self) -> Iterator[OwnedShard]:
        """Yield the numbers that this rank answers for, in the order of parameters. Not collective.

        The ranks of data x seq share every parameter's slice among them; one that owns nothing of
        it yields nothing. The tensors are the engine's own memory; after they are written,
        :meth:`spread` is to be called. Moments that no step has made yet are made here, zeros.
        """

    def spread(self) -> None:
        """Have everything else follow from what was written to :meth:`pieces`. Collective.

        That is the weights in half precision, those that other ranks answer for, and the copy
        of a tied embedding at the other end of a pipeline.
        """

    def whole_states(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and state of every parameter that this rank steps as a whole. Not collective.

        Only optimizers that look at whole tensors or matrices have such state; of the others
        :meth:`pieces` has all of it. Values are float32 or uint8 tensors of any shape, and plain numbers.
        """

    def load_whole_states(self, state_of: Callable[[str], Mapping[str, Any]]) -> None:
        """Set the state of every parameter that this rank steps as a whole; an empty one: as before the first step."""

    def reset_optimizer(self) -> None:
        """Have the optimizer begin again, with the weights that :meth:`pieces` have now. Not collective."""

    def scalars(self) -> dict[str, float]:
        """Return the numbers besides the tensors: optimizer step, loss scale and its counters."""

    def load_scalars(self, values: Mapping[str, float]) -> None:
        """Take back what :meth:`scalars` gave."""


def is_copy(parameter: nn.Parameter) -> bool:
    """Return whether another pipeline stage owns ``parameter``: its optimizer, its state and its share of the norm."""
    return bool(getattr(parameter, "ds_pipe_replicated", False))


def whole_shape(parameter: nn.Parameter) -> torch.Size:
    """Return the shape on this tensor-parallel rank, also of a parameter that ZeRO 3 has partitioned."""
    return getattr(parameter, "ds_shape", parameter.shape)
