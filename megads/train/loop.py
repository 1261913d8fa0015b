"""The training loop: batches to updates to numbers, until the end or a request to stop."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from megads.checkpoint.resume.progress import Progress
from megads.config.schedule.batches import BatchSchedule, SkipRanges
from megads.config.schedule.rates import Schedule
from megads.data.loading.batches import Prefetch
from megads.engine.base import StepResult
from megads.errors import EXIT_DONE, EXIT_STOPPED
from megads.monitor.metrics import MetricsFile
from megads.monitor.run_state.outcome import Outcome
from megads.monitor.throughput import Remaining
from megads.monitor.trackers.metrics_sink import MetricsSink
from megads.timing.step_times import Timing
from megads.train.energy import EnergyOfRun
from megads.train.evaluate import HeldOut, evaluate
from megads.train.fault.anomaly import Anomaly, Guard, Rollback
from megads.train.fault.stop import StopRequest
from megads.train.fault.watchdog import Watchdog
from megads.train.numbers.watch import NumberWatch
from megads.train.profile.profile import Probes
from megads.train.saving import Saving
from megads.train.setup import Training
from megads.train.stage_speed import StageSpeed
from megads.train.step_reporter import StepFacts, StepReporter
from megads.train.tasks import RunTasks

FORECAST_AFTER = 10  # steps; their speed shows whether the planned iterations fit into the allocation


class Loop:
    """Drives one :class:`Training` to its end.

    Every decision that ranks must share (stop, save, validate) is a pure function of the
    iteration, or agreed on by a collective; where a clock decides it is rank 0's.
    """

    def __init__(
        self,
        training: Training,
        stop: StopRequest,
        metrics: MetricsFile | MetricsSink | None,
        watch: Watchdog | None = None,
        energy: EnergyOfRun | None = None,
    ):
        run = training.run
        self.training = training
        self.stop = stop
        self.reporter = StepReporter(training, metrics) if metrics is not None else None  # on rank 0
        self.watch = watch
        self.energy = energy
        self.saving = Saving(training, stop, metrics, lambda: self.enter("save"), watch.claim if watch else None)
        self.schedule = Schedule.of(run)
        self.sizes = BatchSchedule.of(run)
        self.skips = SkipRanges.parse(run.train.skip_iterations)
        self.remaining = Remaining()
        self.speeds: list[float] = []
        self.waited_s = 0.0  # for data, of the steps since this start
        self.stepped_s = 0.0
        self.timing = Timing(training.run, training.groups, training.device, training.vendor.timeline)
        self.probes = Probes(training, self.reporter.memory if self.reporter else None)
        self.tasks = RunTasks(training)
        self.guard = Guard(run, training.checkpoints)
        self.numbers = NumberWatch(training, self.guard)
        self.rollback = Rollback(training, self.saving)
        self.speed_of = StageSpeed(run, training.groups.grid.world_size, training.peak_tflops)

    def run(self) -> Outcome:
        """Train until the last iteration, or until somebody asks to stop.

        Raises:
            CheckpointError: on every rank, when the state at the end cannot be saved.
            TrainingError: on every rank, when the run learns nothing any more.
        """
        t, train = self.training, self.training.run.train
        if train.evaluate_only:
            return self.evaluate()
        began = t.progress.iteration
        self.saving.prepare()
        why = self.tasks.measure_at_start(self) or self.why_stop()
        with t.batches("train", t.progress.consumed_samples) as batches:
            self.remaining.start()
            while (before := t.progress.iteration) < train.train_iters and not why:
                if last := self.skips.last_of(t.progress.iteration + 1):
                    self.skip_to(min(last, train.train_iters), batches)
                else:
                    with self.probes.step():
                        self.step(batches)
                        if self.probes.tracer is not None:
                            self.settle()
                iteration = t.progress.iteration
                why = self.tasks.measure(self, before, iteration) or self.why_stop()
                if not why and reaches(before, iteration, train.exit_interval):
                    why = f"EXIT_INTERVAL={train.exit_interval}"
                if iteration == train.train_iters or why:
                    with self.timing.saving():
                        self.saving.last()
                    self.report_energy()
                elif self.saves_after(before, iteration):
                    self.settle()
                    with self.timing.saving():
                        self.saving.interim()
                    self.report_energy()
        self.finish()
        iteration = t.progress.iteration
        if iteration >= train.train_iters:
            self.test()
            return Outcome(EXIT_DONE, "done", iteration, "done")
        # Without a step nothing is new: where it went back to is not what the next start would find.
        where = f"saved at iteration {iteration}" if iteration > began else "before the first step"
        return Outcome(EXIT_STOPPED, f"{why}; {where}", iteration, "stopped")

    def evaluate(self) -> Outcome:
        """Validate and test, and change nothing. Collective."""
        why = self.validate() or self.tasks.score(self) or self.test()
        self.finish()
        iteration = self.training.progress.iteration
        if why:
            return Outcome(EXIT_STOPPED, f"{why}; the evaluation is incomplete", iteration, "stopped")
        return Outcome(EXIT_DONE, "evaluated", iteration, "done")

    def finish(self) -> None:
        """Complete the profiles and the reports of the steps so far."""
        self.probes.close()
        self.settle()

    def report_energy(self) -> None:
        """Report how much energy the run used so far, if it measures that. Collective."""
        row = self.energy.row() if self.energy is not None else {}
        if self.reporter and row:
            self.reporter.energy(row)

    def validates_after(self, before: int, iteration: int) -> bool:
        """Return whether the run validates after ``iteration`` steps, when it was at ``before`` the last time."""
        train = self.training.run.train
        is_last = iteration == train.train_iters
        return bool(train.eval_interval) and (is_last or reaches(before, iteration, train.eval_interval))

    def saves_after(self, before: int, iteration: int) -> bool:
        """Return whether the run saves after ``iteration`` steps, when it was at ``before`` the last time."""
        return reaches(before, iteration, self.training.run.checkpoint.save_interval)

    def why_stop(self) -> str:
        """Return why the run must stop now, the same on every rank; empty: there is time for a step. Collective.

        A save in the background that no rank writes any more becomes a checkpoint here.
        """
        iteration = self.training.progress.iteration
        saves = self.training.run.checkpoint.in_background and self.saves_after(iteration, iteration + 1)
        why = self.stop.agreed(validation=self.validates_after(iteration, iteration + 1), save=saves)
        if not why and self.saving.saver.is_writing:
            self.settle()
            with self.timing.saving():
                self.saving.settle()
        return why

    def enter(self, phase: str) -> None:
        """Inform the watchdog of what begins now; its reports come after those of the steps before it."""
        if self.watch is not None:
            self.watch.iteration = self.training.progress.iteration
            self.watch.saved(self.stop.deadline.measured_save_s)
            self.watch.enter(phase)
        if phase != "step":
            self.settle()

    def settle(self) -> None:
        """Wait until every step so far is reported."""
        if self.reporter:
            self.reporter.settle()

    def step(self, batches: Prefetch) -> None:
        """Do one optimizer step and report it. Its time is that of the whole step, data included."""
        self.enter("step")
        t = self.training
        started = time.perf_counter()
        batch = self.sizes.batch_at(t.progress.consumed_samples)
        rates = self.schedule.at(t.progress.scheduled_samples)
        parts = [next(batches) for _ in range(t.micro_batches_of(batch))]
        waited = time.perf_counter() - started
        with self.timing.running(), self.numbers.step(t.progress, rates, len(parts)):
            result = t.engine.train_step(
                parts,
                rates.lr,
                first_sample=t.progress.consumed_samples,
                weight_decay=rates.weight_decay,
                accepts=self.numbers.accepting(t.progress, self.guard.watching(t.progress)),
            )
        loss = float(result.loss)
        self.timing.wait()
        took = time.perf_counter() - started
        times = self.timing.step_done(took, waited)
        speed = self.speed_of.of_step(t.progress.consumed_samples, batch, took)
        self.stop.deadline.steps.append(took)
        before, t.progress = t.progress, advance(t.progress, result, loss, batch, window=self.guard.window)
        self.remaining.step_done(batch)
        self.speeds.append(speed.tokens_per_s)
        self.waited_s += waited
        self.stepped_s += took
        if self.reporter:
            facts = StepFacts(result, loss, rates, speed, batch, waited, t.progress, self.seconds_left, times)
            self.reporter.step(facts)
            self.reporter.watched(*self.numbers.rows(result))
        if (found := self.timing.look(t.progress.iteration)) and self.reporter:
            self.reporter.stragglers(found)
        if self.remaining.steps == FORECAST_AFTER:
            self.forecast()
        self.numbers.step_done(before, parts, rates, result)
        if anomaly := self.guard.step_done(before, loss, result):
            self.act_on(anomaly, batches)

    def act_on(self, anomaly: Anomaly, batches: Prefetch) -> None:
        """Do what the settings say about a step whose numbers are wrong. Collective, unless the step was only skipped.

        After a rollback the run is, bit for bit, the one that had resumed from that checkpoint with
        the steps after it in SKIP_TRAIN_ITERATION_RANGE.

        Raises:
            TrainingError: on every rank, when the run is to end, or cannot go back.
        """
        if anomaly.policy == "skip":
            if self.reporter:
                self.reporter.skipped_step(anomaly)
            return
        self.enter("rollback")
        if anomaly.policy == "stop":
            raise self.rollback.stop(anomaly)
        path = self.rollback.go_back(anomaly)
        t, self.guard.skips_in_a_row = self.training, 0
        if self.reporter:
            self.reporter.rolled_back(anomaly, path)
        last = anomaly.iteration + t.run.stability.rollback_skip
        self.skip_to(min(last, t.run.train.train_iters), batches, "the rollback")

    def skip_to(self, last: int, batches: Prefetch, reason: str = "SKIP_TRAIN_ITERATION_RANGE") -> None:
        """Continue after iteration ``last`` as if the steps until then had been done, except that no weight changes.

        Iteration, samples and learning rate are where they would be without the range, so
        that the steps after it do what they were planned to do. (BigScience's loop leaves
        the count of iterations where it is and forgets on resume what it skipped.)
        """
        t, done = self.training, self.training.progress
        steps = last - done.iteration
        samples = self.sizes.after(done.consumed_samples, steps) - done.consumed_samples
        t.progress = replace(
            done,
            iteration=last,
            consumed_samples=done.consumed_samples + samples,
            scheduled_samples=done.scheduled_samples + samples,
        )
        batches.seek(t.progress.consumed_samples)
        if self.reporter:
            self.reporter.skipped_samples(done.iteration + 1, steps, samples, reason)

    def seconds_left(self) -> float:
        """Return the seconds that the remaining steps need at the present speed; nan before the first."""
        t, done = self.training, self.training.progress
        left = self.skips.samples_left(self.sizes, done.iteration, done.consumed_samples, t.run.train.train_iters)
        return self.remaining.seconds(left)

    def forecast(self) -> None:
        """Say how far off the prediction is, and whether the planned iterations fit into the allocation. Collective."""
        found, deadline = self.timing.compare_ranks(), self.stop.deadline
        left = self.training.run.train.train_iters - self.training.progress.iteration
        fits = deadline.forecast(self.seconds_left(), left) if deadline.ends_at and left else ""
        if self.reporter:
            self.reporter.compare(found, fits)

    def validate(self) -> str:
        """Measure the loss on the validation samples, always the same ones. Collective.

        Returns:
            Why it was given up, for a stop request; the run does it again on resume.
        """
        t, started = self.training, time.perf_counter()
        found, why = self.held_out("valid")
        t.progress = replace(t.progress, owes_validation=bool(why))
        if found is None:
            return why
        self.stop.deadline.validated(time.perf_counter() - started, t.run.train.eval_iters)
        first = found.loss if t.progress.first_valid_loss is None else t.progress.first_valid_loss
        t.progress = replace(t.progress, first_valid_loss=first, last_valid_loss=found.loss)
        if self.reporter:
            self.reporter.validation(found)
        return ""

    def test(self) -> str:
        """Measure the loss on the test samples, at the end of a run. Collective.

        Returns:
            Why it was given up, for a stop request.
        """
        found, why = self.held_out("test")
        if found is not None and self.reporter:
            self.reporter.test(found)
        return why

    def held_out(self, split: str) -> tuple[HeldOut | None, str]:
        """Return the loss on ``split``, None if the run has no such samples, and why it was given up if so."""
        t, why = self.training, [""]
        if t.splits.get(split) is None or not t.run.train.eval_iters:
            return None, ""
        self.enter("validation")

        def give_up() -> str:
            if self.watch is not None:
                self.watch.come_further()
            why[0] = self.stop.agreed(step=False)
            return why[0]

        data, micro_batches = t.splits[split], t.micro_batches_of(t.run.train.global_batch)
        with t.batches(split) as batches:
            steps = ([next(batches) for _ in range(micro_batches)] for _ in range(t.run.train.eval_iters))
            total = t.run.train.eval_iters
            found = evaluate(t.engine, steps, give_up, corpora=data.corpora, corpus_of=data.corpus_of, total=total)
        return found, why[0]


def advance(progress: Progress, result: StepResult, loss: float, batch: int, window: int = 0) -> Progress:
    """Return the progress after a step of ``batch`` samples; it remembers ``window`` losses that were accepted."""
    losses = progress.recent_losses
    if window and math.isfinite(loss) and not result.rejected:
        losses = (*losses, loss)
    return replace(
        progress,
        iteration=progress.iteration + 1,
        consumed_samples=progress.consumed_samples + batch,
        scheduled_samples=progress.scheduled_samples + (0 if result.skipped else batch),
        skipped_iterations=progress.skipped_iterations + result.skipped,
        nan_iterations=progress.nan_iterations + (not math.isfinite(loss)),
        rejected_iterations=progress.rejected_iterations + result.rejected,
        recent_losses=losses[-window:] if window else (),
        first_loss=loss if progress.first_loss is None else progress.first_loss,
        last_loss=loss,
    )


def reaches(before: int, iteration: int, interval: int) -> bool:
    """Return whether a multiple of ``interval`` is behind ``before``, up to ``iteration``: steps may be skipped."""
    return interval > 0 and iteration // interval > before // interval
