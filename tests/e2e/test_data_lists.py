"""The lists that come with the program: they can be read, name no site, and one of them works everywhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from megads.data.sources.file_list import read_file_list
from megads.errors import DataError
from megads.monitor.metrics import read_metrics
from tests.e2e.conftest import ROOT, SMALL

LISTS = sorted((ROOT / "data-lists").glob("*.txt"))
README = (ROOT / "data-lists" / "README.md").read_text()


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.name)
def test_every_list_is_read_and_explained(path):
    shards = read_file_list(path, {"MEGADS_DATA_ROOT": "/data"})
    assert len({shard.prefix for shard in shards}) == len(shards)
    # Absolute paths begin with the variable, or they are somebody's own.
    words = [line.split()[1] for line in path.read_text().splitlines() if line and not line.startswith("#")]
    assert all(word.startswith(("$MEGADS_DATA_ROOT/", "../.cache/")) for word in words)
    assert f"`{path.name}`" in README
    if any("$" in word for word in words):
        with pytest.raises(DataError, match="MEGADS_DATA_ROOT is not set; export MEGADS_DATA_ROOT=FOLDER"):
            read_file_list(path, {})


def test_weights_of_the_corpora_that_came_with_the_seeds():
    env = {"MEGADS_DATA_ROOT": "/data"}
    dolma = read_file_list(ROOT / "data-lists" / "dolma.txt", env)
    assert len({shard.corpus for shard in dolma}) == 14
    assert sum(shard.weight for shard in dolma) == pytest.approx(1, abs=1e-4)
    books = read_file_list(ROOT / "data-lists" / "books.txt", env)
    assert sum(shard.weight for shard in books) == pytest.approx(0.0072, abs=1e-4)


def test_the_commands_of_the_readme_give_a_list_to_train_on(tmp_path):
    shutil.copytree(ROOT / "data-lists", tmp_path / "data-lists")
    settings = {**SMALL, "TRAIN_ITERS": "2", "EVAL_INTERVAL": "2", "MEGADS_DEVICE": "cpu", "RUN_DIR": "run"}
    env = {
        **settings,
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    blocks = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf8",
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    losses = [row["lm_loss"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "lm_loss" in row]
    assert len(losses) == 2
