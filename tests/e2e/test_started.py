"""Ranks that the user started, by every launcher that this host has: they prepare, train, and leave with real codes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megads.launch.supervise.processes import children
from tests.forks.popen import Popen

pytestmark = pytest.mark.mpi

FEW = {"TP": "2", "TRAIN_ITERS": "4", "EVAL_INTERVAL": "0", "EVAL_AT_START": "0"}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
OPENMPI = ("mpirun.openmpi", "--oversubscribe", "-n")
MPICH = ("mpiexec.hydra", "-n")
MEGADS = (sys.executable, "-m", "megads")


def begin(megads, *words: str, **settings: str) -> subprocess.Popen[str]:
    return Popen(
        words, cwd=megads.folder, env=megads.env(**AS_ROOT, **settings), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def call(megads, *words: str, **settings: str) -> tuple[int, str]:
    process = begin(megads, *words, **settings)
    out, err = process.communicate(timeout=300)
    return process.returncode, out + err


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("launcher", [MPICH, OPENMPI])
def test_a_wrong_setting_is_one_line_and_exit_code_2(megads, launcher):
    code, text = call(megads, *launcher, "3", *MEGADS, "train", **FEW, DTYPE="bf61")
    assert code == 2
    assert text.count("megads: env DTYPE: 'bf61' is not one of fp32, bf16, fp16") == 1
    assert text.count("bf61") == 1
    assert not (megads.folder / "runs").exists()


@pytest.mark.slow
def test_one_run_goes_on_under_several_launchers(megads):
    """Open MPI begins it and is asked to stop, DeepSpeed's launcher ends it, torchrun finds it complete."""
    more = {**FEW, "RUN_DIR": "r", "MAX_RESTARTS": "2"}
    first = begin(megads, *OPENMPI, "2", *MEGADS, "train", **{**more, "TRAIN_ITERS": "100000", "SAVE_INTERVAL": "0"})
    wait_for(megads.folder / "r/metrics.jsonl", first)
    assert megads("stop", "r").returncode == 0
    _, err = first.communicate(timeout=120)
    assert first.returncode == 75, err
    assert err.count("megads: MAX_RESTARTS=2 has no effect: Open MPI started the ranks") == 1
    assert err.count("ranks started by Open MPI") == 1
    assert "layout   2 ranks on 1 host: TP=2" in err
    assert err.count("stopped  ") == 1
    done = len(megads.losses("r"))
    assert (megads.folder / "r/command.txt").read_text().startswith("NGPU_PER_HOST=2 ")

    more["TRAIN_ITERS"] = str(done + 2)
    launcher = ("-m", "deepspeed.launcher.runner", "--num_gpus", "2", "--module", "megads", "train")
    code, text = call(megads, sys.executable, *launcher, **more)
    assert code == 0, text
    assert f"resuming from iteration {done}" in text
    assert len(megads.losses("r")) == done + 2

    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "megads", "train")
    code, text = call(megads, sys.executable, *torchrun, **more)
    assert code == 0, text
    assert text.count(f"r is complete ({done + 2} iterations)") == 1


@pytest.mark.slow
def test_ranks_of_a_folder_that_was_prepared(megads):
    """It is of a number of ranks; two launches do not share it; a rank that is killed is named and the code is real."""
    code, text = call(megads, *MEGADS, "train", "--prepare", **{**FEW, "TRAIN_ITERS": "100000"}, RUN_DIR="r")
    assert code == 0, text
    assert "r is prepared for 2 ranks on 1 host; start them with one of\n  mpiexec -n 2 megads worker r\n" in text
    assert sorted(each.name for each in (megads.folder / "r").glob("*.yaml")) == ["config.yaml"]
    worker = (*MEGADS, "worker", "r")
    code, text = call(megads, *MPICH, "3", *worker)
    assert (code, text) == (
        2,
        "megads: r is prepared for 2 ranks, and MPICH started 3; start 2, or rewrite the folder "
        "with megads train --prepare\n",
    )
    running = begin(megads, *MPICH, "2", *worker)
    wait_for(megads.folder / "r/metrics.jsonl", running)
    code, text = call(megads, *MPICH, "2", *worker)
    assert (code, text.count("another run is using it")) == (2, 1)
    os.kill(rank_process(running.pid, "1"), signal.SIGKILL)
    _, err = running.communicate(timeout=60)
    assert running.returncode not in (0, 75)
    assert f"[rank 1 host {socket.gethostname()}] killed by signal 9 (SIGKILL)" in err


def rank_process(pid: int, rank: str) -> int:
    """Return the process below ``pid`` that trains as ``rank``: the child of its guard."""
    found = [pid]
    for each in found:
        found += children(each)
    ours = [each for each in found if f"\0PMI_RANK={rank}\0" in Path(f"/proc/{each}/environ").read_text()]
    return ours[-1]


@pytest.mark.slow
def test_ranks_of_srun_on_two_nodes_meet_through_a_file(slurm, megads):
    env = {**megads.env(**FEW), "RUN_DIR": "r"}
    text = (
        f"cd {megads.folder}\nDTYPE=bf61 srun -n4 {' '.join(MEGADS)} train && exit 1\n"
        f"exec srun -n4 {' '.join(MEGADS)} train\n"
    )
    printed = slurm.script(text, "-N2", "--exclusive", timeout_s=300, **env)
    assert printed.count("bf61") == 1
    assert printed.count("ranks started by SLURM") == 1
    assert len(megads.losses("r")) == 4
    assert not list(megads.folder.glob(".megads-*"))
