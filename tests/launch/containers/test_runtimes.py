"""The words of every runtime: image, binds, working folder, devices, and the variables that hold the rank."""

from __future__ import annotations

import pytest

from megads.launch.containers.binds import Bind
from megads.launch.containers.runtimes import RUNTIMES, Enclosure, enclosed

BINDS = (Bind("/a"), Bind("/b", "/c", read_only=True))
NAMES = {"names": ("PMI_RANK", "MEGADS_RANK"), "given": ("HF_HOME", "PALS_X")}


def words(name, device="cpu", **more):
    row = RUNTIMES[name]
    return row.words(Enclosure(row.program, "IMAGE", BINDS, "/a/w", device, ("--more",), **{**NAMES, **more}))


def test_apptainer():
    assert words("apptainer", "nvidia") == (
        *("apptainer", "exec", "--nv", "--bind=/a,/b:/c:ro", "--pwd=/a/w", "--more", "IMAGE"),
    )
    assert words("singularity", "amd")[:3] == ("singularity", "exec", "--rocm")
    assert words("apptainer", "intel")[2] == "--bind=/a,/b:/c:ro"


def test_pyxis_gives_options_of_srun_and_names_what_comes_before_the_images_own():
    assert words("pyxis") == (
        "--container-image=IMAGE",
        "--container-mounts=/a:/a,/b:/c:ro",
        "--container-workdir=/a/w",
        "--container-env=HF_HOME,PALS_X",
        "--more",
    )


@pytest.mark.parametrize("name", ["podman", "podman-hpc", "docker"])
def test_variables_reach_ranks_by_name_where_the_runtime_hands_on_none(name):
    found = words(name)
    assert found[:2] == (name, "run")
    assert {"--workdir=/a/w", "--volume=/a:/a", "--volume=/b:/c:ro", "--env=HF_HOME", "--env=MEGADS_RANK"} <= {*found}
    assert found[-2:] == ("--more", "IMAGE")
    covered = {"--env=PMI*", "--env=PALS_*"} if name != "docker" else {"--env=PMI_RANK", "--env=PALS_X"}
    assert covered <= {*found}
    assert not any("=" in word.removeprefix("--env=") for word in found if word.startswith("--env="))  # no values


def test_devices_of_podman_and_docker():
    assert "--device=nvidia.com/gpu=all" in words("podman", "nvidia")
    assert "--gpus=all" in words("docker", "nvidia")
    assert "--gpu" in words("podman-hpc", "nvidia")
    for name, group in (("podman", "--group-add=keep-groups"), ("docker", "--group-add=video")):
        assert {"--device=/dev/kfd", "--device=/dev/dri", group} <= {*words(name, "amd")}
        assert "--device=/dev/kfd" not in words(name, "intel")


def test_shifter_and_charliecloud():
    assert words("shifter") == ("shifter", "--image=IMAGE", "--workdir=/a/w", "--more", "--")
    found = words("charliecloud")
    assert found[0] == "ch-run"
    assert {"--cd=/a/w", "--bind=/a:/a", "--unset-env=LD_LIBRARY_PATH"} <= {*found}
    assert found[-3:] == ("--more", "IMAGE", "--")


def test_a_rank_that_a_daemon_starts_ignores_sigusr1_itself():
    assert enclosed(RUNTIMES["apptainer"], ("a",), ("python3", "x")) == ("a", "python3", "x")
    found = enclosed(RUNTIMES["podman"], ("p",), ("python3", "x"))
    assert found[:3] == ("p", "sh", "-c")
    assert found[3].startswith('trap "" USR1')
    assert found[-2:] == ("python3", "x")
