"""STAGE_ENV: ranks run the Python that was copied to the host's own disk, with the megads that was."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITNESS = 'import os, sys; "worker" in sys.orig_argv and open(os.environ["WITNESS"], "a").write(sys.prefix + "\\n")\n'


@pytest.mark.interpreters
def test_ranks_run_the_staged_python(megads, tmp_path):
    own, node = tmp_path / "own", tmp_path / "node"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", own], check=True)
    (packages,) = (own / "lib").glob("python3*/site-packages")
    (packages / "witness.pth").write_text(WITNESS)
    env = megads.env(
        PYTHONPATH=f"{ROOT}:{sysconfig.get_paths()['purelib']}",
        STAGE_ENV="1",
        STAGE_DIR=str(node),
        WITNESS=str(tmp_path / "witness"),
        **{"TP": "2", "TRAIN_ITERS": "1", "EVAL_INTERVAL": "0", "RUN_DIR": "run"},
    )
    words = [own / "bin/python", "-m", "megads", "train"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    (place,) = [path for path in node.iterdir() if path.is_dir()]
    assert f"staged   {place} on 1 host in " in done.stderr
    assert {*(tmp_path / "witness").read_text().split()} == {str(place / "env")}
    (checkout,) = [path for path in (place / "checkout/megads/train").glob("worker.py")]
    assert checkout.read_text() == (ROOT / "megads/train/worker.py").read_text()
    assert len(megads.losses("run")) == 1
