"""The training loop of a task: epochs, the score after each, and the best checkpoint."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

from megads.checkpoint.format.folders import checkpoint_name
from megads.data.tasks.task import Task, read_task
from megads.errors import EXIT_DONE
from megads.monitor.log import LOG
from megads.monitor.run_state.outcome import Outcome
from megads.text.plural import plural
from megads.train.loop import Loop, reaches
from megads.train.predictions import prediction_files, write_predictions
from megads.train.setup import Training
from megads.train.task_scores import TaskScores, answers_of, best_row, score_files


class TaskLoop(Loop):
    """A :class:`megads.train.loop.Loop` that scores the files of a task after every epoch and saves then.

    The checkpoint with the highest accuracy stays whatever ``CKPT_KEEP`` says; of equal ones the first.
    """

    def __init__(self, training: Training, *more: Any, **named: Any):
        super().__init__(training, *more, **named)
        self.task: Task = read_task(training.run.finetune)
        samples = training.splits["train"]
        self.epoch_steps = samples.per_epoch // training.run.train.global_batch if samples is not None else 0
        self._pin()

    def run(self) -> Outcome:
        """Train and score; see :meth:`megads.train.loop.Loop.run`."""
        outcome = super().run()
        done = self.training.progress
        if outcome.exit_code != EXIT_DONE or done.best_accuracy is None:
            return outcome
        where = self.training.checkpoints / checkpoint_name(done.best_iteration)
        best = f"best accuracy {done.best_accuracy:.2%}, {where}"
        if self.training.groups.rank == 0:
            LOG.info("best     accuracy %.2f%%: %s", 100 * done.best_accuracy, where)
        return replace(outcome, message=f"{outcome.message}; {best}")

    def validates_after(self, before: int, iteration: int) -> bool:
        """Return whether an epoch, or the run, ends after ``iteration``."""
        return iteration == self.training.run.train.train_iters or reaches(before, iteration, self.epoch_steps)

    def saves_after(self, before: int, iteration: int) -> bool:
        """Return whether the run saves: after every epoch, and as its settings say."""
        return super().saves_after(before, iteration) or reaches(before, iteration, self.epoch_steps)

    def validate(self) -> str:
        """Score every validation file. Collective.

        Returns:
            Why it was given up, for a stop request; the run does it again on resume.
        """
        t, started = self.training, time.perf_counter()
        if not t.splits["valid"]:
            return ""
        self.enter("validation")
        found, why = self._score()
        t.progress = replace(t.progress, owes_validation=bool(why))
        if found is None:
            return why
        self.stop.deadline.validated(time.perf_counter() - started, sum(each.blocks for each in t.splits["valid"]))
        accuracy, best, loss = found.overall.accuracy, t.progress.best_accuracy, found.row()["valid_loss"]
        first = loss if t.progress.first_valid_loss is None else t.progress.first_valid_loss
        t.progress = replace(t.progress, first_valid_loss=first, last_valid_loss=loss)
        if t.progress.iteration and (best is None or accuracy > best):
            t.progress = replace(t.progress, best_accuracy=accuracy, best_iteration=t.progress.iteration)
            self._pin()
        if self.reporter:
            self._report(found)
        if t.progress.iteration and t.progress.best_iteration == t.progress.iteration:
            why = self._predict()
            t.progress = replace(t.progress, owes_validation=bool(why))
        return why

    def test(self) -> str:
        """Predict the test files where validation did not: it has no files, or nothing is trained. Collective.

        Returns:
            Why it was given up.
        """
        if self.training.run.train.evaluate_only:
            return self._predict()
        if not self.training.splits["valid"]:
            self._predict(gives_up=False)  # the run is complete, and a later start would not do it
        return ""

    def _give_up(self, why: list[str]) -> str:
        """Return why scoring is to end now, and keep it in ``why``. Collective."""
        if self.watch is not None:
            self.watch.come_further()
        why[0] = self.stop.agreed(step=False)
        return why[0]

    def _predict(self, *, gives_up: bool = True) -> str:
        """Predict every test file and write the answers; return why it was given up. Collective."""
        t, why = self.training, [""]
        files = t.splits["test"] or ()
        for path, samples in zip(prediction_files(t.run_dir, files), files, strict=True):
            answers = answers_of(
                t.engine,
                samples,
                t.groups,
                t.device,
                workers=t.run.data.num_workers,
                give_up=partial(self._give_up, why) if gives_up else lambda: False,
            )
            if answers is None:
                break
            if t.groups.rank == 0:
                write_predictions(path, self.task, samples, answers)
                LOG.info("predicted %s: %s", plural(len(answers), "example"), path)
        return why[0]

    def _score(self) -> tuple[TaskScores | None, str]:
        t, why = self.training, [""]
        found = score_files(
            t.engine,
            t.splits["valid"],
            t.groups,
            t.device,
            workers=t.run.data.num_workers,
            has_f1=self.task.has_f1,
            classes=len(self.task.classes),
            give_up=partial(self._give_up, why),
        )
        return found, why[0]

    def _report(self, found: TaskScores) -> None:
        """Log the scores and write their row, on rank 0."""
        assert self.reporter is not None
        self.reporter.settle()
        done, run = self.training.progress, self.training.run
        epoch = done.iteration / self.epoch_steps if self.epoch_steps else 0.0
        where = f"epoch {epoch:g} of {run.finetune.epochs}: " if self.epoch_steps else ""
        is_best = done.best_iteration == done.iteration and done.iteration > 0
        LOG.info("%s%s%s", where, found.line(), "; the best so far" if is_best else "")
        self.reporter.metrics.write(
            {
                "iteration": done.iteration,
                "epoch": epoch,
                **found.row(),
                **best_row(done),
                "consumed_samples": done.consumed_samples,
            }
        )

    def _pin(self) -> None:
        self.saving.saver.pinned = self.training.progress.best_iteration
