"""The training loop of chats: epochs, the loss on the answers of every file after each, and the best checkpoint."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from megads.checkpoint.format.folders import checkpoint_name
from megads.data.chat.samples import FileRows, TrainRows
from megads.data.loading.batches import Batches, read_ahead
from megads.data.tasks.task import short_names
from megads.errors import EXIT_DONE
from megads.monitor.log import LOG
from megads.monitor.run_state.outcome import Outcome
from megads.text.units import four_digits
from megads.train.evaluate import Pace, perplexity
from megads.train.loop import Loop
from megads.train.setup import Training
from megads.train.task_scores import AT_ONCE


@dataclass(frozen=True)
class AnswerLoss:
    """The loss of the answers of some chats, in nats."""

    total: float
    tokens: int

    @property
    def mean(self) -> float:
        """Of a token."""
        return self.total / self.tokens


class ChatLoop(Loop):
    """A :class:`megads.train.loop.Loop` that scores files of chats after every epoch and saves then.

    The checkpoint with the lowest loss stays whatever ``CKPT_KEEP`` says; of equal ones the first.
    """

    def __init__(self, training: Training, *more: Any, **named: Any):
        super().__init__(training, *more, **named)
        samples: TrainRows | None = training.splits["train"]
        self.epochs = samples.epochs if samples is not None else None
        self._pin()

    def run(self) -> Outcome:
        """Train and score; see :meth:`megads.train.loop.Loop.run`."""
        outcome = super().run()
        done, rank = self.training.progress, self.training.groups.rank
        if outcome.exit_code != EXIT_DONE:
            return outcome
        if done.best_valid_loss is not None:
            where = self.training.checkpoints / checkpoint_name(done.best_iteration)
            best = f"best loss {done.best_valid_loss:.4f}, {where}"
            if rank == 0:
                LOG.info("best     loss %.4f: %s", done.best_valid_loss, where)
            outcome = replace(outcome, message=f"{outcome.message}; {best}")
        if rank == 0 and not self.training.run.train.evaluate_only:
            folder = shlex.quote(str(self.training.run_dir))
            LOG.info("talk     megads generate %s --chat, or megads serve %s", folder, folder)
        return outcome

    def validates_after(self, before: int, iteration: int) -> bool:
        """Return whether an epoch, or the run, ends after ``iteration``."""
        return iteration == self.training.run.train.train_iters or self._ends(before, iteration)

    def saves_after(self, before: int, iteration: int) -> bool:
        """Return whether the run saves: after every epoch that is scored, and as its settings say."""
        is_scored = bool(self.training.splits["valid"]) and self._ends(before, iteration)
        return is_scored or super().saves_after(before, iteration)

    def _ends(self, before: int, iteration: int) -> bool:
        """Return whether an epoch ends behind step ``before``, up to ``iteration``."""
        return self.epochs is not None and self.epochs.epoch_of(before) != self.epochs.epoch_of(iteration)

    def epoch(self) -> float:
        """Return how many epochs are done, the part of one by its steps."""
        step = self.training.progress.iteration
        if self.epochs is None:
            return 0.0
        number = self.epochs.epoch_of(step)
        first, end = self.epochs.steps_until(number), self.epochs.steps_until(number + 1)
        return number + (step - first) / (end - first)

    def validate(self) -> str:
        """Find the loss of every validation file. Collective.

        Returns:
            Why it was given up, for a stop request; the run does it again on resume.
        """
        t, started, why = self.training, time.perf_counter(), [""]
        files: tuple[FileRows, ...] = t.splits["valid"]
        if not files:
            return ""
        self.enter("validation")
        found: dict[str, AnswerLoss] = {}
        names = short_names([each.file.path for each in files])
        pace = Pace(sum(each.blocks for each in files))
        for name, rows in zip(names, files, strict=True):
            loss = None if found and self._give_up(why) else self._loss_of(rows, partial(self._give_up, why), pace)
            if loss is None:
                break
            found[name] = loss
        t.progress = replace(t.progress, owes_validation=bool(why[0]))
        if len(found) < len(files):
            return why[0]
        self.stop.deadline.validated(time.perf_counter() - started, sum(each.blocks for each in files))
        self._note(found)
        return why[0]

    def test(self) -> str:
        """Return "": chats have no files to predict."""
        return ""

    def _give_up(self, why: list[str]) -> str:
        """Return why scoring is to end now, and keep it in ``why``. Collective."""
        if self.watch is not None:
            self.watch.come_further()
        why[0] = self.stop.agreed(step=False)
        return why[0]

    def _loss_of(self, rows: FileRows, give_up: Callable[[], object], pace: Pace) -> AnswerLoss | None:
        """Return the loss of a file, the same on every rank; None when it was given up. Collective."""
        t = self.training
        micro_batch = rows.block // t.groups.data_size
        batches = Batches(rows, micro_batch, t.groups.data_rank, t.groups.data_size)  # type: ignore[arg-type]
        losses, tokens = [], 0
        with read_ahead(batches, t.run.data.num_workers, AT_ONCE, rows.width, t.engine.prepare) as reader:
            for first in range(0, rows.blocks, AT_ONCE):
                if first and give_up():
                    return None
                count = min(AT_ONCE, rows.blocks - first)
                table = t.engine.eval_losses([next(reader) for _ in range(count)])[:, :2].tolist()
                losses += [loss for loss, _ in table]
                tokens += sum(round(counted) for _, counted in table)
                pace.after(first + count)
        return AnswerLoss(math.fsum(losses), tokens)

    def _note(self, found: dict[str, AnswerLoss]) -> None:
        """Keep the losses in the progress of the run, and report them on rank 0."""
        t = self.training
        overall = AnswerLoss(sum(each.total for each in found.values()), sum(each.tokens for each in found.values()))
        loss, done = overall.mean, t.progress
        first = loss if done.first_valid_loss is None else done.first_valid_loss
        t.progress = done = replace(done, first_valid_loss=first, last_valid_loss=loss)
        best = done.best_valid_loss
        is_best = bool(done.iteration) and not t.run.train.evaluate_only and (best is None or loss < best)
        if is_best:
            t.progress = done = replace(done, best_valid_loss=loss, best_iteration=done.iteration)
            self._pin()
        if self.reporter is None:
            return
        self.reporter.settle()
        many = found if len(found) > 1 else {}
        words = ", ".join(f"{name} {each.mean:.4f}" for name, each in many.items())
        epoch = f"epoch {self.epoch():.4g}: " if self.epochs is not None else ""
        text = f"loss {loss:.4f}, perplexity {four_digits(perplexity(loss))} on {overall.tokens} tokens of answers"
        more = f" ({words})" if words else ""
        LOG.info("%s%s%s%s", epoch, text, more, "; the best so far" if is_best else "")
        row: dict[str, Any] = {"iteration": done.iteration, "epoch": self.epoch(), "valid_loss": loss}
        row |= {f"valid_loss/{name}": each.mean for name, each in many.items()}
        if done.best_valid_loss is not None:
            row |= {"best_valid_loss": done.best_valid_loss, "best_iteration": done.best_iteration}
        self.reporter.metrics.write({**row, "consumed_samples": done.consumed_samples})

    def _pin(self) -> None:
        self.saving.saver.pinned = self.training.progress.best_iteration
