"""Steps whose numbers are wrong: found by what the run saw, answered as the settings say, alike on every rank."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from megads.checkpoint.resume.progress import Progress
from megads.config.schema import RunConfig
from megads.engine.base import StepResult
from megads.errors import TrainingError
from megads.train.fault.anomaly import Guard, largest_usual
from tests.engine.plain import settings
from tests.parity.layouts import Layout
from tests.parity.loops import loop_of, spike, state_of
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
    found = guard.find_anomaly(loss, progress)
    assert (found.kind if found else None) == kind
    assert guard.watching(progress)(loss) == (kind is None)


def test_nothing_is_asked_of_engines_unless_a_policy_wants_to_know():
    assert Guard(run_of(), Path("c")).watching(done()) is None
    assert Guard(run_of(), Path("c")).window == 0
    assert Guard(run_of(**{"stability.on_nan": "stop"}), Path("c")).watching(done())(math.inf) is False
    assert Guard(run_of(**{"stability.on_spike": "stop"}), Path("c")).window == 4


def test_no_loss_of_the_first_steps_is_a_spike():
    guard = Guard(run_of(**{"stability.on_spike": "stop", "stability.spike_after": "11"}), Path("c"))
    assert guard.find_anomaly(9.0, done()) is None
    assert guard.find_anomaly(9.0, done(iteration=11)) is not None


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


def _skips_alike_after_a_resume(folder: Path, layout: Layout) -> None:
    whole = loop_of(layout, folder / "whole", {6: spike, 9: spike}, **POLICY)
    whole.run()
    part = loop_of(layout, folder / "part", {6: spike}, **{**POLICY, "train.exit_interval": "7"})
    part.run()
    rest = loop_of(layout, folder / "part", {2: spike}, **POLICY)  # step 9
    assert rest.training.progress == part.training.progress
    rest.run()
    progress = rest.training.progress
    assert (progress.rejected_iterations, progress.skipped_iterations, progress.iteration) == (2, 2, 12)
    assert (progress.scheduled_samples, progress.consumed_samples) == (80, 96)
    assert progress == whole.training.progress
    assert state_of(rest) == state_of(whole)
    if whole.reporter:
        rows = [json.loads(line) for line in (folder / "whole/metrics.jsonl").read_text().splitlines()]
        told = {row["iteration"]: row["rejected_iterations"] for row in rows if "lm_loss" in row}
        assert (told[5], told[6], told[9], told[12]) == (0, 1, 2, 2)


@pytest.mark.dist
@pytest.mark.parametrize("layout", [DP2, replace(DP2, zero=3).on("native")], ids=str)
def test_what_is_left_out_is_the_same_after_a_resume(layout, tmp_path):
    run_ranks(2, _skips_alike_after_a_resume, tmp_path, layout, timeout_s=180)
