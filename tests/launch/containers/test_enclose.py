"""Launches and jobs with CONTAINER, as files that were read line by line; and what is refused.

A change that is meant: run with MEGADS_WRITE_GOLDEN=1, and read the difference.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from megads.cluster.ranks import EXPLICIT
from megads.config.machine_facts import ContainerFacts, Facts
from megads.config.schema import LaunchConfig, RunConfig
from megads.config.sources.presets import read_machine
from megads.config.sources.resolve import resolve
from megads.errors import LaunchError
from megads.launch.containers.enclose import check_container, choose, rank_python
from megads.launch.launchers.command import plan_launch
from megads.launch.request import TrainRequest
from megads.launch.schedulers.allocation import Allocation, find_allocation
from megads.launch.submit.job_script import JobOptions
from megads.launch.submit.training import prepare_submission
from tests.launch.test_golden import ROOT, job_environment, options, steady

__all__ = ["steady"]
GOLDEN = Path(__file__).parent / "golden"
PYXIS = "#!/bin/sh\necho '      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH [pyxis] the image'\n"

# Machine, image, the runtime's program; settings besides.
CASES = {
    "slurm-pyxis": ("slurm", "nvcr.io#nvidia/pytorch:25.06-py3", "srun", {}),
    "slurm-pyxis-file": ("slurm", "llm.sqsh", "srun", {"CONTAINER_ARGS": "--no-container-mount-home"}),
    "slurm-apptainer": ("slurm", "llm.sif", "apptainer", {"CONTAINER_BINDS": "/scratch,/licences:/l:ro"}),
    "pbs-apptainer": ("pbs", "llm.sif", "apptainer", {}),
    "polaris-apptainer": ("polaris", "llm.sif", "apptainer", {}),
    "aurora-apptainer": ("aurora", "llm.sif", "apptainer", {}),
    "frontier-apptainer": ("frontier", "llm.sif", "apptainer", {}),
    "perlmutter-podman-hpc": ("perlmutter", "megads:nvidia", "podman-hpc", {}),
}


def put(folder: Path, name: str, text: str = "#!/bin/sh\n") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def shown(machine: str, image: str, program: str, more: dict[str, str], folder: Path) -> str:
    """Return the launch and the job of two hosts as text."""
    env = job_environment(machine, 2, folder)
    put(folder / "bin", program, PYXIS if program == "srun" else "#!/bin/sh\n")
    (folder / "tmp").mkdir()
    if image.endswith((".sif", ".sqsh")):
        (folder / image).touch()
    env |= {"CONTAINER": image, "TMPDIR": str(folder / "tmp"), "DATA_PATH": str(folder / "data/books"), **more}
    if machine in ("pbs", "slurm"):
        env["MEGADS_DEVICE"] = "nvidia"
    facts = read_machine(machine, ROOT).facts
    run = resolve("7B", env=env, machine=machine, root=ROOT, num_hosts=2).run
    allocation = find_allocation(run, env, facts)
    command = [rank_python(run.launch, "/p/python"), "-m", "megads", "worker"]
    plan = plan_launch(run, allocation, command, env, facts=facts, folder=folder / "run", python="/p/python")
    lines = [f"{machine}, 2 hosts, CONTAINER={image}", "", "[command]", *options(plan.argv)]
    lines += ["", "[set]", *(f"{name}={value}" for name, value in plan.env.items())]
    for name in ("PBS_JOBID", "SLURM_JOB_ID", "DATA_PATH"):
        env.pop(name, None)
    ask = TrainRequest("7B", (), env | {"WALLTIME": "1:00:00"}, "login", ROOT, "/p/bin/python")
    job = prepare_submission(ask, JobOptions(nodes=2, account="PROJECT"), folder).text
    lines += ["", "[job]", job]
    text = "\n".join(lines).replace(str(folder), "<job>").replace(str(ROOT), "<checkout>")
    # What is bound is sorted by the paths that these stand for.
    for form, between in (("{0}", ","), ("{0}:{0}", ","), ("--volume={0}:{0}", " ")):
        bound = [form.format(name) for name in ("/home", "<job>", "<checkout>")]
        for order in itertools.permutations(bound):
            text = text.replace(between.join(order), between.join(bound))
    return text


@pytest.mark.parametrize("name", CASES)
def test_launch_and_job_in_a_container(name, tmp_path, steady, monkeypatch):
    monkeypatch.setattr("megads.launch.submit.training.check_device", lambda *args, **more: "")
    monkeypatch.setattr("megads.launch.containers.binds._prefixes", lambda run: [str(tmp_path / "data/books")])
    machine, image, program, more = CASES[name]
    path, text = GOLDEN / f"{name}.txt", shown(machine, image, program, more, tmp_path)
    if os.environ.get("MEGADS_WRITE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text


def test_golden_files_are_those_of_the_cases():
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


def launch(**settings) -> LaunchConfig:
    return LaunchConfig(**{"container": "llm.sif", **settings})


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "llm.sif").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("settings", "env", "started", "said"),
    [
        (
            {},
            {"APPTAINER_CONTAINER": "/x.sif"},
            "",
            r"in a container already \(apptainer /x.sif\), .*; unset CONTAINER",
        ),
        ({}, {}, "SLURM", "SLURM started these ranks outside of it; call `megads train` alone"),
        ({"stage_env": True}, {}, "", "with STAGE_ENV=1: .*; drop one of both"),
        (
            {"launch_with": "torchrun"},
            {},
            "",
            "agents of LAUNCH_WITH=torchrun start ranks outside.*; use LAUNCH_WITH=auto",
        ),
        (
            {"container": "llm:1", "container_runtime": "pyxis", "launch_with": "openmpi"},
            {},
            "",
            "CONTAINER_RUNTIME=pyxis is a plugin of srun, not of LAUNCH_WITH=openmpi; use LAUNCH_WITH=srun",
        ),
        ({"container": "no.sif"}, {}, "", "CONTAINER=no.sif: not found"),
        (
            {"container_runtime": "podman"},
            {},
            "",
            "podman does not start a SIF file; use one of apptainer, singularity",
        ),
        ({"container_binds": "data"}, {}, "", "CONTAINER_BINDS: 'data' is not HOST"),
    ],
)
def test_what_cannot_hold_ranks_is_refused(here, settings, env, started, said):
    with pytest.raises(LaunchError, match=said) as caught:
        check_container(launch(**settings), env, here, started=started)
    assert "\n" not in str(caught.value)
    check_container(launch(**{**settings, "container": ""}), env, here, started=started)  # without one nothing is asked
    check_container(launch(), {}, here)


def test_the_runtime_is_the_first_on_path_that_starts_such_an_image(here):
    def chosen(image: str, *programs: str, facts: Facts | None = None, **more: str) -> str:
        folder = here / f"bin-{len(list(here.iterdir()))}"
        for name in programs:
            put(folder, name, PYXIS if name == "srun" else "#!/bin/sh\n")
        settings = launch(container=image, **more)
        return choose(settings, facts or Facts(), {"PATH": str(folder)}, here).runtime.name

    assert chosen("llm.sif", "singularity", "podman") == "singularity"
    assert chosen("llm:1", "podman", "docker", "apptainer") == "podman"
    assert chosen("llm:1", "podman", "srun") == "pyxis"
    (here / "rootfs").mkdir()
    assert chosen("rootfs", "ch-run", "podman") == "charliecloud"
    assert chosen("llm:1", "srun", "shifter", container_runtime="shifter") == "shifter"
    nersc = Facts(container=ContainerFacts(runtime="podman-hpc"))
    assert chosen("llm:1", "podman-hpc", "srun", facts=nersc) == "podman-hpc"
    assert chosen("llm.sif", "apptainer", facts=nersc) == "apptainer"  # what it does not start
    for said, image, more in (
        ("nothing on PATH starts a SIF file; looked for apptainer, singularity; load the module", "llm.sif", {}),
        ("looked for srun with pyxis, podman-hpc, podman, docker, shifter", "llm:1", {}),
        ("CONTAINER_RUNTIME=docker: docker is not on PATH", "llm:1", {"container_runtime": "docker"}),
    ):
        with pytest.raises(LaunchError, match=said):
            chosen(image, "true", **more)
    with pytest.raises(LaunchError, match="CONTAINER_RUNTIME=podman-hpc: podman-hpc is not on PATH"):
        chosen("llm:1", "podman", facts=nersc)
    put(here / "empty", "podman", "#!/bin/sh\nexit 1\n")
    with pytest.raises(
        LaunchError, match=r"CONTAINER=llm:1: podman on this host has no such image; build it \(.*pull llm:1"
    ):
        choose(launch(container="llm:1"), Facts(), {"PATH": str(here / "empty")}, here)
    put(here / "plain", "srun")
    with pytest.raises(LaunchError, match="srun here has no option --container-image"):
        choose(launch(container="llm:1", container_runtime="pyxis"), Facts(), {"PATH": str(here / "plain")}, here)


@pytest.mark.parametrize(
    ("settings", "hosts", "said"),
    [
        ({"launch_with": "deepspeed"}, ("m1",), "LAUNCH_WITH=deepspeed does not start ranks in apptainer"),
        (
            {"launch_with": "mpich", "container": "llm:1", "container_runtime": "docker"},
            ("m1", "m2"),
            "of this host alone",
        ),
        ({"launch_with": "mpich", "container": "llm:1", "container_runtime": "pyxis"}, ("m1",), "use LAUNCH_WITH=srun"),
    ],
)
def test_launchers_that_start_no_container_are_refused(here, monkeypatch, settings, hosts, said):
    for name, text in (("docker", ""), ("apptainer", ""), ("srun", PYXIS), ("mpiexec", "#!/bin/sh\necho HYDRA\n")):
        put(here / "bin", name, text or "#!/bin/sh\n")
    env = {"PATH": f"{here}/bin:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    monkeypatch.setattr("megads.launch.launchers.command.master_address", lambda *args, **more: "m1")
    allocation = Allocation("none", hosts, 2)
    with pytest.raises(LaunchError, match=said):
        plan_launch(RunConfig(launch=launch(**settings)), allocation, ["python3", "x.py"], env, python="/p/python")


def test_ranks_get_the_images_python_and_nothing_of_this_hosts(here):
    put(here / "bin", "podman")
    run = RunConfig(launch=launch(container="llm:1", launch_with="local", container_python="/opt/python"))
    assert rank_python(run.launch, "/host/python") == "/opt/python"
    assert rank_python(replace_container(run.launch), "/host/python") == "/host/python"
    env = {"PATH": f"{here}/bin", "LD_LIBRARY_PATH": "/host/lib", "PYTHONPATH": "/host", "HF_TOKEN": "secret"}
    one = Allocation("none", ("localhost",), 2)
    plan = plan_launch(run, one, [rank_python(run.launch, "/host/python"), "x.py"], env, python="/host/python")
    assert plan.argv[0] == "/host/python"  # our launcher runs outside
    assert plan.argv[-2:] == ("/opt/python", "x.py")
    assert {f"--env={name}" for name in ("HF_TOKEN", *EXPLICIT)} <= {*plan.argv}
    assert "--pull=never" in plan.argv
    assert not any("secret" in word or "LD_LIBRARY_PATH" in word for word in plan.argv)
    assert plan.env["PYTHONPATH"] == str(ROOT)
    assert plan.env["PYTHONNOUSERSITE"] == "1"
    assert plan.env["MEGADS_CONTAINER"] == "podman llm:1"


def replace_container(settings: LaunchConfig) -> LaunchConfig:
    return settings.model_copy(update={"container": ""})


def test_of_a_site_holds_what_is_of_this_runtime(here):
    for name in ("apptainer", "podman"):
        put(here / "bin", name)
    site = ContainerFacts(runtime="podman-hpc", args=("--nccl",), binds=("/opt",), environment={"A": "b"})
    run = RunConfig(launch=launch(launch_with="local"))
    one = Allocation("none", ("localhost",), 2)

    def planned(facts: ContainerFacts):
        return plan_launch(run, one, ["python3"], {"PATH": f"{here}/bin"}, facts=Facts(container=facts), python="/p")

    other, own = planned(site), planned(site.model_copy(update={"runtime": "apptainer"}))
    assert "--nccl" not in other.argv
    assert "A" not in other.env
    assert "--nccl" in own.argv
    assert own.env["A"] == own.env["APPTAINERENV_A"] == "b"
    assert any(word.startswith("--bind=") and word.endswith(",/opt") for word in own.argv)
