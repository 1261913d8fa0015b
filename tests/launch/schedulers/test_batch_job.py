"""What a job asks for: hosts, a queue that takes it, and chains."""

from __future__ import annotations

import re

import pytest

from megads.errors import LaunchError
from megads.launch.schedulers.batch_job import BatchJob
from megads.launch.submit.job_script import job_text
from tests.launch.submit.helpers import directives, place


@pytest.mark.parametrize(
    ("machine", "asked", "expected"),
    [
        ("pbs", BatchJob(2, 60, ranks_per_host=4), "-l select=2:ncpus=4:mpiprocs=4:ngpus=4"),
        ("pbs", BatchJob(2, 60, ranks_per_host=4, gpus=False), "-l select=2:ncpus=4:mpiprocs=4"),
        ("pbs", BatchJob(2, 60, chunk="ncpus=64:ngpus=8"), "-l select=2:ncpus=64:ngpus=8"),
        ("aurora", BatchJob(2, 60, account="X"), "-l select=2"),
        ("sophia", BatchJob(2, 60, account="X"), "-q by-node"),
        ("slurm", BatchJob(2, 60, ranks_per_host=4), "--gpus-per-node=4"),
    ],
)
def test_what_hosts_have(machine, asked, expected):
    assert expected in directives(job_text(asked, place(machine), []))


@pytest.mark.parametrize(
    ("lead", "expected"), [(3600, True), (600, True), (599, False), (60, False)], ids=lambda value: str(value)
)
def test_a_warning_that_would_come_at_once_is_left_out(lead, expected):
    text = job_text(BatchJob(1, lead, account="X"), place("perlmutter"), [])
    assert ("--signal=B:USR1@300" in directives(text)) is expected


@pytest.mark.parametrize(
    ("machine", "nodes", "hours", "queue"),
    [
        ("aurora", 1, 1, "debug"),
        ("aurora", 2, 2, "capacity"),
        ("aurora", 16, 1, "debug-scaling"),
        ("aurora", 256, 12, "prod"),
        ("aurora", 3000, 24, "prod"),
        ("polaris", 1, 72, "capacity"),
        ("polaris", 24, 3, "prod"),
        ("perlmutter", 1, 0.5, "debug"),
        ("perlmutter", 9, 0.5, "regular"),
        ("frontier", 64, 20, "extended"),
        ("pbs", 64, 200, None),
    ],
)
def test_the_first_queue_that_takes_the_job(machine, nodes, hours, queue):
    text = job_text(BatchJob(nodes, hours * 3600, account="X", ranks_per_host=1), place(machine), [])
    found = re.search(r"(?:-q |--partition=|--qos=)(\S+)", text)
    assert (found[1] if found else None) == queue


@pytest.mark.parametrize(
    ("machine", "nodes", "chain", "queue"),
    [
        ("aurora", 1, 1, "debug"),
        ("aurora", 1, 5, "capacity"),  # debug holds one job of a user, waiting ones included
        ("polaris", 2, 3, "debug"),
        ("perlmutter", 2, 6, "regular"),
    ],
)
def test_a_chain_goes_to_a_queue_that_holds_all_of_it(machine, nodes, chain, queue):
    text = job_text(BatchJob(nodes, 1800, account="X", ranks_per_host=1, jobs=chain), place(machine), [])
    assert re.search(r"(?:-q |--qos=)(\S+)", text)[1] == queue


def test_a_chain_that_no_queue_holds_is_refused_before_its_first_job():
    with pytest.raises(
        LaunchError, match=r"^--chain 6: no queue of machine aurora for 2 hosts holds that many jobs of "
    ):
        job_text(BatchJob(2, 1800, account="X", jobs=6), place("aurora"), [])
    with pytest.raises(LaunchError, match=r"^--chain 2 --queue debug: the queue holds 1 job of one user, .*--chain 1"):
        job_text(BatchJob(2, 1800, account="X", queue="debug", jobs=2), place("aurora"), [])
    assert "-q mine" in job_text(BatchJob(2, 1800, account="X", queue="mine", jobs=9), place("aurora"), [])


@pytest.mark.parametrize("hours", [200, 400, 2000])
@pytest.mark.parametrize("machine", ["aurora", "polaris", "perlmutter", "frontier"])
def test_an_advised_chain_is_accepted(machine, hours):
    with pytest.raises(LaunchError) as refused:
        job_text(BatchJob(2, hours * 3600, account="X", ranks_per_host=1), place(machine), [])
    advised = re.search(r"--chain (\d+) makes it of jobs of --walltime (\S+)h", str(refused.value))
    if advised:  # where no queue holds so many jobs nothing is advised
        job_text(
            BatchJob(2, float(advised[2]) * 3600, account="X", ranks_per_host=1, jobs=int(advised[1])),
            place(machine),
            [],
        )
    assert advised or machine == "aurora"


def test_a_constraint_of_the_user_takes_the_place_of_the_machines():
    given = BatchJob(1, 1800, account="X", ranks_per_host=4, options=("-C", "gpu&hbm80g"))
    text = job_text(given, place("perlmutter"), [])
    assert "#SBATCH -C gpu&hbm80g\n" in text
    assert "--constraint" not in text


def test_a_job_that_no_queue_takes_is_told_of_chains():
    with pytest.raises(LaunchError) as refused:
        job_text(BatchJob(30, 24 * 3600, account="X"), place("polaris"), [])
    said = str(refused.value)
    assert said.startswith("no queue of machine polaris takes 30 hosts for 24:00:00; --chain 4 makes it of jobs of ")
    assert "--walltime 6h; queues: debug (1-2 hosts, 1 h), " in said
    assert "-q mine" in job_text(BatchJob(30, 24 * 3600, account="X", queue="mine"), place("polaris"), [])
