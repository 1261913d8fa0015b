"""The training job under every launcher that this host has: the same ranks, so the same losses.

Every process is a new interpreter here, as it is for a user; elsewhere they are forked (tests/README.md).
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.interpreters

LAYOUT = {"TP": "2", "TRAIN_ITERS": "4", "EVAL_INTERVAL": "0", "EVAL_AT_START": "0"}


@pytest.fixture(scope="session")
def losses_of_one_rank(tmp_path_factory, cache):
    from tests.e2e.conftest import Command

    command = Command(tmp_path_factory.mktemp("one"), cache)
    done = command.train("r", **LAYOUT | {"TP": "1"})
    assert done.returncode == 0, done.stderr
    return command.losses("r")


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize(
    ("starter", "ranks"), [("openmpi", "4"), ("mpich", "2"), ("torchrun", "2"), ("deepspeed", "2")]
)
def test_the_losses_do_not_depend_on_the_starter(megads, losses_of_one_rank, starter, ranks):
    done = megads.train("r", **LAYOUT, LAUNCH_WITH=starter, DP=str(int(ranks) // 2))
    assert done.returncode == 0, done.stderr
    assert f"{ranks} ranks on 1 host" in done.stderr
    assert megads.losses("r") == pytest.approx(losses_of_one_rank, rel=1e-5)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize(("starter", "ranks"), [("auto", 2), ("torchrun", 4)])
def test_a_run_over_two_slurm_nodes(slurm, megads, losses_of_one_rank, starter, ranks):
    env = {**megads.env(**LAYOUT), "LAUNCH_WITH": starter, "DP": str(ranks // 2)}
    text = f"cd {megads.folder}\nexec {sys.executable} -m megads train\n"
    printed = slurm.script(text, "-N2", "--exclusive", timeout_s=300, RUN_DIR="r", **env)
    assert f"{ranks} ranks on 2 hosts" in printed
    assert "/srun --nodes=2" in (megads.folder / "r/log/run.log").read_text()  # the screen has a short form
    assert megads.losses("r") == pytest.approx(losses_of_one_rank, rel=1e-5)


SHOW = "import os; e = os.environ; print(*(e[n] for n in 'RANK LOCAL_RANK WORLD_SIZE SLURMD_NODENAME'.split()))"


@pytest.mark.mpi
def test_launch_in_a_batch_script_of_slurm(slurm, megads):
    """Ranks fill the first node, also when sbatch was told another layout; a rank of a step may not launch."""
    (megads.folder / "show.py").write_text(SHOW)
    launch = f"{sys.executable} -m megads launch"
    text = (
        f"cd {megads.folder}\n{launch} -n 3 --ppn 2 -- {sys.executable} show.py 2>/dev/null\necho --\n"
        f"{launch} --hosts 1 --ppn 2 -- {sys.executable} show.py 2>/dev/null\necho --\n"
        f"srun -n2 {launch} -- true || echo refused\n"
        f"srun -N1 -n1 {launch} -n 2 -- {sys.executable} show.py 2>/dev/null\n"
    )
    printed = slurm.script(text, "-N2", "-n8", "-m", "cyclic", timeout_s=120, **megads.env())
    two_nodes, one_node, step = printed.split("--\n")
    assert sorted(two_nodes.split("\n")[:-1]) == ["0 0 3 m1", "1 1 3 m1", "2 0 3 m2"]
    assert sorted(one_node.split("\n")[:-1]) == ["0 0 2 m1", "1 1 2 m1"]
    assert step.count("start megads once, not on every rank") == 1  # rank 0 speaks, both refuse
    assert "refused" in step
    assert "0 0 2 m1\n" in step
    assert "1 1 2 m1\n" in step


@pytest.mark.mpi
@pytest.mark.parametrize("starter", ["openmpi", "mpich", "local", "torchrun", "deepspeed"])
def test_launch_starts_any_program(megads, starter, tmp_path_factory):
    script = 'printf "%s\\n" "$RANK $LOCAL_RANK $WORLD_SIZE"; printf "\\377 raw\\n" >&2; exit $((RANK * 3))'
    temporary = tmp_path_factory.mktemp("tmp")
    done = subprocess.run(
        [sys.executable, "-m", "megads", "launch", "-n", "2", "--with", starter, "--", "sh", "-c", script],
        cwd=megads.folder,
        env=megads.env(RANK="5", OMPI_COMM_WORLD_RANK="7", TMPDIR=str(temporary)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    ranks = [line for line in done.stdout.decode().split("\n") if line.endswith(" 2")]
    assert done.returncode == (1 if starter == "torchrun" else 3), done.stderr
    assert {"0 0 2", "1 1 2"} >= set(ranks)
    assert "1 1 2" in ranks
    assert b"\xff raw\n" in done.stderr
    assert done.stderr.startswith(b"$ env -u ")
    assert os.listdir(megads.folder) == []
    assert not [name for name in os.listdir(temporary) if name.startswith("torchelastic_")]
