"""Tasks that a run is measured by while it trains: WikiText, LAMBADA, the loss of any text."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from megads.comm.messages import broadcast_value
from megads.config.schema import RunConfig
from megads.data.tokenizers.build import load_tokenizer
from megads.errors import MegadsError
from megads.evaluate.live import LiveModel, score_live
from megads.evaluate.tasks import Options, Task, make_task
from megads.evaluate.windows import Windows
from megads.inference.load import limits
from megads.monitor.log import LOG
from megads.train.evaluate import Pace
from megads.train.setup import Training

if TYPE_CHECKING:
    from megads.train.loop import Loop

KEY = "task"
"""Rows of metrics.jsonl have ``task/LABEL/NUMBER``."""


@dataclass(frozen=True)
class Prepared:
    """Windows of one task, as ranks send them to each other."""

    label: str
    tokens: bytes  # int32
    spans: bytes  # [N, 3] int64

    def windows(self) -> Windows:
        """Return the windows."""
        return Windows(np.frombuffer(self.tokens, np.int32), np.frombuffer(self.spans, np.int64).reshape(-1, 3))


class RunTasks:
    """The tasks of EVAL_TASKS on a run's live engine. Rank 0 reads the files once, before the first step. Collective.

    A file that changes or vanishes later changes nothing until the run is started again.

    Raises:
        ConfigError, DataError: on every rank, when a file cannot be used.
    """

    def __init__(self, training: Training):
        self.training, run = training, training.run
        self.tasks: list[Task] = []  # on rank 0
        self.prepared: list[Prepared] = []
        if not run.tasks.files:
            return
        self.context = limits(run.model, training.inherited.get("max_seq_length", 0))[0]
        given: list[Prepared] | MegadsError = []
        if training.groups.rank == 0:
            given = self._read(run)
        given = broadcast_value(given)
        if isinstance(given, MegadsError):
            raise given
        self.prepared = given

    def _read(self, run: RunConfig) -> list[Prepared] | MegadsError:
        started, prepared = time.perf_counter(), []
        try:
            tokenizer = load_tokenizer(run)
            options = Options(self.context, run.tasks.stride, run.tasks.strict_lambada)
            for file in run.tasks.list():
                task = make_task(file.task, file.path, tokenizer, options)
                self.tasks.append(task)
                windows = task.windows
                prepared.append(Prepared(file.label, windows.tokens.tobytes(), windows.spans.tobytes()))
        except MegadsError as error:
            return error
        windows_of = ", ".join(
            f"{each.label} {len(task.windows)}" for each, task in zip(prepared, self.tasks, strict=True)
        )
        LOG.info("tasks    %s windows; read in %.1f s", windows_of, time.perf_counter() - started)
        return prepared

    def measure_at_start(self, loop: Loop) -> str:
        """Do what :meth:`measure` does before the first step: what a run owes, and the validation of a new one."""
        progress = self.training.progress
        is_first = progress.iteration == 0 and self.training.run.train.eval_at_start
        why = loop.validate() if progress.owes_validation or is_first else ""
        return why or (self.score(loop) if progress.owes_tasks else "")

    def measure(self, loop: Loop, before: int, iteration: int) -> str:
        """Validate and score tasks if it is time after step ``iteration``; ``before`` was the last look. Collective.

        Returns:
            Why either was given up, for a stop request; the run does it again on resume.
        """
        t, train = self.training, self.training.run.train
        why = loop.validate() if loop.validates_after(before, iteration) else ""
        interval = self.training.run.tasks.interval
        is_turn = bool(interval) and iteration // interval > before // interval
        if self.prepared and (is_turn or iteration == train.train_iters):
            t.progress = replace(t.progress, owes_tasks=bool(why))
            why = why or self.score(loop)
        return why

    def score(self, loop: Loop) -> str:
        """Score every task and report its numbers; return why it was given up, as :meth:`measure`. Collective."""
        if not self.prepared:
            return ""
        why = [""]

        def give_up() -> str:
            if loop.watch is not None:
                loop.watch.come_further()
            why[0] = loop.stop.agreed(step=False)
            return why[0]

        loop.enter("validation")
        for place, prepared in enumerate(self.prepared):
            if (place and give_up()) or not self._score(place, prepared, loop, give_up):
                break
        self.training.progress = replace(self.training.progress, owes_tasks=bool(why[0]))
        return why[0]

    def _score(self, place: int, prepared: Prepared, loop: Loop, give_up: Callable[[], object]) -> bool:
        t = self.training
        scattered = t.run.parallel.scatter_norms
        rows, known = t.run.train.micro_batch, t.run.model.vocab_size
        model = LiveModel(t.engine, t.groups, t.device, rows, self.context, scattered, known)
        windows = prepared.windows()
        scores = score_live(model, windows, give_up, Pace(len(windows), prepared.label).after)
        if scores is not None and loop.reporter:
            task = self.tasks[place]
            numbers = task.result(scores)
            row = {f"{KEY}/{prepared.label}/{name}": value for name, value in numbers.items()}
            loop.reporter.task(f"{prepared.label}: {task.line.format(**numbers)}", row)
        return scores is not None
