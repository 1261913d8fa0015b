"""The benchmark of a step on CPUs: its contestants, its table, and a contestant that ends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.train_cpu import CONTESTANTS, GOALS, TOKENS, Contestant, report, team
from benchmarks.train_cpu_peers import PEERS


def test_every_contestant_has_a_step_and_every_goal_two_contestants():
    names = [each.name for each in CONTESTANTS]
    assert len(set(names)) == len(names)
    assert {each.kind for each in CONTESTANTS} == {*PEERS, "ours"}
    for ours, theirs, _ in GOALS:
        assert {ours, theirs} <= set(names)


def test_ratios_are_of_rounds_and_say_whether_a_goal_is_reached(capsys):
    found = {"hf": [(2.0, 2.0), (9.0, 9.0), (2.2, 2.0)], "native": [(1.0, 1.0), (9.0, 1.0), (2.0, 1.0)]}
    report({name: SimpleNamespace(who=CONTESTANTS[0], first_s=3.0) for name in found}, found)
    out = capsys.readouterr().out
    assert f"{TOKENS / 2.2:9.0f}" in next(line for line in out.splitlines() if line.startswith("hf "))
    (ratio,) = (line.split() for line in out.splitlines() if line.startswith("native / hf "))
    assert ratio == ["native", "/", "hf", "1.100", "1.000", "..", "2.000", "2.000", "1.08", "reached"]


def test_a_contestant_that_ends_says_why(tmp_path):
    with (
        pytest.raises(RuntimeError, match=r"^nobody: ended, KeyError: 'nobody'$"),
        team(Contestant("nobody", 1, "nobody"), tmp_path, [0]),
    ):
        raise AssertionError("it ran")
