"""A job of a long run clamped the warm-up to its own few steps, and trained with 116 times the learning rate."""

import pytest

SHORT = {"TRAIN_ITERS": "3", "LR": "0.00116", "LR_WARMUP_ITERS": "116", "EVAL_INTERVAL": "0"}


def test_a_warmup_longer_than_the_job_is_refused_or_has_the_rates_of_the_plan(megads):
    refused = megads.train("alone", **SHORT)
    assert refused.returncode == 2
    (line,) = [each for each in refused.stderr.splitlines() if each.startswith("megads: LR_WARMUP_ITERS")]
    assert line.startswith("megads: LR_WARMUP_ITERS=116 takes all of the decay of 3 steps (LR_DECAY_ITERS, else TRAIN")
    assert not (megads.folder / "alone/metrics.jsonl").exists()
    planned = megads.train("planned", **SHORT, PLANNED_ITERS="1000")
    assert planned.returncode == 0, planned.stderr
    rates = [row["learning_rate"] for row in megads.rows("planned") if "lm_loss" in row]
    assert rates == pytest.approx([0.0, 0.00001, 0.00002], rel=1e-12)


def test_an_option_that_nothing_reads_is_refused(megads):
    found = megads.train("dead", "--lr-warmup-steps", "116", **SHORT)
    assert found.returncode == 2
    assert len([line for line in found.stderr.splitlines() if "--lr-warmup-steps" in line]) == 1
