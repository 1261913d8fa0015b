"""How many hosts of a job are used where its batch cannot be shared out over all of them."""

import os
import random
import sys
from functools import partial
from pathlib import Path

import pytest

from megads.config.rules.checks import check
from megads.errors import ConfigError, MegadsError
from megads.launch.plan_run import hosts_of_this_job, plan_run, prepare
from megads.launch.request import TrainRequest
from megads.launch.run_hosts import on_hosts_that_fit
from megads.launch.submit.job_script import JobOptions
from megads.launch.submit.training import hosts_of_submission, plan_ahead, prepare_submission
from megads.launch.user_ranks.entry import Started
from tests.checkpoint.faked import fake
from tests.data.factory import write_dataset

ROOT = Path(__file__).parents[2]
TINY = {
    **{"MEGADS_DEVICE": "cpu", "NLAYERS": "4", "HIDDEN": "64", "HEADS": "4", "SEQ": "32", "NUM_KV_HEAD": "4"},
    **{"FFN_HIDDEN_SIZE": "128", "TRAIN_ITERS": "12", "TOKENIZER_TYPE": "NullTokenizer", "VOCAB_SIZE": "500"},
    **{
        "EVAL_INTERVAL": "0",
        "DTYPE": "fp32",
        "MACHINE": "slurm",
        "SLURM_JOB_ID": "9",
        "LAUNCH_WITH": "srun",
        "DATA_FILE_LIST": "list.txt",
    },
}
SAME = ("PATH", "HOME")


def request(hosts, **env):
    given = {name: os.environ[name] for name in SAME if name in os.environ} | TINY
    job = {"SLURM_JOB_NUM_NODES": str(hosts), "SLURM_JOB_NODELIST": f"n[1-{hosts}]" if hosts > 1 else "n1"}
    return TrainRequest(None, (), {**given, **job, **env}, "h", ROOT, sys.executable)


def planned(asked):
    return plan_run(asked, hosts_of_this_job(asked))


def fitted(asked):
    return on_hosts_that_fit(asked, hosts_of_this_job, plan_run)[1]


def is_accepted(asked):
    try:
        found = planned(asked)
        check(found.run, found.allocation.world_size, found.attempt)
    except MegadsError:
        return False
    return True


def drawn(seed):
    """Return a number of hosts and settings, most of which do not go together."""
    draw = random.Random(seed)
    env = {"GLOBAL_BATCH": str(draw.choice((6, 8, 20, 24, 36, 42, 60))), "FIT_HOSTS": "always"}
    env |= draw.choice(({"NGPU_PER_HOST": "1"}, {"NGPU_PER_HOST": "2"}, {"NGPU_PER_HOST": "4"}, {}))
    env |= draw.choice(({}, {"TP": "2"}, {"PP": "2"}, {"TP": "2", "PP": "2"}))
    env |= draw.choice(({}, {}, {"MICRO_BATCH": "2"}, {"MICRO_BATCH": "4"}, {"GRAD_ACC_STEPS": "2"}, {"DP": "3"}))
    env |= draw.choice(({}, {}, {"RAMPUP_BATCH_SIZE": "2,2,20"}))
    return draw.randint(2, 7), env


def test_the_largest_number_of_hosts_that_every_rule_accepts_is_used():
    """For 24 drawn jobs, against NHOSTS tried from all of them down to one."""
    fewer = 0
    for seed in range(24):
        hosts, env = drawn(seed)
        fitting = [n for n in range(hosts, 0, -1) if is_accepted(request(hosts, **env, NHOSTS=str(n)))]
        try:
            found = fitted(request(hosts, **env)).allocation
        except MegadsError:
            # Where ranks do not even spread over all hosts, the launcher's own line names what would.
            assert not fitting or "spread evenly" in _refusal(request(hosts, **env)), (seed, hosts, env)
            continue
        assert len(found.hosts) == fitting[0], (seed, hosts, env)
        assert found.hosts + found.spare == tuple(f"n{number}" for number in range(1, hosts + 1))
        fewer += len(found.hosts) < hosts
    assert fewer >= 6


def _refusal(asked):
    with pytest.raises(MegadsError) as refused:
        planned(asked)
    return str(refused.value)


FIVE = {"GLOBAL_BATCH": "40", "NGPU_PER_HOST": "4"}


def test_a_first_job_is_refused_and_told_what_would_use_fewer_hosts():
    line = _refusal(request(6, **FIVE))
    with pytest.raises(ConfigError) as refused:
        fitted(request(6, **FIVE))
    assert str(refused.value) == f"{line}, or FIT_HOSTS=always, which uses 5 of these 6 hosts"


@pytest.mark.parametrize(
    "changed",
    [
        {"FIT_HOSTS": "never"},
        {"FIT_HOSTS": "always", "NHOSTS": "6"},
        {"FIT_HOSTS": "always", "HEADS": "5", "HIDDEN": "66", "NUM_KV_HEAD": "5"},
    ],
)
def test_what_another_number_of_hosts_does_not_solve_or_may_not_is_refused_as_before(changed):
    asked = request(6, **{**FIVE, **changed})
    line = _refusal(asked)
    with pytest.raises(ConfigError) as refused:
        fitted(asked)
    assert str(refused.value) == line


def test_ranks_that_the_user_started_are_not_dropped():
    started = Started("srun", tuple(f"n{number // 4}" for number in range(24)))
    asked = TrainRequest(
        None, (), {**TINY, "GLOBAL_BATCH": "40", "FIT_HOSTS": "always"}, "h", ROOT, sys.executable, started=started
    )
    with pytest.raises(ConfigError, match=r"^GLOBAL_BATCH=40 .* a job of 1, 2, 5 or 10 hosts$"):
        fitted(asked)


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A run folder ``r`` of a run that has trained 6 steps on 5 hosts; returns what every job of it gives."""
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path, [40] * 40, vocab=500)
    (tmp_path / "list.txt").write_text(f"1 {next(tmp_path.glob('*.bin')).name} books\n")
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [1])  # the hosts of the job
    given = {"RUN_DIR": "r", "NGPU_PER_HOST": "4"}
    run = prepare(request(5, **given, GLOBAL_BATCH="40")).run
    fake(tmp_path / "r/checkpoints", 6, run, progress={"iteration": 6, "consumed_samples": 240})
    return given


@pytest.mark.parametrize(("batch", "origin"), [("40", "env GLOBAL_BATCH"), ("0", "checkpoint r/checkpoints/")])
def test_a_run_that_resumes_uses_the_hosts_that_fit_and_says_so(begun, batch, origin):
    job = prepare(request(6, **begun, GLOBAL_BATCH=batch))
    assert (job.allocation.hosts, job.allocation.spare) == (("n1", "n2", "n3", "n4", "n5"), ("n6",))
    assert (job.run.train.global_batch, job.run.parallel.data, job.run.launch.num_hosts) == (40, 20, 0)
    (note,) = [note for note in job.resolved.notes if "hosts are used" in note]
    assert note.startswith(f"5 of 6 hosts are used, 1 spare: GLOBAL_BATCH=40 ({origin}")
    assert note.endswith("= 24; NHOSTS=N or FIT_HOSTS=never chooses otherwise")
    with pytest.raises(ConfigError, match=r"or a job of .* hosts$"):
        prepare(request(6, **begun, GLOBAL_BATCH=batch, FIT_HOSTS="never"))


def test_a_new_run_in_another_folder_is_not_one_that_resumes(begun):
    with pytest.raises(ConfigError, match=r"or FIT_HOSTS=always, which uses 5 of these 6 hosts$"):
        prepare(request(6, **{**begun, "RUN_DIR": "other"}, GLOBAL_BATCH="40", LOAD="r"))


def test_a_job_that_is_submitted_is_planned_like_it_will_run(begun):
    asked = request(1, **begun, GLOBAL_BATCH="0", WALLTIME="1:00:00")
    submission = prepare_submission(asked, JobOptions(nodes=6), Path("/job"))
    assert "#SBATCH --nodes=6" in submission.text
    assert "num_hosts" not in submission.text
    assert submission.resolved.run.parallel.data == 20
    (note,) = [note for note in submission.resolved.notes if "hosts are used" in note]
    assert note.startswith("5 of 6 hosts are used, 1 spare: ")
    first = request(1, **{**begun, "RUN_DIR": "other"}, GLOBAL_BATCH="40", WALLTIME="1:00:00")
    with pytest.raises(ConfigError, match="FIT_HOSTS=always"):
        prepare_submission(first, JobOptions(nodes=6), Path("/job"))
    where = partial(hosts_of_submission, nodes=6)
    assert len(on_hosts_that_fit(asked, where, plan_run, submits=True)[1].allocation.hosts) == 6
    assert plan_ahead(request(1, **begun, GLOBAL_BATCH="40"), 6).parallel.data == 20
