"""``megads doctor --gradients`` as a user calls it."""

import pytest


@pytest.mark.parametrize(
    "settings",
    [
        {"TP": "2", "PP": "2", "WALL_CLOCK_BREAKDOWN": "1"},
        {"SP": "2", "ZERO_STAGE": "3", "DTYPE": "bf16", "RECOMPUTE": "full"},
        # What concerns the user's own model and batches only must not stop the check.
        {
            **{"PP": "2", "STEPS_PER_PRINT": "1", "LR_WARMUP_ITERS": "100", "VAL_SPLIT": "0", "MIN_LOSS_SCALE": "1024"},
            "DS_CONFIG_OVERRIDES": '{"train_batch_size": 1024, "zero_optimization": {"reduce_bucket_size": 100000}}',
        },
    ],
    ids=["tp2pp2", "sp2zero3", "of-a-large-run"],
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


def test_more_ranks_than_the_host_can_hold_are_refused(megads):
    done = megads("doctor", "--gradients", TP="512")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "of memory for 512 ranks" in done.stderr


def test_what_to_check_must_be_said(megads):
    done = megads("doctor")
    assert (done.returncode, done.stderr) == (
        2,
        "megads: megads doctor needs to know what to check: megads doctor --gradients\n",
    )
