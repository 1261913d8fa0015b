"""The parts of a benchmark, in the order in which they run: first whether numbers are right, then rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from megads.bench import agreement, attention, collective_rates, hugging_face, matmul, memory_rates, training
from megads.bench.results import PartResult
from megads.bench.session import Bench
from megads.errors import ConfigError

_SPEEDS = {"tokens_per_s": "tokens/s", "tflops": "TFLOP/s", "mfu": "% MFU", "mfu_causal": "% MFU causal"}


@dataclass(frozen=True)
class Part:
    """One part.

    Attributes:
        name: on the command line and in the JSON.
        title: one line.
        weight: share of the time, relative to the others.
        measure: fills its result, row by row, so that what there is stays when it fails.
        columns: see :class:`PartResult`.
    """

    name: str
    title: str
    weight: float
    measure: Callable[[Bench, PartResult], None]
    columns: Mapping[str, str]

    def result(self) -> PartResult:
        """Return an empty result."""
        return PartResult(self.name, self.title, self.columns)


PARTS = (
    Part(
        "numbers",
        "results against float64 on the CPU",
        2,
        agreement.measure,
        {"check": "check", "dtype": "dtype", "difference": "difference", "tolerance": "tolerance", "equal": "equal"},
    ),
    Part(
        "attention",
        "attention: kernel that torch takes, forward and backward",
        1,
        attention.measure,
        {"shape": "shape", "dtype": "dtype", "kernel": "kernel", "tflops": "TFLOP/s full square"},
    ),
    Part(
        "matmul",
        "matrix products",
        1,
        matmul.measure,
        {"shape": "shape", "dtype": "dtype", "tflops": "TFLOP/s", "of_peak": "% of peak"},
    ),
    Part(
        "memory",
        "memory bandwidth",
        0.5,
        memory_rates.measure,
        {"pattern": "pattern", "bytes": "bytes", "gb_per_s": "GB/s"},
    ),
    Part(
        "collectives",
        "collectives: right, and bandwidth of the slowest group",
        2,
        collective_rates.measure,
        {
            "collective": "collective",
            "group": "group",
            "ranks": "ranks",
            "bytes": "bytes",
            "us": "us",
            "gb_per_s": "GB/s",
            "bus_gb_per_s": "bus GB/s",
        },
    ),
    Part(
        "waits",
        "waits of the host for the device in one training step",
        1,
        training.measure_waits,
        {"place": "place", "waits": "waits"},
    ),
    Part(
        "training",
        "training on random tokens, per device",
        8,
        training.measure,
        {
            "model": "model",
            "dtype": "dtype",
            "micro_batch": "micro-batch",
            "seq_length": "sequence",
            "step_s": "step s",
            **_SPEEDS,
            "of_roofline": "% of roofline",
            "memory_gib": "peak GiB",
            "estimate_gib": "estimate GiB",
        },
    ),
    Part(
        "huggingface",
        "the same model in transformers and a plain loop, per device",
        5,
        hugging_face.measure,
        {"program": "program", "model": "model", "dtype": "dtype", "step_s": "step s", **_SPEEDS},
    ),
)


def chosen(names: str) -> tuple[Part, ...]:
    """Return the parts of a list with commas; empty: all.

    Raises:
        ConfigError: a name is not one of theirs.
    """
    if not names:
        return PARTS
    known = {part.name: part for part in PARTS}
    asked = [name.strip() for name in names.split(",") if name.strip()]
    if wrong := next((name for name in asked if name not in known), ""):
        raise ConfigError(f"--parts {names}: {wrong!r} is not one of {', '.join(known)}")
    return tuple(part for part in PARTS if part.name in asked)
