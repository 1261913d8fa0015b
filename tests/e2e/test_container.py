"""Training in containers of a real runtime, Charliecloud: the same losses as outside, under SLURM and on this host."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

pytestmark = [
    pytest.mark.interpreters,
    pytest.mark.skipif(
        not (shutil.which("ch-run") or os.environ.get("MEGADS_REQUIRE_ALL")), reason="needs ch-run (charliecloud)"
    ),
]
LAYOUT = {"TP": "2", "TRAIN_ITERS": "2", "EVAL_INTERVAL": "0", "EVAL_AT_START": "0"}


@pytest.fixture
def image(tmp_path_factory):
    """Return an image of this host's programs, without its folders of users: what ranks see of those is bound."""
    root = tmp_path_factory.mktemp("image")
    for name in ("dev", "etc", "home", "proc", "sys", "tmp", "usr", "var"):
        (root / name).mkdir()
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "etc/image").write_text("of the test\n")
    for name in ("group", "hosts", "passwd", "resolv.conf"):
        (root / "etc" / name).touch()
    return root


def inside(image) -> dict[str, str]:
    """Return the settings of a run in ``image``, whose Python is this one."""
    return {
        "CONTAINER": str(image),
        "CONTAINER_PYTHON": sys.executable,
        "CONTAINER_BINDS": ",".join(dict.fromkeys(["/usr", sys.prefix, sys.base_prefix])),
        "CONTAINER_ARGS": "--write",  # folders that are bound are made in the image
        "USER": "someone",
    }


@pytest.mark.slow
@pytest.mark.mpi
def test_a_slurm_job_in_a_container_has_the_losses_of_one_outside(slurm, megads, image):
    done = megads.train("plain", **LAYOUT)
    assert done.returncode == 0, done.stderr
    python = f"{sys.executable} -m megads"
    check = f"{python} launch -n 2 --ppn 1 -- {sys.executable} -m megads container check"
    text = f"cd {megads.folder}\n{check}\nCONTAINER_PYTHON={sys.executable} exec {python} train\n"
    printed = slurm.script(
        text, "-N2", "--exclusive", timeout_s=300, **{**megads.env(**LAYOUT), **inside(image), "RUN_DIR": "r"}
    )
    assert f"ok   container charliecloud, image {image}" in printed, printed
    assert "ok   launcher  SLURM: rank 0 of 2" in printed
    assert "2 ranks on 2 hosts" in printed
    assert f"image    {image}" in printed
    log = (megads.folder / "r/log/run.log").read_text()
    assert f"ch-run --cd={megads.folder}" in log
    assert megads.losses("r") == megads.losses("plain")


def test_what_a_rank_sees_is_the_image_and_what_is_bound(megads, image):
    show = "import os; print(open('/etc/image').read().strip(), os.path.exists('/opt'), os.getcwd())"
    done = megads("launch", "-n", "1", "--", sys.executable, "-c", show, **inside(image))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"of the test False {megads.folder}\n"
