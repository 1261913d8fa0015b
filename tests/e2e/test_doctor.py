"""``megads doctor --gradients`` as a user calls it."""

import pytest


@pytest.mark.parametrize(
    "settings",
    [{"TP": "2", "PP": "2"}, {"SP": "2", "ZERO_STAGE": "3", "DTYPE": "bf16", "RECOMPUTE": "full"}],
    ids=["tp2pp2", "sp2zero3"],
)
def test_a_layout_is_compared_with_one_rank(megads, settings):
    done = megads("doctor", "--gradients", **settings)
    assert done.returncode == 0, done.stderr
    assert "this layout computes what one rank computes" in done.stdout
    assert done.stderr == ""
    assert list(megads.folder.iterdir()) == []


def test_an_impossible_layout_is_refused(megads):
    done = megads("doctor", "--gradients", PP="2", ZERO_STAGE="3")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "use ZERO_STAGE=1 or PP=1" in done.stderr
    assert list(megads.folder.iterdir()) == []


def test_what_to_check_must_be_said(megads):
    done = megads("doctor")
    assert (done.returncode, done.stderr) == (
        2,
        "megads: megads doctor needs to know what to check: megads doctor --gradients\n",
    )
