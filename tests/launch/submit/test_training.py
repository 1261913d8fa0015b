"""Training runs as jobs: what the script says, what reaches it, and what is refused before it waits."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from megads.config.run_folder import load_config
from megads.config.sources.resolve import resolve
from megads.config.tree import fields, names_of, value_of
from megads.errors import CheckpointError, ConfigError, LaunchError
from megads.launch.request import TrainRequest
from megads.launch.run_folder import Folder
from megads.launch.schedulers.base import JOB
from megads.launch.submit.job_script import JobOptions, find_place
from megads.launch.submit.training import (
    JOBS,
    SUBMITTED,
    given_settings,
    submit,
    submit_machine,
    without_settings,
    without_values,
)
from tests.launch.submit.helpers import ROOT, ask, cli, directives, fake, prepared


def test_pbs_directives():
    text = prepared(ask(WALLTIME="3:00:00"), JobOptions(nodes=12, account="X"), Path("/job")).text
    assert text.startswith("#!/bin/bash -l\n#PBS -N megads-7B\n")
    assert directives(text)[1:] == [
        "-l select=12:system=polaris",
        "-l walltime=3:00:00",
        "-l filesystems=home:eagle",
        "-A X",
        "-q prod",
        "-j oe",
        "-k doe",
        "-o /job/runs/7B/log/",
        "-l place=scatter",
    ]


def test_slurm_directives():
    text = prepared(
        ask("frontier", WALLTIME="90m"), JobOptions(nodes=2, account="X", options=("-S", "8")), Path("/job")
    ).text
    assert directives(text) == [
        "--job-name=megads-7B",
        "--nodes=2",
        "--ntasks-per-node=8",
        "--time=1:30:00",
        "--account=X",
        "--partition=batch",
        "--signal=B:USR1@300",
        "--output=/job/runs/7B/log/%x-%j.out",
        "--network=disable_rdzv_get",
        "-S 8",
    ]
    gpus = directives(prepared(ask("perlmutter", WALLTIME="6h"), cwd=Path("/job")).text)
    assert {"--qos=regular", "--constraint=gpu", "--gpus-per-node=4"} <= set(gpus)


def test_no_accelerators_are_asked_for_on_cpus():
    text = prepared(ask("slurm", WALLTIME="1h", MEGADS_DEVICE="cpu", TP=4, TRAIN_ITERS=9), JobOptions(nodes=2)).text
    assert "--ntasks-per-node=2" in directives(text)
    assert "gpus" not in text
    assert "export MEGADS_DEVICE=cpu\n" in text


@pytest.mark.parametrize(
    ("asked", "wish", "said"),
    [
        (ask(), JobOptions(), "a job needs its longest time; pass --walltime 6:00:00"),
        (ask(WALLTIME="6"), JobOptions(), "WALLTIME=6: not a time"),
        (ask(WALLTIME="1h"), JobOptions(), "machine polaris requires an account for every job; pass --account PROJECT"),
        (
            ask(WALLTIME="1h", NHOSTS=3),
            JobOptions(nodes=2),
            "NHOSTS=3 is more than the 2 hosts of the job; pass --nodes 3",
        ),
        (
            ask("slurm", WALLTIME="1h"),
            JobOptions(),
            "machine slurm does not say how many accelerators a host has; set NGPU",
        ),
        (ask("cpu", WALLTIME="1h"), JobOptions(), "machine cpu: neither sbatch nor qsub is on PATH"),
        (ask(WALLTIME="1h", TP=3), JobOptions(account="X"), "TP=3"),
        (ask(WALLTIME="1h"), JobOptions(account="X\n#PBS -q y"), "--account"),
        (ask(WALLTIME="1h"), JobOptions(account="a b"), "--account 'a b': a scheduler's directive takes letters"),
        (ask(WALLTIME="1h"), JobOptions(account="X", queue="$(id)"), "--queue"),
        (ask(WALLTIME="1h"), JobOptions(account="X", chunk="a;b"), "--chunk"),
        (ask(WALLTIME="1h"), JobOptions(account="X", options=("-l", "`id`")), "--option"),
        (ask(WALLTIME="1h"), JobOptions(account="X", variables=("A",)), "--env A: it is not set in this shell"),
        (
            ask(WALLTIME="1h"),
            JobOptions(account="X", variables=("A;b=1",)),
            "--env 'A;b': not the name of a variable",
        ),
        (ask(WALLTIME="1h"), JobOptions(account="X", variables=("TP=4",)), "--env TP=4: TP is a setting"),
        (
            ask(WALLTIME="1h", HOSTFILE="h"),
            JobOptions(account="X"),
            "HOSTFILE=h: the scheduler chooses the hosts of a job",
        ),
        (ask(WALLTIME="1h", LOAD="nowhere"), JobOptions(account="X"), "LOAD=nowhere: not found; pass a run"),
        (
            ask(WALLTIME="1h", FINETUNE=1),
            JobOptions(account="X"),
            "FINETUNE=1 needs the checkpoint whose weights it takes",
        ),
    ],
)
def test_what_is_missing_is_one_line(asked, wish, said):
    with pytest.raises((CheckpointError, ConfigError, LaunchError)) as refused:
        prepared(asked, wish)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


HOSTILE = ['it\'s $(touch x) `id` "q" \\', "a\nb\n#PBS -q evil\n", "--set", "-n", "\xfc ; & | > < * ? [a] {b,c} !", " "]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_values_reach_the_job_as_they_are(tmp_path, text):
    """The script is run by bash, with a launchers/train.sh that shows what it got."""
    (tmp_path / "root/launchers").mkdir(parents=True)
    show = 'printf "%s\\0" "$PWD" "$MINE" "$@" >"$HOME/got"\n'
    (tmp_path / "root/launchers/train.sh").write_text(show)
    (tmp_path / "root/envs").symlink_to(ROOT / "envs")
    here = tmp_path / f"in {text.strip() or 'space'}".replace("/", "")[:40]
    here.mkdir()
    env = {"MACHINE": "polaris", "WALLTIME": "1h"}
    line = text.replace("\n", " ")  # which no path holds
    asked = TrainRequest("7B", (f"data.cache_dir=x{line}",), env, "x", tmp_path / "root", "/p")
    body = prepared(asked, JobOptions(nodes=2, account="X", variables=(f"MINE={text}",)), here).text
    done = subprocess.run(
        ["bash"], input=body, cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, text=True
    )
    assert done.returncode == 0
    cwd, mine, *words = (tmp_path / "got").read_text().split("\0")[:-1]
    assert (cwd, mine) == (str(here), text)
    assert words[:3] == ["--no-env", "--preset", "7B"]
    assert f"data.cache_dir=x{line}" in words
    assert not (tmp_path / "x").exists()
    assert all("evil" not in line for line in directives(body.partition("\nset -e\n")[0]))


def settings_of_job(text: str, **changes: str):
    """Return what the job resolves, in the environment of another shell."""
    words = re.findall(r"--set (\S+)", text)
    environment = without_settings({"MACHINE": "polaris", "PP": "8", "LR": "7", "NLAYERS": "1", **changes})
    pairs = dict(word.strip("'").split("=", 1) for word in words)
    return resolve("7B", env=environment, overrides=pairs, machine="polaris", root=ROOT, num_hosts=4).run


def test_the_job_trains_what_was_resolved(tmp_path):
    flags = (("--zero-stage", "2"),)
    asked = ask("polaris", "optim.lr=3e-5", flags=flags, TP=2, NLAYERS=10, GLOBAL_BATCH=64, WALLTIME="1h", NO_LLAMA=1)
    submission = prepared(asked, cwd=tmp_path)
    job = settings_of_job(submission.text)
    first = resolve(
        "7B", env=asked.env, overrides={"optim.lr": "3e-5"}, flags=flags, machine="polaris", root=ROOT, num_hosts=4
    ).run
    for name in fields():
        if name != "dir":
            assert value_of(job, name) == value_of(first, name), name
    assert job.dir == "runs/7B"
    assert (job.parallel.tensor, job.parallel.pipeline, job.model.num_layers) == (2, 1, 10)


def test_every_setting_comes_through():
    """Each setting's first variable, with a value that is not the default, is the same in the job."""
    for name, field in fields().items():
        value = {bool: "1", int: "8", float: "0.25", str: "text"}.get(field.annotation)
        if value is None or name in ("preset", "machine", "dir"):
            continue
        variable = names_of(name)[0]
        try:
            given = resolve(env={variable: value}, machine="generic")
        except ConfigError:
            continue
        pairs = given_settings(given, Folder(Path("runs/x"), False))
        again = resolve(env={}, overrides=pairs, machine="generic").run
        assert value_of(again, name) == value_of(given.run, name), name


def test_numbers_of_the_submission_are_for_its_hosts():
    assert prepared(ask(WALLTIME="1h"), JobOptions(nodes=2, account="X")).resolved.run.train.global_batch == 8 * 8
    resolved = prepared(ask(WALLTIME="1h"), JobOptions(nodes=8, account="X")).resolved
    assert resolved.run.train.global_batch == 8 * 4 * 32
    assert str(resolved.origins["train.micro_batch"]) == "machine polaris, 8 hosts or more"


def test_variables_of_the_program():
    text = prepared(ask(WALLTIME="1h", MEGADS_PYTHON="/p/python", MEGADS_DEVICE="nvidia")).text
    assert "export MEGADS_PYTHON=/p/python\n" in text
    assert "export MEGADS_DEVICE=nvidia\n" in text
    # The Python that helpers.sh found is found again, with the machine's modules.
    text = prepared(ask(WALLTIME="1h", MEGADS_PYTHON="/p/python", MEGADS_FOUND_PYTHON="/p/python")).text
    assert "export MEGADS_ACTIVE=/venv\n" in text
    assert re.search(r"^unset .*\bMEGADS_PYTHON\b", text, re.MULTILINE)


def test_what_is_kept_in_the_run_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = fake(tmp_path / "bin", "qsub", "cat >/dev/null; echo 7.pbs")
    submission = prepared(ask(WALLTIME="1h", TP=2), cwd=tmp_path)
    assert not (tmp_path / "runs").exists()
    assert submit(submission, env) == ["7.pbs"]
    folder = tmp_path / "runs/7B"
    assert (folder / JOB).read_text() == submission.text
    assert (folder / JOBS).read_text() == "7.pbs\n"
    assert (folder / "log").is_dir()
    assert load_config(folder / SUBMITTED) == submission.resolved.run
    assert yaml.safe_load((folder / SUBMITTED).read_text())["parallel"]["tensor"] == 2


def test_a_job_with_the_users_variables_is_for_his_eyes_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = fake(tmp_path / "bin", "qsub", "cat >/dev/null; echo 7.pbs")
    submit(prepared(ask(WALLTIME="1h"), JobOptions(account="X", variables=("KEY=secret",)), cwd=tmp_path), env)
    assert (tmp_path / "runs/7B" / JOB).stat().st_mode & 0o077 == 0
    assert (tmp_path / "runs/7B" / SUBMITTED).stat().st_mode & 0o004


def test_the_machine_of_a_login_node(tmp_path):
    fake(tmp_path, "qsub", "")
    env = {"PATH": str(tmp_path)}
    base = TrainRequest("7B", (), env, "login1", ROOT, "/p")
    assert submit_machine(base) == "pbs"
    fake(tmp_path, "sbatch", "")
    assert submit_machine(base) == "slurm"
    fake(tmp_path, "qsub", "echo pbs_version = 23.06.06")
    assert submit_machine(base) == "pbs"
    fake(tmp_path, "qsub", "echo Unknown option: version >&2; exit 2")
    assert (
        submit_machine(TrainRequest("7B", (), env | {"NERSC_HOST": "perlmutter"}, "login1", ROOT, "/p")) == "perlmutter"
    )
    cpu = TrainRequest("7B", (), env | {"MEGADS_DEVICE": "cpu"}, "login1", ROOT, "/p")
    assert submit_machine(cpu) == "cpu"
    assert find_place("cpu", ROOT, env).scheduler == "slurm"


def test_values_that_a_job_is_given_are_not_shown():
    variables = ("NAME=my value", "EMPTY=", "HOME")
    text = "export NAME='my value'\nexport EMPTY=''\nexport HOME=/h\nexport OTHER_NAME='my value'\n"
    shown = without_values(text, variables)
    assert shown == "export NAME=***\nexport EMPTY=''\nexport HOME=/h\nexport OTHER_NAME='my value'\n"


def test_a_script_as_a_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my job.sh").write_text('echo "$TP $1 $HERE"\n')
    words = ("submit", "--nodes", 2, "--walltime", "1h", "--account", "X", "--env", "HERE")
    shown = cli(*words, "--dry-run", "my job.sh", "--lr", "a'b", TP="2", HERE="a b")
    assert shown.exit_code == 0, shown.output
    assert "-l select=2:system=polaris" in directives(shown.stdout)
    done = subprocess.run(["bash"], input=shown.stdout, capture_output=True, text=True)
    assert done.stdout == "2 --lr a b\n"
    # The job's own time, whatever the shell says; --env counts more than the shell.
    shown = cli(*words, "--env", "TP=8", "--dry-run", "my job.sh", TP="2", WALLTIME="2h", HERE="a b")
    assert "export WALLTIME=1h\n" in shown.stdout
    assert shown.stdout.count(" TP=") == 1
    assert "export TP=8\n" in shown.stdout
    shown = cli(*words, "--env", "MINE=not to be seen", "--dry-run", "my job.sh", HERE="a b")
    assert "export MINE=***\n" in shown.stdout
    assert "pass --walltime" in cli("submit", "my job.sh").output
