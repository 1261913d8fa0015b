"""A run that rolls back to its last checkpoint, or ends and says where it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megads.config.schema import RunConfig
from megads.errors import ConfigError, TrainingError
from tests.engine.plain import settings
from tests.parity.layouts import Layout
from tests.parity.loops import loop_of, no_number, spike
from tests.ranks import run_ranks
from tests.train.fault.test_anomaly import DP2, POLICY


def _ends(
    folder: Path, engine: str, losses: dict[int, Any], changes: dict[str, str], saved: list[int], told: list[str]
) -> None:
    layout = Layout("llama", pp=2, zero=1).on(engine)
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
@pytest.mark.parametrize(("case", "engine"), [*((case, "deepspeed") for case in ENDS), ("stop-spike", "native")])
def test_a_run_ends_with_what_to_do_and_keeps_nothing_of_the_bad_step(case, engine, tmp_path):
    run_ranks(2, _ends, tmp_path, engine, *ENDS[case], timeout_s=180)


def _tells_of_a_rollback(folder: Path, layout: Layout) -> None:
    loop = loop_of(layout, folder / "run", {6: spike}, **{**BACK, "stability.rollback_skip": "1"})
    loop.run()
    if loop.reporter is None:
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
@pytest.mark.parametrize("layout", [DP2, DP2.on("native")], ids=str)
def test_a_rollback_is_told(layout, tmp_path):
    run_ranks(2, _tells_of_a_rollback, tmp_path, layout, timeout_s=180)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"checkpoint.save_interval": "0"}, "ON_SPIKE=rollback rolls back to the last checkpoint, and SAVE_INTERVAL=0"),
        ({"checkpoint.save_optim": "false"}, "ON_SPIKE=rollback resumes from a checkpoint, and NO_SAVE_OPTIM=1"),
    ],
)
def test_a_rollback_needs_checkpoints(changes, told):
    from tests.config.advice import check

    run = settings({}, **{"stability.on_spike": "rollback", **changes})
    with pytest.raises(ConfigError) as caught:
        check(run, 1)
    assert told in str(caught.value)
    check(replace_policy(run, "skip"), 1)


def replace_policy(run: RunConfig, policy: str) -> RunConfig:
    return run.model_copy(update={"stability": run.stability.model_copy(update={"on_spike": policy})})
