"""The rows of attempts.jsonl that a launch writes."""

from __future__ import annotations

import os
import sys

import pytest

from megads.config.derive import derive
from megads.config.sources.resolve import resolve
from megads.launch.launchers.plan import LaunchPlan
from megads.launch.schedulers.allocation import Allocation
from megads.launch.supervise.end import Ended, with_end
from megads.launch.supervise.record import attempt_of, note_start
from megads.launch.supervise.run import run_plan
from megads.monitor.run_state.attempts import Attempt, read_attempts
from megads.monitor.run_state.outcome import Outcome

WRITES = """
import json, pathlib, sys
pathlib.Path(sys.argv[1], "outcome.json").write_text(
    json.dumps({"exit_code": 1, "message": "gone", "iteration": 12, "kind": "killed", "rank": 1, "host": "b"})
)
"""


def test_a_start_says_where_it_is_and_in_which_layout():
    asked = resolve("tiny", env={"TP": "2", "GLOBAL_BATCH": "16", "MICRO_BATCH": "2"}, machine="generic")
    run = derive(asked, num_hosts=2, ranks_per_host=2, vocab_size=500).run
    found = attempt_of(run, Allocation("pbs", ("a", "b"), 2, "7.pbs"), 10)
    assert (found.job, found.hosts, found.num_ranks, found.began) == ("7.pbs", ("a", "b"), 4, 10)
    assert found.layout == f"TP 2 PP 1 SP 1 DP 2 ZERO {run.parallel.zero_stage}"
    assert found.grad_acc_steps == 4


def test_the_launcher_ends_what_no_rank_ended(tmp_path):
    started = note_start(tmp_path, Attempt("7", hosts=("a",), began=3))
    assert read_attempts(tmp_path) == [started]
    assert started.reached == 3
    lost = with_end(started, Ended(-9, None), tmp_path)
    assert (lost.exit_code, lost.reached, lost.kind, lost.message) == (137, 3, "", "the launcher ended with -9")
    told = with_end(started, Ended(0, Outcome(0, "", 9, "done")), tmp_path)
    assert (told.exit_code, told.reached, told.kind) == (0, 9, "done")


@pytest.mark.parametrize("starts", [1, 3])
def test_every_start_of_a_plan_has_a_row(tmp_path, starts):
    plan = LaunchPlan((sys.executable, "-c", WRITES, str(tmp_path)), {})
    for number in range(starts):
        assert run_plan(plan, tmp_path, os.environ, attempt=Attempt(f"job{number}", hosts=("a", "b"), num_ranks=2)) == 1
    rows = read_attempts(tmp_path)
    assert [(row.job, row.reached, row.kind, row.host, row.is_open) for row in rows] == [
        (f"job{number}", 12, "killed", "b", False) for number in range(starts)
    ]
    assert len((tmp_path / "attempts.jsonl").read_text().splitlines()) == 2 * starts
