"""What a run measures against what was predicted for it: the line after its first steps, its summary, its figures."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from megads.monitor.throughput import SPEED_STEPS
from megads.plan.places.same_device import is_cpu
from megads.plan.prediction import Prediction
from megads.text.units import exact, size

SLOWER = 4 / 3
"""Times the predicted step, from where on the likely reason is shown."""

LAST = 3
"""Steps whose median tells whether only the first ones were slow."""

DATA, WORK, COMMUNICATION, OPTIMIZER, HOST = "data", "work", "communication", "optimizer", "host"


@dataclass(frozen=True)
class MeasuredStep:
    """One step: its seconds, and those of its parts as rows have them (``time/PART_s``); none with TIME_SPLIT=0."""

    seconds: float
    waited_s: float  # for data
    parts: Mapping[str, float]


@dataclass(frozen=True)
class Clues:
    """What else may be the reason for slow steps.

    Attributes:
        straggler: who computes longer than the others; empty: nobody, or nobody was compared.
        clock: asks the device whether it runs below its clock, and returns a line if so.
        is_compiled: the first steps compile.
    """

    straggler: str = ""
    clock: Callable[[], str] = str
    is_compiled: bool = False


class Comparison:
    """Compares the steps of one start with the prediction, on rank 0.

    The first step, which is slow everywhere, does not count, nor does one of a smaller batch than the prediction's.
    """

    def __init__(self, prediction: Prediction, batch: int):
        self.prediction, self.batch = prediction, batch
        self.is_first = True
        self.counted = 0  # steps that count
        self.steps: deque[MeasuredStep] = deque(maxlen=SPEED_STEPS)

    def add(self, step: MeasuredStep, batch: int) -> None:
        """Take note of a step of ``batch`` samples."""
        if not self.is_first and batch == self.batch:
            self.counted += 1
            self.steps.append(step)
        self.is_first = False

    def row(self, batch: int) -> dict[str, float]:
        """Return the entries of the metrics row of a step of ``batch`` samples."""
        given = self.prediction
        step = {"predicted_step_s": given.step_s} if given.step_s and batch == self.batch else {}
        return {**step, **({"predicted_memory_bytes": given.memory_bytes} if given.memory_bytes else {})}

    @property
    def step_s(self) -> float:
        """The median of the last steps; nan before the second."""
        return statistics.median(step.seconds for step in self.steps) if self.steps else math.nan

    def line(self, memory_bytes: int = 0, clues: Clues | None = None) -> str:
        """Return how far off the prediction is; empty where there is none of the step, or no step.

        Args:
            memory_bytes: the most that rank 0 has used; 0: not shown.
            clues: adds the likely reason where steps are slower by a third.
        """
        predicted = self.prediction.step_s
        if not predicted or not self.steps:
            return ""
        text = f"{exact(self.step_s)} per step, predicted {exact(predicted)}: {off(self.step_s, predicted)}"
        why = self.reason(clues) if clues is not None and self.step_s > SLOWER * predicted else ""
        memory = self.prediction.memory_bytes
        shown = f"; memory {size(memory_bytes)}, predicted {size(memory)}" if memory and memory_bytes else ""
        return f"{text}{f', likely {why}' if why else ''}{shown}"

    def reason(self, clues: Clues) -> str:
        """Return the likely reason why steps take longer than predicted: what exceeds its prediction most."""
        last_s = statistics.median(step.seconds for step in list(self.steps)[-LAST:])
        if last_s <= SLOWER * self.prediction.step_s:
            how = "compilation" if clues.is_compiled else "caches, clocks"
            return f"the first steps ({how}): the last {LAST} took {exact(last_s)}"
        took = self.parts()
        if not took:
            return "to be found with TIME_SPLIT=1"
        expected = _expected(self.prediction.parts)
        part = max(took, key=lambda name: took[name] - expected[name])
        if part in (WORK, COMMUNICATION) and clues.straggler:
            return f"a straggler: {clues.straggler}"
        clock = clues.clock() if part == WORK else ""
        pair = f"{exact(took[part])}, predicted {exact(expected[part])}"
        return f"throttling: {clock}" if clock else f"{REASONS[part]} ({pair})"

    def parts(self) -> dict[str, float]:
        """Return the median seconds of what the prediction has seconds of; none with TIME_SPLIT=0."""
        found = self.medians()
        if not found:
            return {}
        if is_cpu(self.prediction.device):  # whose prediction tells no more apart
            work = found["forward"] + found["backward"] + found["optimizer"] + found["other"]
            return {DATA: found["data"], WORK: work, COMMUNICATION: found["communication"]}
        return {
            DATA: found["data"],
            WORK: found["forward"] + found["backward"],
            COMMUNICATION: found["communication"],
            OPTIMIZER: found["optimizer"],
            HOST: found["other"],
        }

    def medians(self) -> dict[str, float]:
        """Return the median seconds of every section by its name; none with TIME_SPLIT=0."""
        names = [name for name in (self.steps[-1].parts if self.steps else ()) if name != "time/save_s"]
        return {
            name.removeprefix("time/").removesuffix("_s"): statistics.median(step.parts[name] for step in self.steps)
            for name in names
        }

    def predicted(self) -> dict[str, float]:
        """Return what was predicted, for the outcome."""
        given = self.prediction
        found = {"step_s": given.step_s, "tokens_per_s": given.tokens_per_s, "memory_bytes": given.memory_bytes}
        return {name: value for name, value in found.items() if value}

    def measured(self, batch_tokens: int, memory_bytes: int) -> dict[str, float]:
        """Return what was measured, for the outcome: medians of the last steps, and how many steps counted.

        ``work_s`` is the step without the wait for data, ``scatter`` its median absolute deviation, as a normal
        distribution's standard deviation and as a share of it.
        """
        if not self.steps:
            return {"memory_bytes": memory_bytes}
        work = [step.seconds - step.waited_s for step in self.steps]
        found = {
            "step_s": self.step_s,
            "tokens_per_s": batch_tokens / self.step_s,
            "memory_bytes": memory_bytes,
            "steps": self.counted,
            "work_s": statistics.median(work),
            "scatter": scatter_of(work),
            **{f"{name}_s": value for name, value in self.medians().items()},
        }
        return {name: value for name, value in found.items() if math.isfinite(value)}


REASONS = {
    DATA: "waiting for data",
    WORK: "computation",
    COMMUNICATION: "communication",
    OPTIMIZER: "the optimizer",
    HOST: "the host, outside of passes and optimizer",
}


def _expected(parts: Mapping[str, float]) -> dict[str, float]:
    """Return the predicted seconds of each of :data:`REASONS`."""
    return {
        DATA: 0.0,
        WORK: parts["compute"] + parts["memory"],
        # Who has no work in a pipeline waits for a message.
        COMMUNICATION: parts["communication"] + parts["idle"],
        OPTIMIZER: parts["optimizer"],
        HOST: parts["host"],
    }


def scatter_of(values: Sequence[float]) -> float:
    """Return the median absolute deviation as a standard deviation, as a share of the median."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values) / middle


def off(measured: float, predicted: float) -> str:
    """Return ``5% slower``, ``5% faster`` or ``as predicted``."""
    share = measured / predicted - 1
    return f"{abs(share):.0%} {'slower' if share > 0 else 'faster'}" if abs(share) >= 0.005 else "as predicted"
