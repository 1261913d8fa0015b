"""Looks at single steps: a trace of operations, a table of FLOPs, memory by kind. Off, nothing is done."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from megads.config.settings.profile import profiled_ranks, profiled_steps
from megads.monitor.log import LOG
from megads.text.units import seconds
from megads.train.profile.flop_count import counted
from megads.train.profile.flops import expected, profile_text
from megads.train.profile.memory import MemoryFacts, measure_memory
from megads.train.setup import Training

FOLDER = "profile"  # in the run's
TOP = 40  # operations in the table next to a trace


class Probes:
    """What is looked at in the steps of one start.

    Args:
        training: the run.
        tell: takes what was found of the memory; on rank 0.
    """

    def __init__(self, training: Training, tell: Callable[[MemoryFacts], None] | None):
        self.training, self.tell = training, tell
        run, rank = training.run, training.groups.rank
        looks = rank in profiled_ranks(run.profile, training.groups.grid.world_size)
        self.tracer = Tracer(training) if looks and profiled_steps(run.profile) else None
        self.flops_in = run.profile.flops_step if looks and run.profile.flops else 0  # steps from now
        self.is_first = True

    def step(self) -> AbstractContextManager[None]:
        """Return what the next step runs in. Collective in the first step of a start."""
        if not (self.is_first or self.tracer or self.flops_in):
            return nullcontext()
        return self._step()

    @contextmanager
    def _step(self) -> Iterator[None]:
        t, first, iteration = self.training, self.is_first, self.training.progress.iteration + 1
        self.is_first = False
        # A trace would be full of the counting.
        counts = self.flops_in == 1 and not (self.tracer and iteration in self.tracer.steps)
        with ExitStack() as stack:
            if self.tracer:
                stack.enter_context(self.tracer.step(iteration))
            if counts:
                stack.enter_context(self.flops())
            found = stack.enter_context(measure_memory(t)) if first else None
            yield
        self.flops_in = 0 if counts else max(min(1, self.flops_in), self.flops_in - 1)
        if self.tracer and self.tracer.is_done:
            self.tracer = None
        if found is not None and self.tell is not None:
            self.tell(found())

    @contextmanager
    def flops(self) -> Iterator[None]:
        """Count what runs in the block, one step, and write the table."""
        t = self.training
        before, iteration = t.progress.consumed_samples, t.progress.iteration + 1
        with counted(t.engine.module, lambda: t.vendor.synchronize(t.device)) as found:
            yield
        formula = expected(t.run, t.groups, t.progress.consumed_samples - before)
        title = f"FLOPs of step {iteration} on rank {t.groups.rank}, {seconds(found.seconds)}"
        text = profile_text(found, formula, t.run.profile.flops_depth, title)
        _write(t.run_dir / FOLDER / f"rank-{t.groups.rank}-flops-{iteration}.txt", lambda path: path.write_text(text))

    def close(self) -> None:
        """Write what there is of a trace whose last step did not come."""
        if self.tracer:
            self.tracer.close()


class Tracer:
    """Writes a trace of the operations in the asked-for steps, and a table of those that took most.

    Validations and saves between these steps are in the trace.

    Args:
        training: the run.
    """

    def __init__(self, training: Training):
        self.training = training
        self.steps = profiled_steps(training.run.profile)
        self.profiler: Any = None
        self.first = self.last = 0  # steps in the trace

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to trace."""
        return self.profiler is None and self.training.progress.iteration >= self.steps[-1]

    @contextmanager
    def step(self, iteration: int) -> Iterator[None]:
        """Trace the block, step ``iteration``, if that was asked for."""
        if self.profiler is None and iteration in self.steps:
            self.start(iteration)
        if self.profiler is None:
            yield
            return
        from torch.profiler import record_function

        with record_function(f"step {iteration}"):
            yield
        self.last = iteration
        if iteration >= self.steps[-1]:
            self.close()

    def start(self, iteration: int) -> None:
        """Begin the trace."""
        from torch.profiler import profile

        t = self.training
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # its library writes two lines to stderr
        self.first = iteration
        self.profiler = profile(activities=t.vendor.activities(), record_shapes=True, acc_events=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.profiler.start()

    def close(self) -> None:
        """End the trace and write it."""
        if self.profiler is None:
            return
        profiler, self.profiler = self.profiler, None
        t = self.training
        t.vendor.synchronize(t.device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            profiler.stop()
            if not self.last:
                return  # the first step failed
            name = f"rank-{t.groups.rank}-step-{self.first}-{self.last}"
            key = "self_cpu_time_total" if t.device.type == "cpu" else "self_device_time_total"
            table = profiler.key_averages().table(sort_by=key, row_limit=TOP)
            folder = t.run_dir / FOLDER
            _write(folder / f"{name}.json.gz", lambda path: profiler.export_chrome_trace(str(path)))
            _write(folder / f"{name}.txt", lambda path: path.write_text(table))


def _write(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file; training continues where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    except (OSError, RuntimeError) as error:
        LOG.warning("%s is not written: %s", path, error)
    else:
        LOG.info("profile  %s", path)
