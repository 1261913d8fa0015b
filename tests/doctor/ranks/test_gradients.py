"""What ``megads doctor --gradients`` finds, and what it must not overlook."""

from __future__ import annotations

import pytest

from tests.parity.layouts import Layout
from tests.ranks import groups_of, run_ranks

PLAIN = {"optim.clip_grad": "0", "train.micro_batch": "2"}


def _compare(layout: Layout, dtype: str):
    import os

    os.environ["DS_ACCELERATOR"] = "cpu"
    import torch

    from megads.doctor.ranks.gradients import compare_gradients

    run = layout.run(**PLAIN, **{"train.dtype": dtype})
    return compare_gradients(run, groups_of(**layout.degrees), torch.device("cpu"))


def _finds_no_difference(layout: Layout, dtype: str) -> None:
    from megads.doctor.ranks.gradients import report

    found = _compare(layout, dtype)
    assert found.is_equal, report(found)
    assert {each.stage for each in found.parameters} == set(range(layout.pp))
    assert "computes what one rank computes" in report(found)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        (Layout("gpt", pp=2, tp=2), "fp32"),
        (Layout("gqa", sp=2, dp=2, zero=3), "fp32"),
        (Layout("gpt", pp=2, sp=2), "bf16"),
    ],
    ids=str,
)
def test_a_sound_layout_is_equal(layout, dtype):
    run_ranks(layout.ranks, _finds_no_difference, layout, dtype)


def _finds_a_wrong_scale(layout: Layout) -> None:
    import megads.timing.collectives as collectives
    from megads.doctor.ranks.gradients import report

    right = collectives.exchange
    # What DeepSpeed 0.18.5 does: gradients are divided once more at every boundary between stages.
    mine = collectives.get_rank()
    collectives.exchange = lambda sent, received, group: right(
        [(x / 4 if rank < mine else x, rank) for x, rank in sent], received, group
    )
    try:
        found = _compare(layout, "fp32")
    finally:
        collectives.exchange = right
    assert not found.is_equal
    assert {each.stage for each in found.wrong} == {0}
    assert "stage 0    " in report(found)
    assert "gradients 0.25 times one rank's" in report(found)
    assert "NOT EQUAL" in report(found)


@pytest.mark.dist
def test_gradients_scaled_wrongly_between_stages_are_named():
    run_ranks(2, _finds_a_wrong_scale, Layout("llama", pp=2))
