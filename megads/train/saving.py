"""When a run is saved, what of it, and what happens when it cannot be."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from megads.checkpoint.owned_shard import OwnedShard
from megads.checkpoint.resume.compatibility import shape_of
from megads.checkpoint.resume.start_point import goes_back_to
from megads.checkpoint.save import WRITING, Saver, Snapshot
from megads.config.deepspeed.dictionary import effective_zero_stage
from megads.config.run_folder import note_saved
from megads.errors import CheckpointError
from megads.monitor.log import LOG
from megads.monitor.metrics import MetricsFile
from megads.monitor.trackers.metrics_sink import MetricsSink
from megads.text.units import duration, seconds, size
from megads.train.fault.kept_claim import NOT_OURS, KeptClaim
from megads.train.fault.stop import StopRequest
from megads.train.function import code_and_device, describe
from megads.train.setup import Training

CURE = "free some space or set CKPT_DIR, then rerun the same command"


def snapshot_of(training: Training) -> Snapshot:
    """Return this rank's part of the state of ``training``; it is read when it is saved. Collective."""
    run, groups = training.run, training.groups
    grid = groups.grid
    return Snapshot(
        progress=training.progress,
        shards=_owned_shards(training),
        scalars=training.engine.state.scalars() if run.checkpoint.save_optim else {},
        tensors=training.parameters,
        model=shape_of(run),
        settings=run.model_dump(),
        about={
            **training.inherited,
            **code_and_device(training),
            "data": training.data,
            **describe(training),
        },
        layout={
            **{axis: grid.degree(axis) for axis in ("pipe", "data", "seq", "tensor")},
            "zero_stage": effective_zero_stage(run),
        },
        states=training.engine.state.whole_states() if run.checkpoint.save_optim else (),
    )


def _owned_shards(training: Training) -> Iterator[OwnedShard]:
    for shard in training.engine.state.owned_shards():
        if not training.run.checkpoint.save_optim:
            shard = replace(shard, tensors={"weight": shard.tensors["weight"]})
        yield shard


class Saving:
    """Saves one run: now and then while it runs, and at its end.

    A failed save before the last one is reported and the run continues, until more than
    ``checkpoint.failed_saves`` in a row did; the last one must succeed.

    ``stop`` agrees on when a save in the background is complete, and its deadline learns from each save;
    ``enter`` informs the watchdog that ranks are about to wait for their disks. Nothing is published once ``claim``,
    rank 0's on the run folder, is lost.
    """

    def __init__(
        self,
        training: Training,
        stop: StopRequest,
        metrics: MetricsFile | MetricsSink | None,
        enter: Callable[[], None] = lambda: None,
        claim: KeptClaim | None = None,
    ):
        settings = training.run.checkpoint
        self.training, self.stop, self.metrics, self.enter = training, stop, metrics, enter
        self.saver = Saver(
            training.checkpoints,
            training.groups,
            keep=settings.keep,
            keep_every=settings.keep_every,
            writers=settings.writers,
            gives_up_later=goes_back_to(training.run, training.checkpoints) > 0,
            check=(claim or KeptClaim()).check,
        )
        stop.saving = lambda: self.saver.state
        self.failed = 0  # in a row
        self.newest = training.progress.iteration  # that this start saved, or from which it resumes
        self._underway = (0, 0.0)  # a save in the background: of which iteration, seconds that training paused for it

    def prepare(self) -> None:
        """Take the host memory that saves in the background need, before the first step."""
        settings = self.training.run.checkpoint
        if not settings.in_background or not settings.save_interval:
            return
        started = time.perf_counter()
        taken = self.saver.reserve(_owned_shards(self.training))
        self._log(
            "saves    in the background; %s of host memory per rank for the copy, allocated in %s",
            size(taken),
            duration(time.perf_counter() - started),
        )
        if problem := self.saver.copy.problem:
            text = "saves    copies to the host pause training longer: no page-locked memory (%s); see ulimit -l"
            self._log(text, problem, level=logging.WARNING)

    def interim(self) -> None:
        """Save what the run is now, and continue. Collective.

        Raises:
            CheckpointError: on every rank, when too many saves in a row failed.
        """
        if self.training.run.checkpoint.in_background:
            self.complete()
            self._start()
        else:
            self._attempt(self._block)

    def last(self) -> None:
        """Save what the run is now, before it ends. Collective; a save that was started is completed first.

        Raises:
            CheckpointError: on every rank, when one could not write.
        """
        if self.saver.is_writing:
            try:
                self._finish()
            except CheckpointError as error:
                # The one that follows holds more, and decides.
                self._log("%s", error, level=logging.ERROR)
        try:
            self._block()
        except CheckpointError as error:
            raise CheckpointError(f"{error}" if NOT_OURS in str(error) else f"{error}; {CURE}") from None
        self.saver.join_sweeper()

    def complete(self) -> None:
        """Complete a save in the background, waiting for it if need be. Collective.

        Raises:
            CheckpointError: as :meth:`interim`.
        """
        if self.saver.is_writing:
            self._attempt(self._finish)

    def settle(self) -> None:
        """Complete a save in the background if, when ranks last agreed, none was writing any more. Collective.

        Raises:
            CheckpointError: as :meth:`interim`.
        """
        if self.saver.is_writing and self.stop.saves != WRITING:
            self._attempt(lambda: self._finish(self.stop.saves))

    def _attempt(self, save: Callable[[], None]) -> None:
        """Save; a failure ends the run only when there were too many in a row."""
        limit = self.training.run.checkpoint.failed_saves
        try:
            save()
        except CheckpointError as error:
            self.failed += 1
            if NOT_OURS in str(error):
                raise
            if self.failed > limit:
                raise CheckpointError(
                    f"{error}; {self.failed} saves in a row failed, MAX_FAILED_SAVES={limit} may; {CURE}"
                ) from None
            self._log(
                "%s; training continues, and the next save is at the next multiple of SAVE_INTERVAL: free some "
                "space before; %d more in a row may fail",
                error,
                limit - self.failed,
                level=logging.ERROR,
            )
        else:
            self.failed = 0

    def _block(self) -> None:
        self.enter()
        iteration, started = self.training.progress.iteration, time.perf_counter()
        path = self.saver.save(snapshot_of(self.training))
        took = time.perf_counter() - started
        self._note(iteration, took, took)
        self._log("saved %s in %s", path, seconds(took))

    def _start(self) -> None:
        started = time.perf_counter()
        self.stop.deadline.begins_to_write()
        self.saver.start(snapshot_of(self.training))
        self._underway = self.training.progress.iteration, time.perf_counter() - started

    def _finish(self, state: int = WRITING) -> None:
        self.enter()
        (iteration, copied), started = self._underway, time.perf_counter()
        self.stop.deadline.is_writing = False
        path = self.saver.finish(state)
        waited = time.perf_counter() - started
        took, pause = copied + self.saver.work_s, copied + waited
        self._note(iteration, took, pause)
        self._log("saved %s in %s, training paused %s", path, seconds(took), seconds(pause))

    def _note(self, iteration: int, took: float, pause: float) -> None:
        self.newest = iteration
        self.stop.deadline.saved(took)
        if self.training.groups.rank == 0:
            note_saved(self.training.run_dir)
        if self.metrics is not None:
            self.metrics.write({"iteration": iteration, "save_s": took, "save_pause_s": pause})

    def _log(self, text: str, *words: Any, level: int = logging.INFO) -> None:
        if self.training.groups.rank == 0:
            LOG.log(level, text, *words)
