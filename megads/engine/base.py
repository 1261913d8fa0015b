"""The contract of an engine: what training, checkpoints and the memory profile use of one.

An engine owns the model and the optimizer on this rank. It turns micro-batches into one parameter
update, and gives access to every element that decides the next update, in runs that say which
elements of the model they are, in every layout. It resumes from what is written to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from megads.checkpoint.owned_shard import OwnedShard


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did; the same on every rank."""

    loss: Tensor  # [] float32: mean over the step's counted tokens, on whatever rank they are
    grad_norm: float  # of the whole gradient, before clipping
    skipped: bool  # no update: a gradient was not finite, or the step was rejected
    loss_scale: float  # 1.0 unless fp16
    rejected: bool = False  # True when ``accepts`` returned False
    num_zeros: int | None = None  # in the gradient; None: not requested, or no update
    params_norm: float | None = None  # of all float32 weights after the step; None: not requested
    losses: Mapping[str, Tensor] = field(default_factory=dict)  # terms of the loss by name, where it has several


@dataclass(frozen=True)
class Labelled:
    """Rows whose counted tokens need not be all that follow others, whole on every rank of their model."""

    tokens: Tensor  # [B, S] int64
    labels: Tensor  # the same: the token that follows each; negative where none counts
    restarts: bool = False  # whether documents start over in the rows as the run's settings say; else rows are whole


@dataclass(frozen=True)
class ParameterState:
    """One parameter on this tensor-parallel rank.

    ``tensors`` maps ``"weight"`` (the float32 master) and the optimizer's moments to
    tensors of the shape of this rank's shard; the data-parallel ranks' parts are joined.
    """

    name: str
    parameter: nn.Parameter
    tensors: dict[str, Tensor]


@dataclass
class MemoryUsage:
    """Bytes that an engine holds on this rank, by kind.

    Attributes:
        weights: those the model computes with, ZeRO's partitions of them, and module buffers.
        gradients: of parameters and partitions, with what they are summed in.
        optimizer: its state, and float32 masters besides the weights.
        buffers: other tensors that the engine keeps, such as buckets.
        on_host: of all of these, those in host memory although the model is on a device.
    """

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    buffers: int = 0
    on_host: int = 0

    @property
    def total(self) -> int:
        """Of all kinds."""
        return self.weights + self.gradients + self.optimizer + self.buffers


class EngineState(Protocol):
    """Everything that decides the next update, on this rank; what a checkpoint holds."""

    def by_parameter(self) -> Iterator[ParameterState]:
        """Yield every parameter's state, in the same order on every rank. Collective."""

    def owned_shards(self) -> Iterator[OwnedShard]:
        """Yield the elements that this rank owns, in the order of parameters. Not collective.

        The ranks of data x seq share every parameter's slice among them; one that owns nothing of
        it yields nothing. The tensors are the engine's own memory; after they are written, call
        :meth:`sync_from_masters`. Moments that no step has made yet are made here, zeros.
        """

    def frozen_shards(self) -> Iterator[OwnedShard]:
        """Yield what this rank reads of the parameters that are not trained; none where all are. Not collective.

        As :meth:`owned_shards`, with the weight alone, in the type of the model. The ranks of data x seq share them.
        """

    def sync_from_masters(self) -> None:
        """Update everything that follows from what was written to :meth:`owned_shards`. Collective.

        That is the weights in half precision, those that other ranks own, and the copy of a tied
        embedding at the other end of a pipeline. Of :meth:`frozen_shards`, too.
        """

    def whole_states(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and state of every parameter that this rank steps as a whole. Not collective.

        Only optimizers that look at whole tensors or matrices have such state; of the others
        :meth:`owned_shards` has all of it. Values are float32 or uint8 tensors of any shape, and plain numbers.
        """

    def load_whole_states(self, state_of: Callable[[str], Mapping[str, Any]]) -> None:
        """Set the state of every parameter that this rank steps as a whole; an empty one: as before the first step."""

    def replicated(self) -> Iterator[tuple[str, Tensor]]:
        """Yield masters and moments that all ranks of data x seq hold, with names that are equal there. Not collective.

        None where the ranks share them. Moments that no step has made yet are left out; weights of the model, too.
        """

    def reset_optimizer(self) -> None:
        """Restart the optimizer with the weights that :meth:`owned_shards` has now. Not collective."""

    def scalars(self) -> dict[str, float]:
        """Return the numbers besides the tensors: optimizer step, loss scale and its counters."""

    def load_scalars(self, values: Mapping[str, float]) -> None:
        """Set what :meth:`scalars` returned."""


class Engine(Protocol):
    """A model and its optimizer on this rank."""

    @property
    def module(self) -> nn.Module:
        """The model, or this stage of it."""

    @property
    def loss_names(self) -> tuple[str, ...]:
        """Of the terms that the loss is the sum of; one of most models."""

    @property
    def state(self) -> EngineState:
        """The weights and the optimizer."""

    def prepare(self, batch: Tensor) -> Tensor:
        """Do what a batch of :meth:`train_step` needs on the host, such as finding its documents, and return it.

        For the threads that read ahead: the step does it for batches that were not prepared.
        """

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
            batches: one ``[micro_batch, seq_length + 1]`` int64 tensor per accumulation step; for bert
                and t5 of rows of ``megads.data.samples.masked.rows``. On the host, or on the engine's device.
            lr: learning rate of this step.
            first_sample: number of the step's first sample, counted from the start of the run; with
                the seed it decides what dropout draws.
            weight_decay: of the parameters that decay; None: as the settings say.
            accepts: called on every rank with the step's loss before the weights change; where it returns
                False, the same everywhere, they stay and the step counts as skipped. None: every step is accepted.
        """

    def eval_losses(self, batches: Sequence[Tensor]) -> Tensor:
        """Return the loss of every sample of ``batches`` on all ranks, without gradients.

        One all-reduce for any number of batches.

        Args:
            batches: as those of :meth:`train_step`, as many on every rank.

        Returns:
            ``[samples, 2]`` float32, the same on every rank: of each sample the summed loss of its
            counted tokens, in nats, and their number; then the same two of each further term of the loss.
            Samples come as loaders deal them out:
            ``micro_batch`` of every data-parallel rank in turn for each of ``batches``. Dropout is
            off and no generator moves.
        """

    def eval_scores(self, batches: Sequence[Labelled]) -> Tensor:
        """Return how well the model predicts rows of any length on all ranks, without gradients; documents are whole.

        One all-reduce for any number of batches.

        Args:
            batches: of one number of rows, as many on every rank. Their lengths are multiples of SP, and of SP x TP
                with ``scatter_norms``; the ranks of one model have the same rows.

        Returns:
            ``[rows, 2]`` float64, the same on every rank, in the order of :meth:`eval_losses`: of each row the
            summed log-probability of its counted labels, and how many of them were not the most likely token.
            Dropout is off and no generator moves.
        """

    def memory_usage(self) -> MemoryUsage:
        """Return what the engine holds now, counted from its tensors. Not collective.

        Gradients are all there between the last backward pass and the update only, and some
        optimizers' state only after their first update.
        """

    def before_updates(self, look: Callable[..., None]) -> Callable[[], None]:
        """Have ``look`` called whenever the optimizer is about to update; return what ends that."""


def is_copy(parameter: nn.Parameter) -> bool:
    """Return whether another pipeline stage owns ``parameter``: its optimizer, its state and its share of the norm."""
    return bool(getattr(parameter, "is_copy", False))


def whole_shape(parameter: nn.Parameter) -> torch.Size:
    """Return the shape on this tensor-parallel rank, also of a parameter that ZeRO 3 has partitioned."""
    return getattr(parameter, "whole_shape", parameter.shape)
