"""What a rank holds is what the papers say."""

from __future__ import annotations

import pytest

from benchmarks.memory import Case, cases, run_cases


def test_published_figures():
    """Megatron-LM's table for its distributed optimizer, and ZeRO's figure 1."""
    assert [Case(1, "fp32", d).published for d in (1, 2, 4)] == [8 + 8 / d for d in (1, 2, 4)]
    assert [Case(1, "bf16", d).published for d in (1, 2, 4)] == [6 + 12 / d for d in (1, 2, 4)]
    assert [Case(stage, "fp16", 64).paper for stage in (1, 2, 3)] == [4 + 12 / 64, 2 + 14 / 64, 16 / 64]


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("ranks", [2])
def test_bytes_per_parameter_are_the_published_ones(ranks):
    found = list(run_cases(ranks, "fork"))
    assert [each.case for each in found] == list(cases((ranks,)))
    for each in found:
        assert each.parameters > 2_000_000
        assert each.per_parameter == pytest.approx(each.case.published, rel=0.05), each
