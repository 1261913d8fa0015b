"""The model as pipeline stages, on a schedule of ``megads.config.pipeline``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from megads.comm.groups import Groups
from megads.config.schema import RunConfig
from megads.config.stages import schedule_of
from megads.engine.micro_batches import MicroBatch
from megads.engine.native.engine import NativeEngine
from megads.engine.native.stage import Stage
from megads.engine.native.units import Unit
from megads.engine.tied_embedding import TiedEmbedding
from megads.models.gpt import GPT


class NativePipelineEngine(NativeEngine):
    """An :class:`megads.engine.base.Engine` whose model is cut over the pipe axis, in one or more chunks a stage.

    A micro-batch sends ``[B, s, H]`` over each boundary of chunks, once in each direction and in the model's type; s is
    ``SEQ / SP``, or that over TP with ``scatter_norms``. The optimizer steps all chunks at once. A unit is reduced as
    soon as its last gradient of the step is there, while stages and chunks before it still compute.

    Args:
        tied: the embedding that the end stages share; None on a rank that shares none.
    """

    def __init__(
        self,
        chunks: Sequence[GPT],
        units: Sequence[Unit],
        run: RunConfig,
        groups: Groups,
        device: torch.device,
        eod: int | None = None,
        tied: TiedEmbedding | None = None,
    ):
        self.tied = tied
        super().__init__(chunks, units, run, groups, device, eod)
        self.reducer.is_later = schedule_of(run) == "zb-h1"
        around, end = self.gatherer.backward, self.reducer.end_pass
        self.pipeline = Stage(chunks, groups, device, schedule_of(run), around_backward=around, end_pass=end)
        self.shared: Unit | None = None  # of the embedding that this rank owns, and another stage has a copy of
        if tied is not None and not tied.is_copy:
            everything = (*self.units, *self.frozen)
            self.shared = next(unit for unit in everything for each in unit.places if each.parameter is tied.weight)
            if not tied.is_frozen:
                self.reducer.hold(self.shared)

    def forward_backward(self, parts: Sequence[MicroBatch], weight: Tensor) -> Tensor:
        """Add the gradients of ``parts`` to the units; see :class:`NativeEngine`. Stages but the last find no loss."""
        for chunk in self.chunks:
            if not chunk.training:
                chunk.train()
        self.reducer.begin(len(parts))
        sums, last = self.no_sums(), self.chunks[-1]
        root = torch.full((), self.loss_scale / len(parts), device=self.device)
        self.pipeline.train(parts, weight, root, lambda loss: self.add(sums, loss, last))
        if self.tied is not None and not self.tied.is_frozen:
            gradient = self.tied.pass_gradient()
            if gradient is not None:
                self.reducer.add(self.tied.weight, gradient)
        return sums

    def eval_parts(self, parts: Sequence[MicroBatch], measure: Callable[[Any, Any], Tensor]) -> Iterable[Tensor | None]:
        """Pass micro-batches through the stages; the last one returns ``measure`` of their outputs and labels."""
        for chunk in self.chunks:
            chunk.eval()
        return self.pipeline.evaluate(parts, measure)

    def eval_part(self, part: MicroBatch, measure: Callable[[Any, Any], Tensor]) -> Tensor | None:
        """Return what :meth:`eval_parts` does, of one."""
        return next(iter(self.eval_parts([part], measure)))

    def weights_changed(self) -> None:
        """Have the model compute with the masters as they are now, tied copies too. Collective."""
        super().weights_changed()
        if self.tied is None:
            return
        weight = self.tied.weight.data
        if self.shared is not None:
            whole = self.gatherer.whole(self.shared) if self.stage == 3 else self.gatherer.wait(self.shared)
            weight = next(each.of(whole) for each in self.shared.places if each.parameter is self.tied.weight)
        self.tied.share(weight)
