"""Steps whose numbers are wrong: found by what the run saw, answered as the settings say, alike on every rank."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from megads.checkpoint.resume.progress import Progress
from megads.config.schema import RunConfig
from megads.engine.base import StepResult
from megads.errors import ConfigError, TrainingError
from megads.train.fault.anomaly import Guard, largest_usual
from tests.engine.plain import settings
from tests.parity.layouts import Layout
from tests.parity.loops import loop_of, no_number, spike, state_of
from tests.ranks import run_ranks

LOOKS = {"stability.spike_window": "4", "stability.spike_after": "0", "stability.spike_factor": "5"}
STEADY = (2.0, 2.02, 1.98, 2.01)


def run_of(**changes: str) -> RunConfig:
    return settings({}, **{**LOOKS, **changes})


def done(**fields: Any) -> Progress:
    return Progress(**{"iteration": 10, "recent_losses": STEADY, **fields})


def step(loss: float, *, skipped: bool = False, scale: float = 1.0, rejected: bool = False) -> StepResult:
    return StepResult(torch.tensor(loss), 1.0, skipped, scale, rejected)


def test_the_limit_is_the_median_and_so_many_spreads():
    # Median 2.005, distances 0.005 0.015 0.025 0.005 -> median 0.01; the spread is at least 1 % of the median.
    assert largest_usual(STEADY, 5) == pytest.approx((2.005, 2.005 + 5 * 0.02005))
    wide = (1.0, 2.0, 3.0, 4.0, 5.0)
    assert largest_usual(wide, 2) == pytest.approx((3.0, 3 + 2 * 1.4826))
    # One loss out of all bounds moves it hardly at all.
    assert largest_usual((*wide, 1e6), 2)[1] < 9


@pytest.mark.parametrize(
    ("loss", "progress", "kind"),
    [
        (2.1, done(), None),
        (2.11, done(), "spike"),
        (-9.0, done(), None),
        (9.0, done(recent_losses=STEADY[1:]), None),
        (9.0, done(recent_losses=()), None),
        (math.nan, done(), None),
    ],
)
def test_what_a_spike_is(loss, progress, kind):
    guard = Guard(run_of(**{"stability.on_spike": "skip"}), Path("c"))
    found = guard.judge(loss, progress)
    assert (found.kind if found else None) == kind
    assert guard.watching(progress)(loss) == (kind is None)


def test_nothing_is_asked_of_engines_unless_a_policy_wants_to_know():
    assert Guard(run_of(), Path("c")).watching(done()) is None
    assert Guard(run_of(), Path("c")).window == 0
    assert Guard(run_of(**{"stability.on_nan": "stop"}), Path("c")).watching(done())(math.inf) is False
    assert Guard(run_of(**{"stability.on_spike": "stop"}), Path("c")).window == 4


def test_no_loss_of_the_first_steps_is_a_spike():
    guard = Guard(run_of(**{"stability.on_spike": "stop", "stability.spike_after": "11"}), Path("c"))
    assert guard.judge(9.0, done()) is None
    assert guard.judge(9.0, done(iteration=11)) is not None


@pytest.mark.parametrize(
    ("dtype", "scale", "more", "is_trouble"),
    [
        ("fp16", 1024.0, {}, False),  # the loss scale halves, as it should
        ("fp16", 1.0, {}, True),  # it cannot
        ("fp16", 1024.0, {"optim.loss_scale": "1024"}, True),  # it must not
        ("bf16", 1.0, {}, True),
    ],
)
def test_an_overflow_that_the_loss_scale_answers_is_no_trouble(dtype, scale, more, is_trouble):
    guard = Guard(run_of(**{"train.dtype": dtype, "stability.on_nan": "stop", **more}), Path("c"))
    found = guard.step_done(done(), 2.0, step(2.0, skipped=True, scale=scale))
    assert (found is not None) == is_trouble
    assert guard.step_done(done(), 2.0, step(2.0)) is None


def test_too_many_bad_steps_at_the_smallest_scale_say_so():
    guard = Guard(run_of(**{"train.dtype": "fp16", "train.max_skipped": "3"}), Path("c"))
    for scale in (2.0, 1.0):
        guard.step_done(done(), 2.0, step(2.0, skipped=True, scale=scale))
    with pytest.raises(TrainingError) as caught:
        guard.step_done(done(), 2.0, step(2.0, skipped=True, scale=1.0))
    assert str(caught.value) == (
        "3 steps in a row, to iteration 11, were skipped because their gradients were not finite although the loss "
        "scale is at its minimum of 1 (MIN_LOSS_SCALE); checkpoints are in c; lower LR, use DTYPE=bf16, check "
        "the data, or raise MAX_SKIPPED_STEPS"
    )


def test_spikes_without_end_end_the_run():
    guard = Guard(run_of(**{"stability.on_spike": "skip", "train.max_skipped": "2"}), Path("c"))
    assert guard.step_done(done(), 9.0, step(9.0, skipped=True, rejected=True)).policy == "skip"
    with pytest.raises(TrainingError, match=r"losses were spikes: loss 9 is a spike.*raise SPIKE_FACTOR"):
        guard.step_done(done(), 9.0, step(9.0, skipped=True, rejected=True))


def test_old_checkpoints_know_no_losses_and_new_ones_give_them_back():
    assert Progress.read({"iteration": 3}) == Progress(3)
    kept = done(first_loss=0.1, rollbacks=2)
    assert Progress.read(json.loads(json.dumps(vars(kept)))) == kept


POLICY = {"stability.on_spike": "skip", "stability.spike_window": "5", "stability.spike_after": "4"}
DP2 = Layout("llama", dp=2, zero=1)


def _skips_alike_after_a_resume(folder: Path) -> None:
    whole = loop_of(DP2, folder / "whole", {6: spike, 9: spike}, **POLICY)
    whole.run()
    part = loop_of(DP2, folder / "part", {6: spike}, **{**POLICY, "train.exit_interval": "7"})
    part.run()
    rest = loop_of(DP2, folder / "part", {2: spike}, **POLICY)  # step 9
    assert rest.training.progress == part.training.progress
    rest.run()
    progress = rest.training.progress
    assert (progress.rejected_iterations, progress.skipped_iterations, progress.iteration) == (2, 2, 12)
    assert (progress.scheduled_samples, progress.consumed_samples) == (80, 96)
    assert progress == whole.training.progress
    assert state_of(rest) == state_of(whole)
    if whole.teller:
        rows = [json.loads(line) for line in (folder / "whole/metrics.jsonl").read_text().splitlines()]
        told = {row["iteration"]: row["rejected_iterations"] for row in rows if "lm_loss" in row}
        assert (told[5], told[6], told[9], told[12]) == (0, 1, 2, 2)


@pytest.mark.dist
def test_what_is_left_out_is_the_same_after_a_resume(tmp_path):
    run_ranks(2, _skips_alike_after_a_resume, tmp_path, timeout_s=180)


def _ends(folder: Path, losses: dict[int, Any], changes: dict[str, str], saved: list[int], told: list[str]) -> None:
    layout = Layout("llama", pp=2, zero=1)
    loop = loop_of(layout, folder / "run", losses, **changes)
    with pytest.raises(TrainingError) as caught:
        loop.run()
    for words in told:
        assert words.format(folder=folder / "run/checkpoints") in str(caught.value)
    found = sorted(path.name for path in (folder / "run/checkpoints").glob("*"))
    assert found == [f"iter_{iteration:07d}" for iteration in saved]


STOP = {**POLICY, "stability.on_spike": "stop", "stability.on_nan": "stop"}
BACK = {**POLICY, "stability.on_spike": "rollback", "stability.on_nan": "rollback"}
ENDS: dict[str, tuple[dict[int, Any], dict[str, str], list[int], list[str]]] = {
    "stop-spike": (
        {7: spike},
        {**STOP, "train.skip_iterations": "2-2"},
        [4],
        [
            "step 8: loss ",
            "allow at most ",
            "(SPIKE_FACTOR=8)",
            "ON_SPIKE=stop ends the run, and this step is discarded; ",
            "the last checkpoint is {folder}/iter_0000004",
            "SKIP_TRAIN_ITERATION_RANGE='2-2 5-8'",
        ],
    ),
    # The save that is under way becomes a checkpoint before the run ends.
    "stop-nan-while-saving": (
        {5: no_number},
        {**STOP, "checkpoint.in_background": "true"},
        [4],
        ["step 5: loss nan; ON_NAN=stop ends the run", "the last checkpoint is {folder}/iter_0000004"],
    ),
    "no-checkpoint-yet": (
        {3: no_number},
        BACK,
        [],
        ["step 3: loss nan; ON_NAN=rollback, and the run has no checkpoint yet", "set ON_NAN=skip"],
    ),
    # From 4, steps 5, 6 and 7 are no number, one after the other.
    "again-and-again": (
        dict.fromkeys((5, 6, 7), no_number),
        {**BACK, "stability.max_rollbacks": "2"},
        [4],
        ["step 7: loss nan; MAX_ROLLBACKS=2 rollbacks to {folder}/iter_0000004 did not help", "CKPT_STEP"],
    ),
}


@pytest.mark.dist
@pytest.mark.parametrize("case", ENDS)
def test_a_run_ends_with_what_to_do_and_keeps_nothing_of_the_bad_step(case, tmp_path):
    run_ranks(2, _ends, tmp_path, *ENDS[case], timeout_s=180)


def _tells_of_a_rollback(folder: Path) -> None:
    loop = loop_of(DP2, folder / "run", {6: spike}, **{**BACK, "stability.rollback_skip": "1"})
    loop.run()
    if loop.teller is None:
        return
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    back = next(row for row in rows if "rolled_back_to" in row)
    assert (back["iteration"], back["rolled_back_to"], back["rollbacks"], back["rollback_reason"]) == (6, 4, 1, "spike")
    bad = next(row for row in rows if row["iteration"] == 6 and "lm_loss" in row)
    assert back["rejected_loss"] == bad["lm_loss"]
    over = next(row for row in rows if "passed_over_iterations" in row)
    assert (over["iteration"], over["passed_over_iterations"], over["consumed_samples"]) == (7, 3, 56)
    assert [row["rollbacks"] for row in rows if "lm_loss" in row] == [0] * 6 + [1] * 5


@pytest.mark.dist
def test_a_rollback_is_told(tmp_path):
    run_ranks(2, _tells_of_a_rollback, tmp_path, timeout_s=180)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"checkpoint.save_interval": "0"}, "ON_SPIKE=rollback rolls back to the last checkpoint, and SAVE_INTERVAL=0"),
        ({"checkpoint.save_optim": "false"}, "ON_SPIKE=rollback resumes from a checkpoint, and NO_SAVE_OPTIM=1"),
    ],
)
def test_a_rollback_needs_checkpoints(changes, told):
    from megads.config.rules.checks import check

    run = settings({}, **{"stability.on_spike": "rollback", **changes})
    with pytest.raises(ConfigError) as caught:
        check(run, 1)
    assert told in str(caught.value)
    check(replace_policy(run, "skip"), 1)


def replace_policy(run: RunConfig, policy: str) -> RunConfig:
    return run.model_copy(update={"stability": run.stability.model_copy(update={"on_spike": policy})})
