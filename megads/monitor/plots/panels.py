"""What is drawn of a run: panels, their lines, the axes they stand on, and marks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

from megads.errors import ConfigError
from megads.monitor.columns import Column, Columns
from megads.monitor.plots.downsample import holes_behind

GIB = 1024.0**3
MOST_CORPORA = 8  # that get a panel each when runs are compared


@dataclass(frozen=True)
class Panel:
    """One picture of several lines."""

    name: str  # for --keys
    title: str
    unit: str  # of the values, after ``factor``
    keys: tuple[str, ...]  # of metrics.jsonl; * stands for anything
    factor: float = 1.0  # times the values
    varying: bool = False  # skipped when the values never change
    instead: tuple[str, ...] = ()  # skipped when there is a panel of one of these names
    share_of: str = ""  # the key whose share the values are
    least: int = 1  # lines below which it is skipped
    spiky: bool = False  # on a logarithmic scale when one value stands far above the others
    exact: bool = False  # never smoothed, for schedules and peaks
    large: bool = False  # drawn first and larger, with its last values
    whole: bool = False  # the values are whole numbers
    one: bool = False  # keys with the same values in every run are drawn once
    stacked: bool = False  # the values are parts of a whole
    most: int = 0  # lines that are drawn, evenly chosen; of one run only


TIMES = tuple(f"time/{part}_s" for part in ("data", "forward", "backward", "communication", "optimizer", "other"))

PANELS = (
    Panel("loss", "Loss", "nats per token", ("lm_loss", "valid_loss"), spiky=True, large=True),
    Panel(
        *("validation", "Validation loss by corpus", "nats per token", ("valid_loss", "valid_loss/*")),
        least=2,
        spiky=True,
        large=True,
    ),
    Panel("tasks", "Perplexity of tasks", "", ("task/*/ppl", "task/*/adjusted_ppl"), spiky=True),
    Panel("accuracy", "Accuracy of tasks", "% correct", ("task/*/accuracy",), factor=100),
    Panel("lr", "Learning rate", "", ("learning_rate",), exact=True),
    Panel("grad_norm", "Gradient norm", "before clipping", ("grad_norm",), spiky=True),
    Panel("params_norm", "Norm of the weights", "", ("params_norm",)),
    Panel("num_zeros", "Zeros in the gradient", "elements", ("num_zeros",), spiky=True),
    Panel("activations", "Largest activation", "leaving the layer", ("activation_max/*",), spiky=True, most=10),
    Panel("layer_grad_norm", "Gradient norm of layers", "before clipping", ("layer_grad_norm/*",), spiky=True, most=10),
    Panel("tokens", "Throughput", "tokens/s", ("tokens_per_s",)),
    Panel("mfu", "FLOP/s utilization", "% of the peak", ("mfu", "hfu"), factor=100, one=True),
    Panel(
        *("tflops", "FLOP/s", "TFLOP/s per device", ("tflops_per_device", "hardware_tflops_per_device")),
        instead=("mfu",),
        one=True,
    ),
    Panel("times", "Step time", "% of the step", TIMES, factor=100, share_of="step_time_s", stacked=True),
    Panel("wait", "Data stall", "% of the step", ("data_wait_share",), factor=100, instead=("times",)),
    Panel("memory", "Peak memory of rank 0", "GiB", ("memory_bytes",), factor=1 / GIB, exact=True),
    Panel("batch", "Global batch", "samples", ("global_batch_size",), varying=True, exact=True, whole=True),
    Panel("weight_decay", "Weight decay", "", ("weight_decay",), varying=True, exact=True),
    Panel("loss_scale", "Loss scale", "", ("loss_scale",), varying=True, spiky=True, exact=True),
)

LABELS = {
    "lm_loss": "training",
    "valid_loss": "validation",
    "tflops_per_device": "model",
    "hardware_tflops_per_device": "hardware",
    "mfu": "MFU",
    "hfu": "HFU",
    "learning_rate": "learning rate",
    "grad_norm": "gradient norm",
    "params_norm": "norm of the weights",
    "num_zeros": "zeros in the gradient",
    "tokens_per_s": "tokens/s",
    "memory_bytes": "peak memory",
    "data_wait_share": "data stall",
    "global_batch_size": "batch",
    "weight_decay": "weight decay",
    "loss_scale": "loss scale",
}

# Counters in the rows, the weakest first; where one grows, a mark is drawn.
MARKS = {"skipped_iterations": "skipped", "rejected_iterations": "rejected"}
BRANCHED = "branch"  # where another run branched off
ROLLED_BACK = "rolled_back_to"  # only in the row of the step after which the run went back
SKIPPED_RANGE = "passed_over_iterations"

AXES = {
    "iteration": ("iteration", ""),
    "tokens": ("tokens", "consumed_tokens"),
    "samples": ("samples", "consumed_samples"),
    "hours": ("hours of steps", "step_time_s"),
}


def label(key: str) -> str:
    """Return what the legend calls a key."""
    return LABELS.get(key) or key.split("/", 1)[-1].removesuffix("_s")


def wanted(keys: Sequence[str]) -> set[str]:
    """Return the patterns of keys to read for ``--keys``, with those that axes, marks and shares need."""
    drawn = {key for panel in chosen(keys) for key in panel.keys}
    others = {key for _, key in AXES.values() if key}
    shares = {panel.share_of for panel in PANELS if panel.share_of}
    return drawn | others | shares | set(MARKS) | {SKIPPED_RANGE, ROLLED_BACK}


def is_wanted(key: str, patterns: set[str]) -> bool:
    """Return whether a key is one of ``patterns``."""
    return key in patterns or any("*" in pattern and fnmatchcase(key, pattern) for pattern in patterns)


def chosen(keys: Sequence[str]) -> list[Panel]:
    """Return the panels that ``--keys`` names: by their names, or by keys of the file; all panels when empty."""
    if not keys:
        return list(PANELS)
    plain = [replace(panel, varying=False, instead=(), least=1) for panel in PANELS]
    named = {key: replace(panel, name=key, keys=(key,)) for panel in reversed(plain) for key in panel.keys}
    named |= {panel.name: panel for panel in plain}
    return [named.get(key) or Panel(key, key, "", (key,)) for key in keys]


def panels_for(runs: Sequence[Columns], keys: Sequence[str]) -> list[tuple[Panel, list[str]]]:
    """Return the panels to draw and the keys of each, of all runs.

    Raises:
        ConfigError: ``keys`` names something that no run has.
    """
    found: list[tuple[Panel, list[str]]] = []
    for panel in chosen(keys) if keys or len(runs) == 1 else _compared(runs):
        lines = list(dict.fromkeys(key for run in runs for key in _lines(run, panel)))
        if panel.most and len(lines) > panel.most:
            lines = [lines[round(at)] for at in np.linspace(0, len(lines) - 1, panel.most)]
        if panel.one and all(_equal(run, lines) for run in runs):
            lines = lines[:1]
        if not lines and keys:
            names = ", ".join(panel.name for panel in PANELS)
            raise ConfigError(f"--keys {panel.name}: no run has such a key; panels are {names}")
        seen = {shown.name for shown, _ in found}
        is_idle = panel.varying and _is_constant(lines, runs)
        if len(lines) >= panel.least and not seen & set(panel.instead) and not is_idle:
            found.append((panel, lines))
    return found


def _compared(runs: Sequence[Columns]) -> Iterator[Panel]:
    """Yield the panels of several runs: training and validation apart, and each corpus."""
    for panel in PANELS:
        if panel.name == "loss":
            yield replace(panel, title="Training loss", keys=("lm_loss",))
        elif panel.name == "validation":
            yield replace(panel, title="Validation loss", keys=("valid_loss",), least=1)
            corpora = sorted({key for run in runs for key in run if key.startswith("valid_loss/")})
            for key in corpora if 1 < len(corpora) <= MOST_CORPORA else ():
                yield replace(
                    panel, name=key, title=f"Validation loss: {label(key)}", keys=(key,), least=1, large=False
                )
        elif not panel.most:
            yield panel


def _equal(run: Columns, keys: Sequence[str]) -> bool:
    """Return whether the columns of a run are the same."""
    found = [run[key] for key in keys if key in run]
    return all(
        np.array_equal(found[0].x, each.x) and np.array_equal(found[0].y, each.y, equal_nan=True) for each in found[1:]
    )


def _lines(run: Columns, panel: Panel) -> Iterator[str]:
    for pattern in panel.keys:
        for key in sorted(run, key=_in_order) if "*" in pattern else (pattern,):
            if key in run and fnmatchcase(key, pattern) and np.isfinite(run[key].y).any():
                yield key


def _in_order(key: str) -> list[tuple[int, str]]:
    """Return what keys are sorted by: layer 2 comes before layer 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", key)]


def _is_constant(lines: Sequence[str], runs: Sequence[Columns]) -> bool:
    known = [run[key].numbers().y for run in runs for key in lines if key in run]
    return len({end for y in known if len(y) for end in (y.min(), y.max())}) == 1


def values_of(run: Columns, panel: Panel, key: str) -> Column:
    """Return the column that ``panel`` draws of ``key``, in its unit."""
    column = run[key]
    y = column.y * np.float32(panel.factor)
    if panel.share_of in run:
        whole = run[panel.share_of]
        y = y / np.interp(column.x, whole.x, whole.y).astype(np.float32)
    return Column(column.x, y)


def axis_of(run: Columns, axis: str) -> Column | None:
    """Return the value of an axis for iterations of the run, None when the rows do not have it.

    Hours are those of steps: between two rows every step is taken to be as long as the later
    row's; a hole counts as one step. Validations and saves are not in it.
    """
    key = AXES[axis][1]
    if not key:
        return Column(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    column = run[key].numbers() if key in run else None
    if column is None or not len(column.x):
        return None
    if axis != "hours":
        return Column(column.x, column.y.astype(np.float64))
    steps = np.diff(column.x, prepend=0.0)
    steps[1:][holes_behind(column.x)] = 1.0
    return Column(column.x, np.cumsum(steps * column.y.astype(np.float64)) / 3600)


def place(axis: Column, iterations: np.ndarray) -> np.ndarray:
    """Return where ``iterations`` are on an axis."""
    if len(axis.x) == 2 and axis.x[0] == 0.0 and axis.y[1] == 1.0:
        return iterations
    return np.interp(iterations, axis.x, axis.y)


def marks_of(run: Columns) -> dict[str, np.ndarray]:
    """Return the iterations at which steps were skipped, rejected, or taken back, by name.

    An iteration has one mark, the strongest: a step that is rejected counts as skipped too.
    """
    found: dict[str, np.ndarray] = {}
    if ROLLED_BACK in run:
        found["rolled back"] = run[ROLLED_BACK].x
    for key, name in reversed(MARKS.items()):
        if key in run:
            column = run[key].numbers()
            grown = column.x[np.diff(column.y, prepend=0.0) > 0]
            found[name] = np.setdiff1d(grown, np.concatenate([*found.values(), []]))
    return {name: places for name, places in reversed(found.items()) if len(places)}


def skipped_ranges(run: Columns) -> list[tuple[float, float]]:
    """Return the first and the last iteration of each range of steps that was skipped."""
    if SKIPPED_RANGE not in run:
        return []
    column = run[SKIPPED_RANGE].numbers()
    return [(float(last - steps + 1), float(last)) for last, steps in zip(column.x, column.y, strict=True)]
