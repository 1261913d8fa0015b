"""The benchmark of sample indices measures what it says."""

from __future__ import annotations

from benchmarks.index import BUILDERS, MEAN_LENGTH, SEQ_LENGTH, Size, run
from tests.data.samples.upstream import megatron_core


def test_both_builders_make_the_same_index(tmp_path):
    megatron_core()
    figures = run(Size(1000, 9000, 1), tmp_path)
    assert figures["equal"] == 1
    assert all(figures[f"{name} build s"] > 0 for name in BUILDERS)
    assert figures["rank holds MB"] < 200
    assert figures["start s"] < 10


def test_epochs_are_counted():
    assert Size(MEAN_LENGTH, 3 * SEQ_LENGTH, 1).epochs * MEAN_LENGTH**2 == 3 * SEQ_LENGTH**2
