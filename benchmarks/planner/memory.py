"""Predicted against measured memory, row by row: static, and at its peak.

Static memory is what is allocated between two steps. No value of ``megads.plan.conventions`` was fitted to rows,
but which tensors are kept was in places decided with these rows in sight. Fitted is the *reserve* that "fits" needs,
and it is checked on suites and platforms that it did not see (:func:`unsafe`).
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.planner.megatron_experts import extended_of, last_stage
from benchmarks.planner.megatron_rows import PUBLISHED, Facts, facts_of, settings_of, test_of
from benchmarks.planner.other_memory import a100, gh200, h200, torchtitan
from benchmarks.planner.rows import Row
from megads.errors import ConfigError
from megads.plan.memory import GIB, Memory, stage_memories
from megads.plan.parts.experts import stage_memory

FILE = PUBLISHED / "megatron_memory.csv"
RELATIVE, ABSOLUTE = 0.01, 0.1
"""Static memory is right within this share, or so many GiB."""
NEEDED = {"suite", "test", "platform", "peak_alloc_GiB_max"}
DEVICES_GIB = (8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 141, 192)
"""Memories of devices that are sold, of which a row is asked: does it fit?"""


@dataclass(frozen=True)
class Result:
    """A row with what was predicted, in GiB.

    Attributes:
        measured_static: 0: the row does not say it.
        unknown: what the row does not say and its memory depends on; empty: nothing.
    """

    facts: Facts
    static: float
    peak: float
    measured_static: float
    measured_peak: float
    unknown: str

    @property
    def is_static_right(self) -> bool:
        """Return whether the static memory is within the tolerance."""
        return abs(self.static - self.measured_static) <= max(RELATIVE * self.measured_static, ABSOLUTE)

    @property
    def peak_error(self) -> float:
        """Return the relative error of the peak, signed."""
        return self.peak / self.measured_peak - 1


def unknown_of(facts: Facts) -> str:
    """Return what a row's memory depends on that neither it nor its test's settings say."""
    name = facts["test"]
    if "grpo" in name:
        return "the size of the inference engine's cache"
    if "distill" in name:
        return "the teacher's weights and activations"
    if facts["suite"] == "mimo":
        return "the tokens of a sample, fewer than --seq-length"
    if "release" in name and facts.get("use-distributed-optimizer") == "true":
        return "the number of devices that share the optimizer"
    return ""


def static_bytes(memory: Memory) -> int:
    """Return what is allocated between two steps."""
    return memory.weights + memory.gradients + memory.optimizer + memory.buffers + memory.program


def predicted(row: Facts) -> Memory:
    """Return what the last stage of a row's run needs, which wrote the row.

    Raises:
        ConfigError: the row is no run of megads.
    """
    test = test_of(row)
    model = extended_of(test)
    if model is None:
        return stage_memories(test.run, test.ranks, test.by)[-1]
    return stage_memory(test.run, test.ranks, model, last_stage(test, model), test.by)


def results(file: Path = FILE) -> list[Result]:
    """Return all rows that say a peak, in the order of the table.

    Raises:
        ConfigError: there is no such file, or it has no such columns.
    """
    if not file.is_file():
        raise ConfigError(f"{file} is no file; pass a CSV file with the columns of {FILE.name}")
    found = []
    with file.open(newline="") as stream:
        table = csv.DictReader(stream)
        if missing := NEEDED - {*(table.fieldnames or ())}:
            raise ConfigError(
                f"{file} has no column {', '.join(sorted(missing))}; its columns are those of {FILE.name}"
            )
        for row in table:
            if not row["peak_alloc_GiB_max"]:
                continue
            memory, facts = predicted(row), facts_of(row)
            measured = float(row.get("alloc_GiB") or 0), float(row["peak_alloc_GiB_max"])
            found.append(
                Result(facts, static_bytes(memory) / GIB, memory.total / GIB, *measured, unknown_of(facts)),
            )
    return found


def rows(file: Path = FILE) -> list[Row]:
    """Return the measured peaks as rows of the planner."""
    with file.open(newline="") as stream:
        found = [facts_of(row) for row in csv.DictReader(stream)]
    return [
        Row(
            f"NVIDIA/Megatron-LM d98e8a64 {facts['path']}",
            "megatron-core",
            facts["platform"],
            settings_of(facts),
            0,
            float(facts["peak_alloc_GiB_max"]),
            "GiB",
            facts["suite"],
        )
        for facts in found
    ]


@dataclass(frozen=True)
class Summary:
    """Errors of some rows. Shares are 0 to 1."""

    rows: int
    static_right: float
    static_mean: float
    peak_mean: float
    peak_p95: float
    peak_worst: float


def summary(found: Iterable[Result]) -> Summary:
    """Return the errors of ``found``."""
    all_of_them = list(found)
    errors = sorted(abs(each.peak_error) for each in all_of_them)
    told = [each for each in all_of_them if each.measured_static]
    static = [abs(each.static / each.measured_static - 1) for each in told]
    return Summary(
        len(errors),
        sum(each.is_static_right for each in told) / max(1, len(told)),
        sum(static) / max(1, len(told)),
        sum(errors) / len(errors),
        errors[min(len(errors) - 1, int(0.95 * len(errors)))],
        errors[-1],
    )


def by_suite(found: Iterable[Result]) -> dict[str, list[Result]]:
    """Return results by their suite."""
    return _by(found, lambda each: each.facts["suite"])


def _by(found: Iterable[Result], key: Callable[[Result], str]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = defaultdict(list)
    for each in found:
        groups[key(each)].append(each)
    return dict(groups)


def reserve_of(found: Iterable[Result]) -> float:
    """Return the share of a device that "fits" leaves free, so that 95 of 100 rows are not underestimated by more."""
    short = sorted(max(0.0, 1 - each.peak / each.measured_peak) for each in found)
    return short[min(len(short) - 1, int(0.95 * len(short)))]


def fits(each: Result, device_gib: float, reserve: float) -> bool:
    """Return whether the plan says that a row fits a device."""
    return each.peak <= (1 - reserve) * device_gib


def unsafe(found: Iterable[Result], reserve: float) -> list[tuple[Result, int]]:
    """Return rows said to fit a device that has less memory than the row needed."""
    return [
        (each, device)
        for each in found
        for device in DEVICES_GIB
        if fits(each, device, reserve) and each.measured_peak > device
    ]


def left_out(found: list[Result], key: Callable[[Result], str]) -> Mapping[str, tuple[float, int, int]]:
    """Return for every group its reserve, fitted on all others, with the rows that are unsafe, and all rows.

    Args:
        key: names the group of a row: its suite or its platform.
    """
    groups = _by(found, key)
    answer = {}
    for name, own in groups.items():
        reserve = reserve_of(each for other, rows in groups.items() if other != name for each in rows)
        answer[name] = reserve, len({id(each) for each, _ in unsafe(own, reserve)}), len(own)
    return answer


def lines(found: Iterable[Result]) -> list[str]:
    """Return a table of errors by suite, for docs/gpu.md."""
    described = [each for each in found if not each.unknown]
    table = [
        "| rows | number | static memory right | its mean error | peak: mean error | 95 % are within | worst |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, own in [*sorted(by_suite(described).items()), ("all", described)]:
        of = summary(own)
        shares = of.static_right, of.static_mean, of.peak_mean, of.peak_p95, of.peak_worst
        table.append(f"| {name} | {of.rows} | {' | '.join(f'{100 * share:.1f} %' for share in shares)} |")
    return table


def main() -> None:
    """Print every row of the file that is named, or of the published one, and the table of errors."""
    found = results(Path(sys.argv[1]) if len(sys.argv) > 1 else FILE)
    for each in found:
        facts = each.facts
        print(
            f"{facts['suite']} {facts['test']} {facts['platform']}: static {each.static:.2f} of "
            f"{each.measured_static:.2f} GiB, peak {each.peak:.2f} of {each.measured_peak:.2f} GiB "
            f"({100 * each.peak_error:+.1f} %){each.unknown and '; not said: '}{each.unknown}"
        )
    print("\n".join(lines(found)))
    for other in (*a100(), *torchtitan(), *gh200(), *h200()):
        error = f"{100 * other.error:+.1f} %"
        print(f"{other.system} {other.name}: {other.predicted:.1f} of {other.measured:.1f} GiB ({error})")


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
