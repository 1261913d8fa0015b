"""Seconds of every folder of tests against its budget, and which files start first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

README = Path(__file__).parent / "README.md"

FIRST = (
    *(
        "slurm",
        "tests/engine/deepspeed/test_recompute.py",
        "tests/parity/test_layouts.py",
        "tests/engine/optim/test_build.py",
    ),
    *("tests/e2e/test_signals.py", "tests/parity/test_mutations.py", "tests/parity/test_reshape.py"),
    *("tests/launch/supervise/test_run.py", "tests/e2e/test_deterministic.py", "tests/parity/test_resume_bitwise.py"),
    *("tests/engine/test_zero_stages.py", "tests/engine/optim/test_optimizer_state.py", "tests/e2e/test_load.py"),
    *("tests/engine/deepspeed/test_pipeline.py", "tests/benchmarks/test_rank_startup.py", "tests/e2e/test_docs.py"),
    *("tests/release/test_wheel.py", "tests/e2e/test_tutorial.py"),
)
"""Groups of tests that take longest, longest first: one that starts last keeps one worker alone at the end."""


@cache
def group_of(node: str) -> str:
    """Return what a test has to share a worker with: its file, or everything that uses the one SLURM."""
    file = node.split("::")[0]
    path = README.parents[1] / file
    uses = path.is_file() and re.search(r"^def test_\w+\([^)]*\bslurm\b", path.read_text(), re.MULTILINE)
    return "slurm" if uses else file


def place_of(node: str) -> int:
    """Return where a test stands in the order of groups."""
    group = group_of(node)
    return FIRST.index(group) if group in FIRST else len(FIRST)


def folder_of(node: str) -> str:
    """Return the folder below tests/ that a test's id begins with; "tests" for those besides the folders."""
    parts = node.split("::")[0].split("/")
    return parts[1] if len(parts) > 2 else "tests"


def budgets(text: str) -> dict[str, float]:
    """Return seconds by folder from the table of the README."""
    return {name: float(seconds) for name, seconds in re.findall(r"^\| `([\w/]+)` \| +(\d+) \|", text, re.MULTILINE)}


def table(seconds: Mapping[str, float], tests: Mapping[str, int], allowed: Mapping[str, float]) -> list[str]:
    """Return lines: of each folder its tests, the seconds of all workers, and its budget; the dearest first."""
    lines = [f"{'folder':12}{'tests':>8}{'seconds':>10}{'budget':>9}"]
    rows = sorted(seconds, key=lambda name: -seconds[name])
    for name in rows:
        spent, may = seconds[name], allowed.get(name, 0)
        lines.append(f"{name:12}{tests[name]:8}{spent:10.0f}{may:9.0f}{'  over' if spent > may else ''}")
    whole = (sum(tests.values()), sum(seconds.values()), sum(allowed.values()))
    return [*lines, f"{'all':12}{whole[0]:8}{whole[1]:10.0f}{whole[2]:9.0f}"]


class Seconds:
    """Adds up the seconds of every phase of every test; pytest's plugin."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: object) -> None:
        name = folder_of(report.nodeid)  # type: ignore[attr-defined]
        self.seconds[name] += report.duration  # type: ignore[attr-defined]
        self.tests[name] += report.when == "call"  # type: ignore[attr-defined]

    def pytest_terminal_summary(self, terminalreporter: object) -> None:
        if len(self.seconds) < 2:
            return
        terminalreporter.section("seconds by folder, of all workers")  # type: ignore[attr-defined]
        for line in table(self.seconds, self.tests, budgets(README.read_text())):
            terminalreporter.write_line(line)  # type: ignore[attr-defined]
