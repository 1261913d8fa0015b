"""What rank 0 reports a run while it runs: lines for people, rows for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from megads.checkpoint.resume.progress import Progress
from megads.config.data_stages.views import tokens_until
from megads.config.schedule.batches import BatchSchedule
from megads.config.schedule.rates import Rates
from megads.engine.base import StepResult
from megads.monitor.interval import Interval, megatron_line, megatron_validation_line, step_line
from megads.monitor.log import ALSO, FILE, LOG
from megads.monitor.metrics import MetricsFile
from megads.monitor.predicted import MeasuredStep
from megads.monitor.run_state.outcome import Outcome
from megads.monitor.throughput import Speed
from megads.monitor.trackers.metrics_sink import MetricsSink
from megads.text.units import count
from megads.timing.stragglers import Stragglers, straggler_line
from megads.train.evaluate import HeldOut, perplexity
from megads.train.fault.anomaly import Anomaly
from megads.train.predicted import clues_of, comparison_of, recorded, report
from megads.train.profile.profile import MemoryFacts
from megads.train.setup import Training
from megads.train.stage_report import StageReport


@dataclass(frozen=True)
class StepFacts:
    """What is known of a step when it is done."""

    result: StepResult
    loss: float  # nats per token
    rates: Rates
    speed: Speed
    batch: int  # samples
    waited_s: float  # for data
    done: Progress  # after it
    left_s: Callable[[], float]  # the run's, at the present speed; called before the next step
    times: Mapping[str, float]  # entries of the row: what the step's time was spent on

    @cached_property
    def terms(self) -> dict[str, float]:
        """The terms of the loss by name; empty where it is one."""
        return {name: float(each) for name, each in self.result.losses.items()}


class StepReporter:
    """Reports the steps and validations of one run, on rank 0; the progress of ``training`` is that after them."""

    def __init__(self, training: Training, metrics: MetricsFile | MetricsSink):
        self.training = training
        self.metrics = metrics if isinstance(metrics, MetricsSink) else MetricsSink(metrics)
        self.sizes = BatchSchedule.of(training.run)
        self.interval = Interval()
        self.comparison = comparison_of(training)
        self.used: dict[str, float] = {}  # energy
        self.shown_loss: float | None = None  # of the last line
        self.stages = StageReport(training.run)

    def step(self, facts: StepFacts) -> None:
        """Take note of one step, and report it if it is its turn, in the background.

        A skipped step is reported whenever it comes. Rows are of their own step alone; the lines
        are of all steps since the last one.
        """
        due = facts.done.iteration % self.training.run.log.log_interval == 0
        shown = due or facts.result.skipped
        t, takes = self.training, shown or self.metrics.wants(facts.done.iteration)
        # What the next step changes is looked at now.
        _ = facts.terms
        left_s, memory = facts.left_s() if shown else 0.0, t.vendor.memory_bytes(t.device) if takes else 0
        self.metrics.background.soon(partial(self._step, facts, left_s, memory, due=due, shown=shown, takes=takes))

    def _step(self, facts: StepFacts, left_s: float, memory_bytes: int, *, due: bool, shown: bool, takes: bool) -> None:
        terms = facts.terms
        self.interval.add(facts.loss, facts.speed, skipped=facts.result.skipped, waited_s=facts.waited_s, terms=terms)
        self.comparison.add(MeasuredStep(facts.speed.step_time_s, facts.waited_s, facts.times), facts.batch)
        self.stages.report(facts.done.iteration, facts.done.consumed_samples - facts.batch)
        if not takes:
            return
        row = {**self._row(facts), "memory_bytes": memory_bytes}
        if due and self.training.run.log.log_interval > 1:
            means = self.interval.mean_terms or {"lm_loss": self.interval.loss}
            row |= {f"{name}_mean": value for name, value in means.items()}
        if shown:
            self._log(facts, left_s, due=due)
        self.metrics.write(row, reported=shown)
        if due:
            self.interval = Interval()

    def last_loss(self) -> float | None:
        """Return the mean loss of the steps since the last line; of that line if none came since, None without one."""
        return self.interval.loss if self.interval.losses else self.shown_loss

    def settle(self) -> None:
        """Wait until every step so far is reported: what is reported now comes behind them."""
        self.metrics.background.settle()

    def _log(self, facts: StepFacts, left_s: float, *, due: bool) -> None:
        t, done, result = self.training, facts.done, facts.result
        interval = self.interval
        if not due:
            interval = Interval()
            interval.add(facts.loss, facts.speed, skipped=False, waited_s=facts.waited_s, terms=facts.terms)
        loss = interval.loss if interval.losses else facts.loss
        self.shown_loss = loss
        line = step_line(
            done.iteration,
            t.run.train.train_iters,
            loss,
            facts.rates.lr,
            result.grad_norm,
            interval.speed,
            left_s,
            batch=facts.batch if facts.batch < self.sizes.final else 0,
            scale=result.loss_scale,
            waited=interval.waited_s / interval.seconds,
            skipped=_why_skipped(result),
            terms=interval.mean_terms or facts.terms,
        )
        as_megatron = t.run.log.log_line == "megatron"
        if not due:
            LOG.info("%s", line, extra=FILE if as_megatron else None)
            return
        family = megatron_line(
            done.iteration,
            t.run.train.train_iters,
            done.consumed_samples,
            interval,
            lr=facts.rates.lr,
            batch=facts.batch,
            loss_scale=result.loss_scale,
            grad_norm=result.grad_norm,
            num_zeros=result.num_zeros,
            params_norm=result.params_norm,
        )
        shown, other = (family, line) if as_megatron else (line, family)
        LOG.info("%s", shown, extra={ALSO: other})

    def _row(self, facts: StepFacts) -> dict[str, Any]:
        t, done, speed = self.training, facts.done, facts.speed
        return {
            "iteration": done.iteration,
            **self.consumed(done),
            **({"loss": facts.loss, **facts.terms} if facts.terms else {"lm_loss": facts.loss}),
            "learning_rate": facts.rates.lr,
            "weight_decay": facts.rates.weight_decay,
            "grad_norm": facts.result.grad_norm,
            **({"num_zeros": facts.result.num_zeros} if t.run.log.num_zeros else {}),
            **({"params_norm": facts.result.params_norm} if t.run.log.params_norm else {}),
            "loss_scale": facts.result.loss_scale,
            "skipped_iterations": done.skipped_iterations,
            "nan_iterations": done.nan_iterations,
            "rejected_iterations": done.rejected_iterations,
            "rollbacks": done.rollbacks,
            "global_batch_size": facts.batch,
            **self.stages.entries(done.consumed_samples - facts.batch),
            **vars(speed),
            "data_wait_s": facts.waited_s,
            "data_wait_share": facts.waited_s / speed.step_time_s,
            **facts.times,
            **self.comparison.row(facts.batch),
        }

    def compare(self, found: Stragglers | None, fits: str) -> None:
        """Report, after the first steps, how far off their prediction is, and whether the run ``fits`` its job."""
        memory_bytes = self.training.vendor.memory_bytes(self.training.device)
        clues = clues_of(self.training, found)

        def write() -> None:
            report(self.comparison.line(memory_bytes, clues))
            if fits:
                LOG.info("time     %s", fits)

        self.metrics.background.soon(write)

    def recorded(self, outcome: Outcome) -> Outcome:
        """Return ``outcome`` with what was predicted and what was measured."""
        return recorded(self.training, self.comparison, outcome)

    def stragglers(self, found: Stragglers) -> None:
        """Report which ranks hold the others up."""
        self.settle()
        if found.stragglers:
            LOG.warning("straggler: %s", straggler_line(found.stragglers, self.training.hosts))
        self.metrics.write({"iteration": self.training.progress.iteration, **found.row()})

    def skipped_step(self, anomaly: Anomaly) -> None:
        """Report why a step was skipped; its row already exists."""
        self.settle()
        LOG.warning("step %d: %s; skipped, no update", anomaly.iteration, anomaly.text)

    def rolled_back(self, anomaly: Anomaly, path: Path) -> None:
        """Report that the run was rolled back to the checkpoint ``path``."""
        self.settle()
        done = self.training.progress
        LOG.warning("step %d: %s; back to %s (rollback %d)", anomaly.iteration, anomaly.text, path, done.rollbacks)
        row = {"iteration": anomaly.iteration, "rolled_back_to": done.iteration, "rollbacks": done.rollbacks}
        self.metrics.write({**row, "rollback_reason": anomaly.kind, "rejected_loss": anomaly.loss})

    def skipped_samples(self, first: int, steps: int, samples: int, reason: str) -> None:
        """Report that the ``samples`` of ``steps`` steps from ``first`` on were skipped."""
        self.settle()
        last = first + steps - 1
        which = f"steps {first}-{last}" if steps > 1 else f"step {first}"
        LOG.info("%s: %s samples skipped by %s", which, count(samples), reason)
        self.metrics.write(
            {"iteration": last, "passed_over_iterations": steps, **self.consumed(self.training.progress)}
        )

    def watched(self, *rows: Mapping[str, float]) -> None:
        """Report what is watched of the step's numbers, if anything."""
        for row in filter(None, rows):
            self.settle()
            self.metrics.write({"iteration": self.training.progress.iteration, **row})

    def energy(self, row: Mapping[str, float]) -> None:
        """Report how much energy the run used so far."""
        self.settle()
        self.used = dict(row)
        self.metrics.write({"iteration": self.training.progress.iteration, **row})

    def validation(self, found: HeldOut) -> None:
        """Report the loss of a validation."""
        self.settle()
        iteration = self.training.progress.iteration
        is_usual = self.training.run.log.log_line == "megads"
        LOG.info("step %d: validation %s", iteration, found.line())
        line = megatron_validation_line(
            iteration, {name: (loss, perplexity(loss)) for name, loss in found.losses.items()}
        )
        LOG.info("%s", line, extra=FILE if is_usual else None)
        row = {"iteration": iteration, **found.row("valid_loss"), "valid_ppl": perplexity(found.loss)}
        self.metrics.write({**row, "consumed_samples": self.training.progress.consumed_samples})

    def test(self, found: HeldOut) -> None:
        """Report the loss of the test at the end."""
        self.settle()
        LOG.info("test %s", found.line())
        self.metrics.write({"iteration": self.training.progress.iteration, **found.row("test_loss")})

    def task(self, line: str, numbers: Mapping[str, float]) -> None:
        """Report the numbers of a task."""
        self.settle()
        done = self.training.progress
        LOG.info("step %d: %s", done.iteration, line)
        self.metrics.write({"iteration": done.iteration, **numbers, "consumed_samples": done.consumed_samples})

    def memory(self, found: MemoryFacts) -> None:
        """Report what rank 0's memory is used for, once a start."""
        self.settle()
        LOG.info("memory   %s", found.line())
        self.metrics.write({"iteration": self.training.progress.iteration, **found.row()})

    def consumed(self, done: Progress) -> dict[str, int]:
        """Return the entries of a metrics row that say how far the run is."""
        samples = done.consumed_samples
        return {"consumed_samples": samples, "consumed_tokens": tokens_until(self.training.run, samples)}


def _why_skipped(result: StepResult) -> str:
    if not result.skipped:
        return ""
    return "rejected (loss spike)" if result.rejected else "gradient is NaN or Inf"
