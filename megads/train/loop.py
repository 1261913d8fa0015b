"""The training loop: batches to updates to numbers, until the end or a request to stop."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from megads.checkpoint.state import Progress
from megads.engine.base import StepResult
from megads.errors import TrainingError
from megads.models.flops import train_flops_per_token
from megads.monitor.log import LOG
from megads.monitor.metrics import MetricsFile
from megads.monitor.outcome import EXIT_DONE, EXIT_STOPPED, Outcome
from megads.monitor.text import step_line
from megads.monitor.throughput import Remaining, Speed, SpeedOf
from megads.train.evaluate import evaluate, perplexity
from megads.train.schedule import Schedule
from megads.train.setup import Training
from megads.train.stop import StopRequest
from megads.train.watchdog import Watchdog

FORECAST_AFTER = 10  # steps, whose speed tells whether the planned iterations fit into the allocation


class Loop:
    """Drives one :class:`Training` to its end.

    Every decision that ranks must share (stop, save, validate) is a pure function of the
    iteration, or agreed on by a collective; where a clock decides it is rank 0's.
    """

    def __init__(
        self, training: Training, stop: StopRequest, metrics: MetricsFile | None, watch: Watchdog | None = None
    ):
        run = training.run
        self.training = training
        self.stop = stop
        self.metrics = metrics  # on rank 0
        self.watch = watch
        self.schedule = Schedule.of(run)
        self.remaining = Remaining()
        self.speeds: list[float] = []
        self.skips_in_a_row = 0
        self.speed_of = SpeedOf(
            tokens_per_step=run.train.global_batch * run.model.seq_length,
            flops_per_token=train_flops_per_token(run.model, run.model.seq_length),
            num_devices=training.groups.grid.world_size,
            peak_tflops=training.peak_tflops,
        )

    def run(self) -> Outcome:
        """Train until the last iteration, or until somebody asks to stop."""
        t, train = self.training, self.training.run.train
        why = ""
        if t.progress.owes_validation or (t.progress.iteration == 0 and train.eval_at_start):
            why = self.validate()
        batches = t.batches("train", t.progress.consumed_samples)
        why = why or self.why_stop()
        self.remaining.start()
        while t.progress.iteration < train.train_iters and not why:
            self.step(batches)
            iteration = t.progress.iteration
            why = (self.validate() if self.validates_after(iteration) else "") or self.why_stop()
            if not why and _multiple(iteration, train.exit_interval):
                why = f"EXIT_INTERVAL={train.exit_interval}"
            if iteration == train.train_iters or why or _multiple(iteration, t.run.checkpoint.save_interval):
                self.save()
        iteration = t.progress.iteration
        if iteration >= train.train_iters:
            self.test()
            return Outcome(EXIT_DONE, "done", iteration, "done")
        where = f"saved at iteration {iteration}" if iteration else "before the first step"
        return Outcome(EXIT_STOPPED, f"{why}; {where}", iteration, "stopped")

    def validates_after(self, iteration: int) -> bool:
        """Return whether the run validates once ``iteration`` steps are done."""
        train = self.training.run.train
        return bool(train.eval_interval) and (
            iteration == train.train_iters or _multiple(iteration, train.eval_interval)
        )

    def why_stop(self) -> str:
        """Return why the run must stop now, the same on every rank; empty: there is time for a step. Collective."""
        return self.stop.agreed(validation=self.validates_after(self.training.progress.iteration + 1))

    def enter(self, phase: str) -> None:
        """Tell the watchdog what begins now."""
        if self.watch is not None:
            self.watch.iteration = self.training.progress.iteration
            self.watch.save_s = self.stop.deadline.measured_save_s or self.watch.save_s
            self.watch.enter(phase)

    def step(self, batches: Iterator[torch.Tensor]) -> None:
        """Do one optimizer step and tell of it. Its time is that of the whole step, data included."""
        self.enter("step")
        t = self.training
        started = time.perf_counter()
        lr = self.schedule.lr(t.progress.scheduled_samples)
        parts = [next(batches).to(t.device) for _ in range(t.micro_batches_per_step)]
        result = t.engine.train_step(parts, lr)
        loss = float(result.loss)
        took = time.perf_counter() - started
        speed = self.speed_of(took)
        self.stop.deadline.steps.append(took)
        t.progress = advance(t.progress, result, loss, t.run.train.global_batch)
        self.remaining.step_done()
        self.speeds.append(speed.tokens_per_s)
        if t.groups.rank == 0 and (result.skipped or _multiple(t.progress.iteration, t.run.log.log_interval)):
            self.tell(result, loss, lr, speed)
        if t.groups.rank == 0 and self.remaining.steps == FORECAST_AFTER:
            self.forecast()
        self.check_progress(result.skipped)

    def forecast(self) -> None:
        """Say whether the planned iterations fit into the allocation."""
        left = self.training.run.train.train_iters - self.training.progress.iteration
        if self.stop.deadline.ends_at and left:
            LOG.info("time     %s", self.stop.deadline.forecast(self.remaining.seconds(left), left))

    def check_progress(self, skipped: bool) -> None:
        """End a run that only skips steps: it looks busy and learns nothing.

        Raises:
            TrainingError: on every rank, when too many steps in a row were skipped.
        """
        self.skips_in_a_row = self.skips_in_a_row + 1 if skipped else 0
        limit, done = self.training.run.train.max_skipped, self.training.progress.iteration
        if limit and self.skips_in_a_row >= limit:
            raise TrainingError(
                f"{limit} steps in a row, to iteration {done}, were skipped because their gradients were not finite; "
                f"checkpoints are in {self.training.checkpoints}; lower LR, look at the data, "
                "or raise MAX_SKIPPED_STEPS"
            )

    def tell(self, result: StepResult, loss: float, lr: float, speed: Speed) -> None:
        """Log one step on rank 0: a line for people, a row for programs."""
        t, done = self.training, self.training.progress
        left = self.remaining.seconds(t.run.train.train_iters - done.iteration)
        line = step_line(
            done.iteration,
            t.run.train.train_iters,
            loss,
            lr,
            result.grad_norm,
            speed,
            left,
            scale=result.loss_scale,
            skipped=result.skipped,
        )
        LOG.info("%s", line)
        row = {
            "iteration": done.iteration,
            "consumed_samples": done.consumed_samples,
            "consumed_tokens": done.consumed_samples * t.run.model.seq_length,
            "lm_loss": loss,
            "learning_rate": lr,
            "grad_norm": result.grad_norm,
            "loss_scale": result.loss_scale,
            "skipped_iterations": done.skipped_iterations,
            "nan_iterations": done.nan_iterations,
            "global_batch_size": t.run.train.global_batch,
            **vars(speed),
            "memory_bytes": t.vendor.memory_bytes(t.device),
        }
        assert self.metrics is not None
        self.metrics.write(row)

    def validate(self) -> str:
        """Measure the loss on the validation samples, always the same ones. Collective.

        Returns:
            Why it was given up, for a stop request; the run does it again when it goes on.
        """
        t, started = self.training, time.perf_counter()
        loss, why = self.held_out("valid")
        t.progress = replace(t.progress, owes_validation=bool(why))
        if loss is None:
            return why
        self.stop.deadline.validated(time.perf_counter() - started)
        if t.progress.first_valid_loss is None:
            t.progress = replace(t.progress, first_valid_loss=loss)
        t.progress = replace(t.progress, last_valid_loss=loss)
        if self.metrics is not None:
            LOG.info("step %d: validation loss %.4f, perplexity %.4g", t.progress.iteration, loss, perplexity(loss))
            row = {"iteration": t.progress.iteration, "valid_loss": loss, "valid_ppl": perplexity(loss)}
            self.metrics.write({**row, "consumed_samples": t.progress.consumed_samples})
        return ""

    def test(self) -> None:
        """Measure the loss on the test samples, at the end of a run. Collective."""
        loss, _ = self.held_out("test")
        if loss is not None and self.metrics is not None:
            LOG.info("test loss %.4f, perplexity %.4g", loss, perplexity(loss))
            self.metrics.write({"iteration": self.training.progress.iteration, "test_loss": loss})

    def held_out(self, split: str) -> tuple[float | None, str]:
        """Return the mean loss on ``split``, None if the run has no such samples, and why it was given up if so."""
        t, why = self.training, [""]
        if t.splits.get(split) is None or not t.run.train.eval_iters:
            return None, ""
        self.enter("validation")

        def give_up() -> str:
            if self.watch is not None:
                self.watch.come_further()
            why[0] = self.stop.agreed(step=False)
            return why[0]

        batches = t.batches(split)
        steps = ([next(batches) for _ in range(t.micro_batches_per_step)] for _ in range(t.run.train.eval_iters))
        return evaluate(t.engine, steps, t.device, give_up), why[0]

    def save(self) -> None:
        """Write a checkpoint and say where and how fast. Collective."""
        self.enter("save")
        started = time.perf_counter()
        path = self.training.save()
        took = time.perf_counter() - started
        self.stop.deadline.saved(took)
        if self.training.groups.rank == 0:
            LOG.info("saved %s in %.2g s", path, took)

    def median_tokens_per_s(self) -> float:
        """Return the median speed of the steps since this start."""
        return statistics.median(self.speeds) if self.speeds else float("nan")


def advance(progress: Progress, result: StepResult, loss: float, global_batch: int) -> Progress:
    """Return the progress after one step."""
    return replace(
        progress,
        iteration=progress.iteration + 1,
        consumed_samples=progress.consumed_samples + global_batch,
        scheduled_samples=progress.scheduled_samples + (0 if result.skipped else global_batch),
        skipped_iterations=progress.skipped_iterations + result.skipped,
        nan_iterations=progress.nan_iterations + (not math.isfinite(loss)),
        first_loss=loss if progress.first_loss is None else progress.first_loss,
        last_loss=loss,
    )


def _multiple(iteration: int, interval: int) -> bool:
    return interval > 0 and iteration % interval == 0
