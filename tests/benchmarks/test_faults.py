"""Some of the faults of the benchmark; by hand: python -m benchmarks.faults --count 500 --seed 22."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.faults.__main__ import run_all
from benchmarks.faults.kinds import TABLE, draw
from benchmarks.faults.tally import Result, Tally
from tests.pairs import SEED

REAL = {"a rank gets SIGKILL", "EIO in a checkpoint's file, once", "a disk that is full and stays full"} | {
    "the newest checkpoint is damaged, and a rank is killed",
    "a rank fails with the words of a node failure that was published",
}
"""Of the faults in real runs, one of each of these."""


def test_faults_have_their_causes_nothing_is_lost_and_no_healthy_host_is_excluded(tmp_path):
    drawn = draw(150, SEED)
    real = {fault.kind: fault for fault in drawn if fault.kind in REAL}
    simulated = [fault for fault in drawn if fault.hosts][:20]
    tally = run_all([*real.values(), *simulated], tmp_path)
    assert len(tally.results) == len(REAL) + 20
    assert not tally.problems(), f"seed {SEED}: " + "\n".join(tally.problems())


def test_every_kind_is_drawn_and_a_seed_draws_the_same():
    faults = draw(500, 22)
    assert faults == draw(500, 22)
    assert len(faults) == 500
    kinds = Counter(fault.kind for fault in faults)
    assert len(kinds) >= len(TABLE) - 3  # disks share kinds
    assert sum(fault.recoverable for fault in faults) > 400


@pytest.mark.parametrize(
    "wrong", [{"lost": "3 steps"}, {"excluded": ("n1",)}, {"is_right": False}, {"recovered": False}]
)
def test_what_is_not_as_it_is_to_be_is_listed(wrong):
    good = {"kind": "k", "causes": ("node",), "verdict": "v", "recovered": True}
    assert Tally([Result(**good)]).problems() == []
    assert len(Tally([Result(**good), Result(**{**good, **wrong})]).problems()) == 1
    assert "| k | 1 | node 1 | 1 | 1 of 1 | 0 | 0 |" in Tally([Result(**good)]).table()
