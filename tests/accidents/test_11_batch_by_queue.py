"""Batches grew with the nodes that the queue's policy asked for, and the model was another one after each job."""

import socket

import pytest

SHARED = {"GLOBAL_BATCH": "0", "MICRO_BATCH": "2", "EVAL_INTERVAL": "0", "TRAIN_ITERS": "6"}


def test_a_batch_that_followed_from_the_first_job_stays_in_the_next_ones(megads):
    whole = megads.train("whole", **{**SHARED, "GLOBAL_BATCH": "4"})
    assert whole.returncode == 0, whole.stderr
    first = megads.train("chain", **SHARED, DP="2", EXIT_INTERVAL="2")
    assert first.returncode == 75, first.stderr
    # Two ranks of a micro-batch of 2 were a batch of 4; one rank does it in two micro-batches.
    rest = megads.train("chain", **SHARED)
    assert rest.returncode == 0, rest.stderr
    assert "link     2: 1 rank on 1 host, was 2 on 1; DP 2 -> 1; accumulation 1 -> 2\n" in rest.stderr
    rows = {name: [row for row in megads.rows(name) if "lm_loss" in row] for name in ("whole", "chain")}
    for key in ("iteration", "consumed_samples", "learning_rate", "global_batch_size"):
        assert [row[key] for row in rows["chain"]] == [row[key] for row in rows["whole"]]
    losses = [[row["lm_loss"] for row in rows[name]] for name in ("chain", "whole")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    (link,) = [row for row in megads.rows("chain") if "link" in row]
    assert (link["iteration"], link["link"], link["num_ranks"], link["grad_acc_steps"]) == (2, 2, 1, 2)


def test_what_would_change_the_batch_is_refused_with_what_keeps_it(megads):
    first = megads.train("chain", **SHARED, DP="2", EXIT_INTERVAL="2")
    assert first.returncode == 75, first.stderr
    fixed = megads.train("chain", "--dry-run", **SHARED, GRAD_ACC_STEPS="1")
    assert fixed.returncode == 2
    assert "is a global batch of 2, the run so far has 4" in fixed.stderr.splitlines()[-1]
    other = megads.train("chain", "--dry-run", **SHARED, DP="3", NGPU_PER_HOST="3")
    assert other.returncode == 2
    assert other.stderr.splitlines()[-1].endswith("or a job of 1, 2 or 4 ranks")


def test_a_job_with_hosts_that_cannot_share_the_batch_trains_on_those_that_can(megads):
    """A batch of one micro-batch on three hosts: the first one trains, two are spare, and the line says so."""
    given = {**SHARED, "GLOBAL_BATCH": "2", "TRAIN_ITERS": "4"}
    first = megads.train("chain", **given, EXIT_INTERVAL="2")
    assert first.returncode == 75, first.stderr
    hosts = megads.folder / "hosts"
    hosts.write_text(f"{socket.gethostname()}\nspare1\nspare2\n")
    job = {"PBS_JOBID": "7.pbs", "PBS_NODEFILE": str(hosts), "LAUNCH_WITH": "direct"}
    rest = megads.train("chain", **given, **job)
    assert rest.returncode == 0, rest.stderr
    assert "1 of 3 hosts are used, 2 spare: GLOBAL_BATCH=2 (env GLOBAL_BATCH) is not a multiple of" in rest.stderr
    assert [row["iteration"] for row in megads.rows("chain") if "lm_loss" in row] == [1, 2, 3, 4]
    new = megads.train("new", "--dry-run", **given, **job)
    assert new.returncode == 2
    assert new.stderr.splitlines()[-1].endswith("or FIT_HOSTS=always, which uses 1 of these 3 hosts")
