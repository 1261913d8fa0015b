"""What is decided for ranks that the user started; real launchers of them are in tests/e2e/test_started.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megads.config.schema import LaunchConfig, RunConfig
from megads.errors import LaunchError
from megads.launch.schedulers.allocation import find_allocation
from megads.launch.user_ranks.entry import Started, started_rank, what_is_ignored

ROOT = Path(__file__).parents[3]
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
FOUR = Started("Open MPI", ("a", "a", "b", "b"))


def run(**launch: object) -> RunConfig:
    return RunConfig(machine="cpu", launch=LaunchConfig(**launch))


def test_a_rank_is_told_from_a_process_that_starts_ranks():
    found = started_rank({**OPENMPI, "MEGADS_RANK": "3"})
    assert found is not None
    assert (found.rank, found.world_size, found.family) == (1, 4, "Open MPI")
    assert started_rank({}) is None
    assert started_rank({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}) is None  # left in a shell
    assert started_rank({**OPENMPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}) is None


def test_a_number_of_ranks_that_only_mpi_knows_is_asked_for():
    pals = {"PALS_RANKID": "3", "PALS_LOCAL_RANKID": "3", "PALS_LOCAL_SIZE": "12"}
    with pytest.raises(LaunchError, match="set MEGADS_NUM_RANKS to the number of ranks"):
        started_rank(pals)
    found = started_rank({**pals, "MEGADS_NUM_RANKS": "24"})
    assert found is not None
    assert found.world_size == 24


def test_ranks_are_where_they_are():
    found = find_allocation(run(), {"SLURM_JOB_ID": "7"}, started=FOUR)
    assert (found.scheduler, found.hosts, found.ranks_per_host, found.world_size) == ("slurm", ("a", "b"), 2, 4)
    assert find_allocation(run(num_hosts=2, ranks_per_host=2), {}, started=FOUR).world_size == 4


@pytest.mark.parametrize(
    ("launch", "text"),
    [
        ({"ranks_per_host": 4}, "NGPU_PER_HOST=4, and Open MPI started 4 ranks on 2 hosts; unset NGPU_PER_HOST, or "),
        ({"num_hosts": 1}, "NHOSTS=1, and Open MPI started 4 ranks on 2 hosts; unset NHOSTS, or start 1 host"),
    ],
)
def test_settings_that_contradict_the_ranks_are_refused(launch, text):
    with pytest.raises(LaunchError) as error:
        find_allocation(run(**launch), {}, started=FOUR)
    assert str(error.value).startswith(text)


def test_uneven_hosts_are_refused():
    with pytest.raises(LaunchError, match=r"SLURM started 3 ranks unevenly \(a: 2, b: 1\); start the same number on"):
        find_allocation(run(), {}, started=Started("SLURM", ("a", "a", "b")))


def test_settings_without_effect_are_one_line():
    assert what_is_ignored(LaunchConfig(), FOUR) == []
    assert what_is_ignored(LaunchConfig(max_restarts=3, cpu_bind="none"), FOUR) == [
        "CPU_BIND=none, MAX_RESTARTS=3 have no effect: Open MPI started the ranks; `megads train` alone starts its own"
    ]


def test_a_rank_with_a_wrong_command_line_leaves_it_to_rank_0():
    def call(rank: str) -> tuple[int, str]:
        env = {**os.environ, **OPENMPI, "OMPI_COMM_WORLD_RANK": rank, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-m", "megads", "--local_rank=1", "train", "--no-such-option"],
            env=env, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return done.returncode, done.stderr

    assert call("1") == (2, "")
    code, text = call("0")
    assert code == 2
    assert text.count("\n") == 1
    assert "no-such-option" in text


def test_the_token_of_a_launch_is_not_shown(tmp_path):
    from megads.launch.launchers.plan import LaunchPlan

    plan = LaunchPlan(("x",), {"A": "1", "MEGADS_TOKEN": "secret"}).hiding("MEGADS_TOKEN")
    assert plan.environment({"B": "2"}) == {"A": "1", "B": "2", "MEGADS_TOKEN": "secret"}
    assert "secret" not in plan.line() + plan.script() + repr(plan) + json.dumps(plan.env)
