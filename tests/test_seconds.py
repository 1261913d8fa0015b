"""The table of seconds by folder, and its budget in the README."""

from __future__ import annotations

from pathlib import Path

from tests.seconds import FIRST, README, budgets, folder_of, group_of, table

ROOT = Path(__file__).parents[1]


def test_every_folder_has_a_budget_and_every_budget_a_folder():
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in ROOT.glob("tests/*/**/test_*.py")}
    assert set(budgets(README.read_text())) == {*folders, "tests"}


def test_the_budget_is_that_of_44_minutes_on_two_cores():
    assert sum(budgets(README.read_text()).values()) <= 2 * 44 * 60


def test_what_starts_first_is_there():
    assert all((ROOT / name).is_file() for name in FIRST if name != "slurm")


def test_a_line_for_each_folder_the_dearest_first():
    nodes = ("tests/e2e/test_a.py::test_b[x/y]", "tests/test_c.py::test")
    assert [folder_of(node) for node in nodes] == ["e2e", "tests"]
    assert table({"e2e": 12.4, "cli": 30.0}, {"e2e": 3, "cli": 1}, {"e2e": 20, "cli": 10, "data": 5}) == [
        "folder         tests   seconds   budget",
        "cli                1        30       10  over",
        "e2e                3        12       20",
        "all                4        42       35",
    ]


def test_a_file_and_all_of_slurm_stay_together():
    assert group_of("tests/test_seconds.py::test_a[1]") == "tests/test_seconds.py"
    slurm = {group_of(f"tests/{file}::test_a") for file in ("e2e/test_launchers.py", "cluster/test_slurm.py")}
    assert slurm == {"slurm"}
