"""A rank that fails: its own traceback, with rank and host, and the run is over at once."""

import json
import re
import socket
import time

import pytest

from tests.e2e.conftest import ROOT

PLANTED = """
if RANK == "1":
    import megads.train.loop as loop

    step = loop.Loop.step

    def failing(self, batches):
        if self.training.progress.iteration == 2:
            raise ZeroDivisionError("planted in rank 1")
        step(self, batches)

    loop.Loop.step = failing
"""


@pytest.mark.parametrize(
    ("starter", "engine"),
    [
        ("local", "auto"),
        ("local", "native"),
        ("torchrun", "auto"),
        pytest.param("openmpi", "auto", marks=pytest.mark.mpi),
        pytest.param("mpich", "auto", marks=pytest.mark.mpi),
    ],
)
def test_the_rank_that_fails_is_shown_and_the_run_ends(megads, starter, engine):
    started = time.time()
    layout = {"TP": "2", "ENGINE": engine, "LAUNCH_WITH": starter}
    done = megads.train("r", TRAIN_ITERS="4000", PYTHONPATH=megads.plant(PLANTED), **layout)
    assert time.time() - started < 90
    assert done.returncode == 1, done.stderr
    shown = f"[rank 1 host {socket.gethostname()}] ZeroDivisionError: planted in rank 1"
    assert done.stderr.count(shown) == 1, done.stderr
    assert len(re.findall(r"Traceback \(most recent call last\)", done.stderr.split("elastic")[0])) == 1, done.stderr
    outcome = json.loads((megads.folder / "r/outcome.json").read_text())
    assert outcome["exit_code"] == 1
    assert "rank 1" in outcome["message"]


def test_a_run_does_not_fail_for_want_of_a_picture(megads, tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ImportError('broken on this machine')\n")
    done = megads.train("r", TRAIN_ITERS="2", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.returncode == 0, done.stderr
    assert "no plot of the loss: ImportError: broken on this machine" in done.stderr
    assert "done     2 of 2 iterations" in done.stderr
