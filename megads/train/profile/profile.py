"""Looks at single steps: a trace of operations, a table of FLOPs, memory by kind. Off, nothing is done.

Memory is what a rank uses, measured in the first step of a start, next to the estimate from before it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from megads.comm.messages import all_gather_values
from megads.config.settings.profile import profiled_ranks, profiled_steps
from megads.device.vendor import DeviceMemory, resident_bytes
from megads.engine.base import MemoryUsage
from megads.monitor.log import LOG
from megads.plan.memory import Memory, estimate
from megads.text.units import seconds, size
from megads.train.profile.flops import counted, expected, profile_text
from megads.train.setup import Training

FOLDER = "profile"  # in the run's
TOP = 40  # operations in the table next to a trace


class Probes:
    """What is looked at in the steps of one start; on rank 0 ``report`` takes what was found of the memory."""

    def __init__(self, training: Training, report: Callable[[MemoryFacts], None] | None):
        self.training, self.report = training, report
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
        if found is not None and self.report is not None:
            self.report(found())

    @contextmanager
    def flops(self) -> Iterator[None]:
        """Count what runs in the block, one step, and write the table."""
        t = self.training
        before, iteration = t.progress.consumed_samples, t.progress.iteration + 1
        chunks = getattr(t.engine, "chunks", [t.engine.module])
        with counted(chunks, lambda: t.vendor.synchronize(t.device)) as found:
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


@dataclass(frozen=True)
class MemoryFacts:
    """Bytes of this rank."""

    held: MemoryUsage  # after the step, but gradients as they were when the optimizer began
    before: DeviceMemory | None  # of the device's allocator before the step; None: no device
    peak: int  # the most it had until the optimizer began
    at_update: int  # on the device at that time
    after: DeviceMemory | None  # of the allocator after the step
    resident: int  # host memory after the step
    set_up: int  # host memory before it
    largest: tuple[int, int]  # the most memory of any rank (Vendor.memory_bytes), and whose it is
    guess: Memory  # the estimate for the fullest pipeline stage

    @property
    def activations(self) -> int | None:
        """What forward and backward pass had in addition to what is held; None on a CPU, which does not report it."""
        return max(0, self.peak - self.at_update) if self.after is not None else None

    def row(self) -> dict[str, int]:
        """Return the entries of a metrics row."""
        held, guess = self.held, self.guess
        row = {
            "weights": held.weights,
            "gradients": held.gradients,
            "optimizer": held.optimizer,
            "buffers": held.buffers,
            "held_on_host": held.on_host,
            "host_resident": self.resident,
            "host_resident_before": self.set_up,
            "most_of_any_rank": self.largest[0],
            "estimated_weights": guess.weights,
            "estimated_gradients": guess.gradients,
            "estimated_optimizer": guess.optimizer,
            "estimated_buffers": guess.buffers,
            "estimated_activations": guess.activations + guess.logits,
            "estimated_total": guess.total,
        }
        if self.before is not None and self.after is not None and self.activations is not None:
            row |= {
                "activations_peak": self.activations,
                "allocated_before": self.before.allocated,
                "allocated": self.after.allocated,
                "allocated_peak": self.after.peak,
                "reserved": self.after.reserved,
                "reserved_unused": _unused(self.after),
            }
        return {
            **{f"memory/{name}_bytes": value for name, value in row.items()},
            "memory/largest_rank": self.largest[1],
        }

    def line(self) -> str:
        """Return the log's line."""
        held, guess = self.held, self.guess
        pairs = (
            ("weights", held.weights, guess.weights),
            ("gradients", held.gradients, guess.gradients),
            ("optimizer", held.optimizer, guess.optimizer),
            ("buffers", held.buffers, guess.buffers),
            ("activations at most", self.activations, guess.activations + guess.logits),
        )
        parts = [f"{name} {size(found)} ({size(guessed)})" for name, found, guessed in pairs if found is not None]
        if held.on_host:
            parts.append(f"of that in host memory {size(held.on_host)}")
        if self.after is not None:
            parts.append(f"reserved {size(self.after.reserved)}, {size(_unused(self.after))} unused")
        parts.append(f"process {size(self.resident)}")
        largest = f"most on rank {self.largest[1]}, {size(self.largest[0])}"
        return f"rank 0 holds (estimated): {', '.join(parts)}; {largest}"


def _unused(memory: DeviceMemory) -> int:
    """Return what the allocator holds beyond the most that tensors needed: fragments, or what others freed."""
    return max(0, memory.reserved - memory.peak)


@contextmanager
def measure_memory(training: Training) -> Iterator[Callable[[], MemoryFacts]]:
    """Measure the block, the first step of a start; yield what returns the facts behind it. Collective."""
    t, found = training, list[tuple[MemoryUsage, DeviceMemory | None]]()
    vendor, device, engine = t.vendor, t.device, t.engine
    facts: list[MemoryFacts] = []
    vendor.forget_peak(device)
    before, set_up = vendor.memory_now(device), resident_bytes()

    def look(*_: Any) -> None:
        found.append((engine.memory_usage(), vendor.memory_now(device)))

    stop_looking = engine.before_updates(look)
    try:
        yield lambda: facts[0]
    finally:
        stop_looking()
    after_step = engine.memory_usage()
    # A step that was skipped has no update to begin with.
    at_update, memory = found[0] if found else (after_step, vendor.memory_now(device))
    gradients = max((each.gradients for each, _ in found), default=after_step.gradients)
    facts.append(
        MemoryFacts(
            held=replace(after_step, gradients=gradients),
            before=before,
            peak=memory.peak if memory else 0,
            at_update=at_update.total - at_update.on_host,
            after=vendor.memory_now(device),
            resident=resident_bytes(),
            set_up=set_up,
            largest=_largest(vendor.memory_bytes(device)),
            guess=estimate(t.run, t.groups.grid.world_size),
        )
    )


def _largest(mine: int) -> tuple[int, int]:
    """Return the most memory of any rank and whose it is. Collective."""
    everyone = all_gather_values(mine)
    return max(everyone), everyone.index(max(everyone))
