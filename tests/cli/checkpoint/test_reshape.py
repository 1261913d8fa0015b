"""megads checkpoint reshape, by its command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megads.checkpoint.format.manifest import read_manifest
from megads.checkpoint.format.reader import Reader
from megads.cli import main
from megads.comm.grid import Grid
from tests.checkpoint.sources import make_arrays, write_source
from tests.models.shapes import LLAMA

ROOT = Path(__file__).parents[3]


MODEL = LLAMA.model_copy(update={"num_layers": 4})
ARRAYS = make_arrays(MODEL)


def call(*words):
    """Call the command in this process; return its exit code."""
    with pytest.raises(SystemExit) as left:
        sys.exit(main([str(word) for word in words]))
    return left.value.code or 0


def test_the_command(tmp_path, capsys):
    run = tmp_path / "run"
    source = write_source(run / "checkpoints", MODEL, ARRAYS, Grid(2, 2, 1, 2))
    assert call("checkpoint", "reshape", run, tmp_path / "b", "--tp", 1, "--pp", 4, "--dp", 1) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{tmp_path}/b/iter_0000050: TP=1 x PP=4 x SP=1 x DP=1, ZeRO 1, 4 files, ")
    assert out.endswith(f"{source} is TP=2 x PP=2 x SP=1 x DP=2, ZeRO 1\n")
    assert err == ""
    with Reader(tmp_path / "b/iter_0000050") as reader:
        assert all((reader.whole(name, kind) == array).all() for (kind, name), array in ARRAYS.items())


def test_weights_alone_say_how_a_run_starts_from_them(tmp_path, capsys):
    write_source(tmp_path / "a", MODEL, ARRAYS, Grid())
    assert call("checkpoint", "reshape", tmp_path / "a", tmp_path / "b", "--weights-only") == 0
    assert "megads: weights only: start a run from it with FINETUNE=1" in capsys.readouterr().err
    assert read_manifest(tmp_path / "b/iter_0000050").kinds == ("weight",)


def test_the_spellings_of_older_tools(tmp_path, capsys):
    source = write_source(tmp_path / "a", MODEL, ARRAYS, Grid(tensor=4, pipe=4))
    words = ["--model-type", "GPT", "--load-dir", tmp_path / "a", "--save-dir", tmp_path / "b"]
    words += ["--target-tensor-parallel-size", 2, "--target-pipeline-parallel-size", 2]
    assert call("checkpoint", "reshape", *words) == 0
    assert "TP=2 x PP=2 x SP=1 x DP=1" in capsys.readouterr().out
    words = [source, "--save", tmp_path / "c", "--tp", 1, "--target-pipeline-model-parallel-size", 2]
    assert call("checkpoint", "reshape", *words) == 0
    assert read_manifest(tmp_path / "c/iter_0000050").layout["pipe"] == 2


def test_the_command_needs_no_torch(tmp_path):
    write_source(tmp_path / "a", LLAMA, make_arrays(LLAMA), Grid())
    code = "import sys, json; from megads.cli import main; main(json.loads(sys.argv[1]))\n"
    code += "assert 'torch' not in sys.modules"
    words = ["checkpoint", "reshape", str(tmp_path / "a"), str(tmp_path / "b"), "--tp", "2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code, json.dumps(words)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
