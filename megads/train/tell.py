"""What rank 0 tells of a run while it goes on: lines for people, rows for programs."""

from __future__ import annotations

from dataclasses import dataclass

from megads.config.batches import BatchSchedule
from megads.engine.base import StepResult
from megads.monitor.log import LOG
from megads.monitor.metrics import MetricsFile
from megads.monitor.text import count, step_line
from megads.monitor.throughput import Speed
from megads.train.evaluate import HeldOut, perplexity
from megads.train.schedule import Rates
from megads.train.setup import Training


@dataclass(frozen=True)
class StepFacts:
    """What is known of a step when it is done."""

    result: StepResult
    loss: float  # nats per token
    rates: Rates
    speed: Speed
    batch: int  # samples
    waited_s: float  # for data
    left_s: float  # the run's, at the present speed


class Teller:
    """Tells of the steps and validations of one run, on rank 0; elsewhere it is not made.

    Args:
        training: the run; its progress is that after what is told.
        metrics: where rows go.
    """

    def __init__(self, training: Training, metrics: MetricsFile):
        self.training, self.metrics = training, metrics
        self.sizes = BatchSchedule.of(training.run)

    def step(self, facts: StepFacts) -> None:
        """Tell of one step."""
        t, done, speed = self.training, self.training.progress, facts.speed
        share = facts.waited_s / speed.step_time_s
        line = step_line(
            done.iteration,
            t.run.train.train_iters,
            facts.loss,
            facts.rates.lr,
            facts.result.grad_norm,
            speed,
            facts.left_s,
            batch=facts.batch if facts.batch < self.sizes.final else 0,
            scale=facts.result.loss_scale,
            waited=share,
            skipped=facts.result.skipped,
        )
        LOG.info("%s", line)
        row = {
            "iteration": done.iteration,
            **self.consumed(),
            "lm_loss": facts.loss,
            "learning_rate": facts.rates.lr,
            "grad_norm": facts.result.grad_norm,
            "loss_scale": facts.result.loss_scale,
            "skipped_iterations": done.skipped_iterations,
            "nan_iterations": done.nan_iterations,
            "global_batch_size": facts.batch,
            **vars(speed),
            "data_wait_s": facts.waited_s,
            "data_wait_share": share,
            "memory_bytes": t.vendor.memory_bytes(t.device),
        }
        self.metrics.write(row)

    def passed_over(self, first: int, steps: int, samples: int) -> None:
        """Tell that the ``samples`` of ``steps`` steps from ``first`` on were passed over."""
        last = first + steps - 1
        which = f"steps {first}-{last}" if steps > 1 else f"step {first}"
        LOG.info("%s: %s samples passed over by SKIP_TRAIN_ITERATION_RANGE", which, count(samples))
        self.metrics.write({"iteration": last, "passed_over_iterations": steps, **self.consumed()})

    def validation(self, found: HeldOut) -> None:
        """Tell what a validation found."""
        iteration = self.training.progress.iteration
        LOG.info("step %d: validation %s", iteration, found.line())
        row = {"iteration": iteration, **found.row("valid_loss"), "valid_ppl": perplexity(found.loss)}
        self.metrics.write({**row, "consumed_samples": self.training.progress.consumed_samples})

    def test(self, found: HeldOut) -> None:
        """Tell what the test at the end found."""
        LOG.info("test %s", found.line())
        self.metrics.write({"iteration": self.training.progress.iteration, **found.row("test_loss")})

    def consumed(self) -> dict[str, int]:
        """Return the entries of a metrics row that say how far the run is."""
        samples = self.training.progress.consumed_samples
        return {"consumed_samples": samples, "consumed_tokens": samples * self.training.run.model.seq_length}
