"""What every machine's launch and job look like, on 1, 2 and 256 hosts, as files that were read line by line.

A change that is meant: run with MEGADS_WRITE_GOLDEN=1, and read the difference.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from megads.config.derive import derive
from megads.config.sources.presets import read_machine
from megads.config.sources.resolve import resolve
from megads.launch.launchers.command import plan_launch
from megads.launch.request import TrainRequest
from megads.launch.schedulers.allocation import find_allocation
from megads.launch.submit.job_script import JobOptions
from megads.launch.submit.training import prepare_submission

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
SAYS = {
    "mpiexec": "mpiexec (PALS) version 1.4.0, revision 0",
    "mpirun": "mpirun (Open MPI) 5.0.3",
    "srun": "slurm 23.11.10",
}
"""What the machine's own launcher says of itself, by its program."""

# Program, pattern of host names, environment of a job besides its hosts.
MACHINES: dict[str, tuple[str, str, dict[str, str]]] = {
    "aurora": ("mpiexec", "x4{:03}c0s0b0n0.hostmgmt.cm.aurora.alcf.anl.gov", {"PBS_JOBID": "7.aurora-pbs-0001"}),
    "sunspot": ("mpiexec", "x1{:03}c0s0b0n0", {"PBS_JOBID": "7.sunspot-pbs-0001"}),
    "polaris": ("mpiexec", "x3{:03}c0s0b0n0.hsn.cm.polaris.alcf.anl.gov", {"PBS_JOBID": "7.polaris-pbs-01"}),
    "sirius": ("mpiexec", "x3{:03}c0s0b0n0", {"PBS_JOBID": "7.sirius-pbs-0001"}),
    "sophia": ("mpirun", "sophia-gpu-{:02}", {"PBS_JOBID": "7.sophia-pbs-01"}),
    "perlmutter": ("srun", "nid{:06}", {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "128(x{n})"}),
    "frontier": ("srun", "frontier{:05}", {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "56(x{n})"}),
    "pbs": ("mpirun", "node{:03}", {"PBS_JOBID": "7.server", "NGPU_PER_HOST": "4"}),
    "slurm": ("srun", "node{:03}", {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "64(x{n})", "NGPU_PER_HOST": "4"}),
}


@pytest.fixture
def steady(tmp_path, monkeypatch):
    """Take away what differs between the hosts and folders in which this test runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [1])
    monkeypatch.setattr("socket.getfqdn", lambda: "here")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("megads.launch.launchers.address.ephemeral_ports", lambda: (32768, 60999))
    monkeypatch.setattr("megads.launch.launchers.command.count_cores", lambda: 64)
    monkeypatch.setattr("megads.launch.launchers.command.this_launch", lambda: "")
    for module in ("megads.launch.schedulers.allocation", "megads.launch.launchers.command"):
        monkeypatch.setattr(f"{module}.count_accelerators", lambda _: 4)


def job_environment(machine: str, count: int, folder: Path) -> dict[str, str]:
    """Return the environment of a batch job of ``count`` hosts, with the machine's starter on PATH."""
    program, pattern, job = MACHINES[machine]
    (folder / "bin").mkdir()
    starter = folder / "bin" / program
    starter.write_text(f"#!/bin/sh\necho '{SAYS[program]}'\n")
    starter.chmod(0o755)
    env = {name: value.replace("{n}", str(count)) for name, value in job.items()}
    env |= {"PATH": f"{folder}/bin:/usr/bin:/bin", "MACHINE": machine, "HOME": "/home/me"}
    hosts = [pattern.format(number) for number in range(count)]
    if "PBS_JOBID" in env:
        (folder / "nodes").write_text("".join(f"{host}\n" for host in hosts))
        env["PBS_NODEFILE"] = str(folder / "nodes")
    else:
        env["SLURM_JOB_NODELIST"] = ",".join(hosts)
        env["SLURM_JOB_NUM_NODES"] = str(count)
    return env


def shown(machine: str, count: int, folder: Path) -> str:
    """Return the launch and the job of ``count`` hosts as text."""
    env = job_environment(machine, count, folder)
    facts = read_machine(machine, ROOT).facts
    asked = resolve("7B", env=env, machine=machine, root=ROOT, num_hosts=count)
    allocation = find_allocation(asked.run, env, facts)
    run = derive(asked, num_hosts=count, ranks_per_host=allocation.ranks_per_host, vocab_size=32000).run
    plan = plan_launch(
        run, allocation, ["/p/python", "-m", "megads", "worker"], env, facts=facts, folder=folder / "run"
    )
    train = run.train
    lines = [
        f"{machine}, {count} hosts: {allocation.world_size} ranks, {train.dtype}, global batch {train.global_batch} = "
        f"micro {train.micro_batch} x accumulation {train.grad_acc_steps} x DP {run.parallel.data}",
        *("", "[command]", *options(plan.argv)),
        *("", "[set]", *(f"{name}={value}" for name, value in plan.env.items())),
    ]
    for path, text in plan.files.items():
        rows = text.splitlines()
        lines += ["", f"[{path}, {len(rows)} lines]", *dict.fromkeys([rows[0], rows[-1]])]
    wish = JobOptions(nodes=count, account="PROJECT", queue="big" if machine == "sophia" and count > 8 else "")
    for name in ("PBS_JOBID", "SLURM_JOB_ID"):
        env.pop(name, None)
    ask = TrainRequest("7B", (), env | {"WALLTIME": "1:00:00"}, "login", ROOT, "/p/bin/python")
    lines += ["", "[job]", prepare_submission(ask, wish, Path("/project")).text]
    return "\n".join(lines).replace(str(folder), "<job>").replace(str(ROOT), "<checkout>")


def options(argv: tuple[str, ...]) -> list[str]:
    """Return a command with a line for each option, and the command of a rank as the last one."""
    rank = min(argv.index(word) for word in ("sh", "/p/python") if word in argv)
    lines: list[str] = []
    for word in argv[:rank]:
        if lines and (not word.startswith("-") or (word == "-x" and lines[-1].startswith("-x "))):
            lines[-1] += f" {shlex.quote(word)}"
        else:
            lines.append(shlex.quote(word))
    return [*lines, shlex.join(argv[rank:])]


@pytest.mark.parametrize("count", [1, 2, 256])
@pytest.mark.parametrize("machine", MACHINES)
def test_launch_and_job(machine, count, tmp_path, steady, monkeypatch):
    # 7B without tensor parallelism exceeds the devices of few hosts.
    monkeypatch.setattr("megads.launch.submit.training.check_device", lambda *args, **more: "")
    path, text = GOLDEN / f"{machine}-{count}.txt", shown(machine, count, tmp_path)
    if os.environ.get("MEGADS_WRITE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text


def test_every_machine_with_a_scheduler_has_golden_files():
    envs = {path.stem for path in (ROOT / "envs").glob("*.yaml")} - {"cpu", "generic"}
    assert envs == set(MACHINES)
    assert {path.name for path in GOLDEN.iterdir()} == {f"{name}-{count}.txt" for name in envs for count in (1, 2, 256)}
