from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from megads.monitor.run_state.branches import BranchPoint, as_tree, read_branch

POINT = BranchPoint("/runs/main", 20, 160, 5120, "/runs/main/checkpoints/iter_0000020", "2026-11-23 21:00:00")


def test_a_branch_point_is_read(tmp_path: Path) -> None:
    (tmp_path / "branch.json").write_text(json.dumps(asdict(POINT)))
    assert read_branch(tmp_path) == POINT
    assert POINT.name == "main"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"of": "a"}', '{"of": "a", "iteration": "x"}', "[" * 100])
def test_another_file_is_none(tmp_path: Path, text: str) -> None:
    assert read_branch(tmp_path) is None
    (tmp_path / "branch.json").write_text(text)
    assert read_branch(tmp_path) is None


def test_branches_stand_behind_what_they_are_of() -> None:
    paths = ["r/a", "r/b", "r/c", "r/d", "r/e"]
    points = {"r/a": ("r/c", 9), "r/b": ("r/a", 12), "r/d": ("r/c", 3), "r/e": ("gone", 1)}
    assert as_tree(paths, points) == [("r/c", 0), ("r/d", 1), ("r/a", 1), ("r/b", 2), ("r/e", 0)]


def test_runs_that_name_each_other_are_listed() -> None:
    assert sorted(as_tree(["a", "b", "c"], {"a": ("b", 1), "b": ("a", 1)})) == [("a", 0), ("b", 0), ("c", 0)]
