"""Runs of days in queues of hours: jobs were warned, preempted or killed, and people watched and resubmitted by hand.

The same command in every job is the chain: a job that is warned or preempted saves and exits with 75, one that is
killed loses the steps since its last save, the next one resumes, and one that comes too late has nothing to do.
"""

import json
import signal

from tests.e2e.test_resume import numbers, wait_for_step

LONG = {"TRAIN_ITERS": "4000", "PLANNED_ITERS": "4000", "EVAL_INTERVAL": "0", "SAVE_INTERVAL": "40"}
DROPOUT = {"HIDDEN_DROPOUT": "0.1", "ATTENTION_DROPOUT": "0.1"}


def end_by(megads, number, step):
    """Start a link, send it a signal after ``step``; return its exit code and the last step that it is known to do."""
    process = megads.start("train", RUN_DIR="chain", **LONG, **DROPOUT)
    wait_for_step(process, megads.folder / "chain", step)
    process.send_signal(number)
    process.communicate(timeout=60)
    outcome = megads.folder / "chain/outcome.json"
    return process.returncode, json.loads(outcome.read_text())["iteration"] if outcome.is_file() else 0


def test_a_chain_that_is_warned_preempted_and_killed_is_the_run_that_was_not(megads):
    code, warned = end_by(megads, signal.SIGUSR1, 3)
    assert (code, 3 <= warned < 4000) == (75, True)
    code, preempted = end_by(megads, signal.SIGTERM, warned + 3)
    assert (code, preempted > warned) == (75, True)
    saved = (preempted // 40 + 1) * 40
    code, _ = end_by(megads, signal.SIGKILL, saved + 2)
    assert code == -signal.SIGKILL
    last = str(saved + 43)
    rest = megads.train("chain", **{**LONG, **DROPOUT, "TRAIN_ITERS": last})
    assert rest.returncode == 0, rest.stderr
    assert "link     4: 1 rank on 1 host, as before\n" in rest.stderr
    late = megads.train("chain", **{**LONG, **DROPOUT, "TRAIN_ITERS": last})
    assert late.returncode == 0
    assert f"chain is complete ({last} iterations); a larger TRAIN_ITERS trains longer" in late.stderr
    whole = megads.train("whole", **{**LONG, **DROPOUT, "TRAIN_ITERS": last})
    assert whole.returncode == 0, whole.stderr
    assert numbers(megads.rows("chain")) == numbers(megads.rows("whole"))
