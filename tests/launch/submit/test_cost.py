"""The line about what a run costs: it agrees with the plan, and says what it does not know."""

from __future__ import annotations

import re
from pathlib import Path

from megads.config.derive import derive
from megads.config.sources.resolve import resolve
from megads.launch.schedulers.allocation import unnamed_hosts
from megads.launch.submit.cost import cost_line

ROOT = Path(__file__).parents[3]


def line(machine: str, chain: int = 1, nodes: int = 0, **settings: str) -> str:
    small = {"NLAYERS": "12", "HIDDEN": "768", "HEADS": "12", "SEQ": "1024", "TRAIN_ITERS": "2000", **settings}
    allocation = unnamed_hosts("pbs", 2, 4)
    asked = resolve("7B", env=small, machine=machine, root=ROOT, num_hosts=2)
    run = derive(asked, num_hosts=2, ranks_per_host=4, vocab_size=50257).run
    return cost_line(run, allocation, nodes or 2, 3 * 3600.0, chain, {}, ROOT)


def test_a_known_machine_has_hours_energy_and_checkpoints():
    found = line("polaris")
    assert found.startswith("cost     1 job of 2 hosts x 3h00m: at most 6 host-hours; the run takes about ")
    hours = float(re.search(r"([\d.]+) host-hours, ", found)[1])
    assert 0 < hours < 100
    twice = float(re.search(r"([\d.]+) host-hours, ", line("polaris", TRAIN_ITERS="20000"))[1])
    assert 3 < twice / hours < 11  # start-up is in both
    assert re.search(r"[\d.]+k? kWh, [\d.]+k? kg CO2, checkpoints of [\d.]+ GiB, [\d.]+ GiB kept", found)


def test_a_run_of_many_jobs_says_how_many_and_spare_hosts_are_paid():
    found = line("polaris", chain=2, nodes=3, TRAIN_ITERS="10000000")
    assert "2 jobs of 3 hosts x 3h00m: at most 18 host-hours; " in found
    jobs = int(re.search(r"in (\d+) jobs", found)[1])
    assert found.endswith(f"; --chain {jobs} submits all of them")


def test_a_machine_that_nothing_is_known_of():
    most = "cost     1 job of 2 hosts x 3h00m: at most 6 host-hours; how long the run takes is not known"
    assert line("generic") == f"{most} on machine generic"
    assert line("cpu") == most
