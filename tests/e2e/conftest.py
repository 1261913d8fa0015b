"""Real runs of the real command, on a model and a demo corpus small enough for every test."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from megads.monitor.metrics import read_metrics
from tests.forks.popen import Popen

ROOT = Path(__file__).parents[2]
SMALL = {
    "MACHINE": "cpu",
    "HIDDEN": "64",
    "HEADS": "4",
    "NUM_KV_HEAD": "4",
    "FFN_HIDDEN_SIZE": "128",
    "NLAYERS": "2",
    "SEQ": "32",
    "GLOBAL_BATCH": "8",
    "MICRO_BATCH": "4",
    "TRAIN_ITERS": "12",
    "EVAL_INTERVAL": "6",
    "EVAL_ITERS": "1",
    "SAVE_INTERVAL": "0",
    "DTYPE": "fp32",
    "DEMO_VOCAB_SIZE": "512",
    "DEMO_BYTES": "300000",
    "VAL_SPLIT": "100",
    "OMP_NUM_THREADS": "1",
}

PLANTED = """import os, sys, time
NAMES = ("MEGADS_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK")
RANK = next((os.environ[name] for name in NAMES if name in os.environ), "")
"""
SLOW = """
if RANK == "0" and "worker" in sys.argv:
    import megads.train.loop as loop
    step = loop.Loop.step
    def slow(self, batches):
        time.sleep(0.2)
        step(self, batches)
    loop.Loop.step = slow
"""
"""To plant: steps that take time, and none of a core."""


@dataclass
class Command:
    """Calls megads in a folder of its own, with a small model unless the test says otherwise.

    Processes are forked (tests/forks), unless ``forked`` is False or a variable of the call needs a new interpreter.
    """

    folder: Path
    cache: Path
    forked: bool = True

    def env(self, **settings: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        return {**kept, "PYTHONPATH": str(ROOT), "DATA_CACHE_PATH": str(self.cache), **SMALL, **settings}

    def plant(self, text: str) -> str:
        """Return a PYTHONPATH with which every Python runs ``text`` first; ``RANK`` in it is the rank, or ""."""
        folder = self.folder.with_name(f"{self.folder.name}-planted")
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(PLANTED + text)
        return f"{folder}:{ROOT}"

    def start(self, *words: str, **settings: str) -> subprocess.Popen[str]:
        start = Popen if self.forked else subprocess.Popen
        return start(
            [sys.executable, "-m", "megads", *words],
            cwd=self.folder,
            env=self.env(**settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*words, **settings)
        out, err = process.communicate(timeout=400)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def train(self, run_dir: str, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        return self("train", *words, RUN_DIR=run_dir, **settings)

    def rows(self, run_dir: str) -> list[dict[str, object]]:
        """Return what a run told of its steps; saves and memory are told as often as it was started."""
        rows = read_metrics(self.folder / run_dir / "metrics.jsonl")
        return [row for row in rows if not {"save_s", "memory/weights_bytes"} & set(row)]

    def losses(self, run_dir: str) -> list[float]:
        return [row["lm_loss"] for row in self.rows(run_dir) if "lm_loss" in row]


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """Give the folder of the demo corpus: one for all folders of tests that use this fixture."""
    folder = tmp_path_factory.getbasetemp() / "demo-corpus"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def megads(request, tmp_path, cache):
    return Command(tmp_path, cache, forked="interpreters" not in request.node.keywords)
