"""The first tensor of a step that is not finite: found on all ranks, reported with its place, kept to be replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from megads.checkpoint.resume.progress import Progress
from megads.checkpoint.save import Saver
from megads.comm.messages import all_gather_values
from megads.errors import CheckpointError, ConfigError
from megads.monitor.log import LOG
from megads.train.numbers.kept import CHECKPOINTS, Kept, folder_of, write_kept
from megads.train.numbers.operators import Origin, watched, wrong_weight
from megads.train.saving import snapshot_of
from megads.train.setup import Training, end_of_document

EVENTS = 3
"""Steps of a start that are looked into; the first one's weights are kept."""


@dataclass(frozen=True)
class _Found:
    """What a rank found."""

    rank: int
    origin: Origin

    @property
    def order(self) -> tuple[Any, ...]:
        """The first of all ranks is the least: what names an operator, then the pass, then the micro-batch."""
        passes = ("weights", "forward", "backward").index(self.origin.phase)
        has_operator = bool(self.origin.operator) or not passes
        return not has_operator, passes, self.origin.micro_batch, self.origin.order, self.rank


class NonFinite:
    """Looks into the steps of one run that were not finite. All ranks call it in the same steps."""

    def __init__(self, training: Training):
        self.training = training
        self.keeps = training.run.stability.nonfinite_keep
        self.events = 0

    @property
    def wants(self) -> bool:
        """Whether the next such step is looked into, the same on every rank."""
        return self.keeps != "nothing" and self.events < EVENTS

    def look(self, done: Progress, parts: Sequence[Tensor], lr: float, loss_scale: float) -> None:
        """Compute the step after ``done`` again, which changed no weight, and report where it went wrong. Collective.

        Args:
            parts: this rank's micro-batches of the step.
        """
        self.events += 1
        t, iteration = self.training, done.iteration + 1
        mine = self._find(done, parts, lr)
        found: list[_Found] = list(filter(None, all_gather_values(mine)))
        if not found:
            self._say(
                f"step {iteration}: not finite, but every number is when the step is computed again with the same "
                "weights and batch: suspect a device, its memory or a kernel that is not deterministic; run "
                "`megads doctor` and `megads bench` on these hosts"
            )
            return
        first = min(found, key=lambda each: each.order)
        folder = folder_of(t.run_dir, iteration)
        problem = self._keep(folder, done, parts, first, loss_scale)
        problem = next(filter(None, all_gather_values(problem)), "") or self._keep_weights(folder, done)
        others = len(found) - 1
        also = f"; so it is on {others} more rank{'s' if others > 1 else ''}" if others else ""
        place = f"rank {first.rank}" + (f" ({t.hosts[first.rank]})" if t.hosts else "")
        text = f"step {iteration}: first not finite on {place}: {first.origin.line()}{also}"
        self._say(f"{text}; {problem}" if problem else f"{text}; replay it on one rank: megads replay {folder}")

    def _find(self, done: Progress, parts: Sequence[Tensor], lr: float) -> _Found | None:
        """Return what this rank finds in the step. Collective."""
        t, engine = self.training, self.training.engine
        chunks: Sequence[nn.Module] = getattr(engine, "chunks", None) or [engine.module]
        counted = engine.state.scalars()
        weight = wrong_weight(chunks)
        with watched(chunks, is_compiled=t.run.engine.kernels == "compiled") as watch:
            # A step that is rejected changes nothing.
            engine.train_step(parts, lr, first_sample=done.consumed_samples, accepts=lambda loss: False)
        engine.state.load_scalars(counted)
        origin = weight or watch.verdict()
        return None if origin is None else _Found(t.groups.rank, origin)

    def _keep(self, folder: Path, done: Progress, parts: Sequence[Tensor], first: _Found, loss_scale: float) -> str:
        """Write the report on the rank that found it; return what went wrong."""
        t, at = self.training, min(first.origin.micro_batch, len(parts) - 1)
        if t.groups.rank != first.rank:
            return ""
        place = (at * t.groups.data_size + t.groups.data_rank) * len(parts[at])
        kept = Kept(
            done.iteration + 1,
            first.origin,
            first.rank,
            t.hosts[first.rank] if t.hosts else "",
            done.consumed_samples + place,
            parts[at].cpu().tolist(),
            len(parts),
            loss_scale,
            end_of_document(t.run),
        )
        try:
            write_kept(folder, kept)
        except ConfigError as error:
            return f"its batch is not kept: {error}"
        return ""

    def _keep_weights(self, folder: Path, done: Progress) -> str:
        """Save the weights of the step, of the first event of a start; return what went wrong. Collective."""
        t = self.training
        if self.keeps != "weights" or self.events > 1 or t.run.model.lora_rank:
            return ""
        run = t.run.model_copy(update={"checkpoint": t.run.checkpoint.model_copy(update={"save_optim": False})})
        saver = Saver(folder / CHECKPOINTS, t.groups)
        try:
            saver.save(snapshot_of(replace(t, run=run, progress=done)))
        except CheckpointError as error:
            return f"its weights are not kept, megads replay {folder} takes the newest checkpoint's: {error}"
        return ""

    def _say(self, text: str) -> None:
        if self.training.groups.rank == 0:
            LOG.warning("%s", text)
