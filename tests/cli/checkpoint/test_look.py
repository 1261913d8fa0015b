"""megads checkpoint list, inspect and verify, by their command lines."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from megads.cli import main
from tests.checkpoint.made import KINDS, TENSORS, make, numbers_of

STATES = {"default.cpu": np.arange(40, dtype=np.uint8)}


def call(*words):
    done = CliRunner().invoke(main, ["checkpoint", *map(str, words)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def refuse(*words):
    done = call(*words)
    assert done.exit_code == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("megads: ")
    return lines[0]


@pytest.fixture
def run(tmp_path):
    """A run with two checkpoints, a damaged one, one without a manifest, and one that is being written."""
    folder = tmp_path / "run" / "checkpoints"
    make(folder, 50, rng=STATES)
    make(folder, 100, numbers=numbers_of(TENSORS, ("weight",)), degree=1, bounds=(), progress={})
    os.truncate(make(folder, 150) / "rank-00001.safetensors", 7)
    (folder / "iter_0000200").mkdir()
    half = folder / "iter_0000250.tmp"
    half.mkdir()
    (half / "rank-00000.safetensors").write_bytes(bytes(1_500_000))
    return tmp_path / "run"


def test_list_shows_every_checkpoint_and_why_one_is_none(run):
    done = call("list", run)
    assert done.exit_code == 0
    head, *rows = [line.rstrip() for line in done.stdout.splitlines()]
    assert head.split() == ["iteration", "samples", "tokens", "loss", "size", "layout", "holds", "state"]
    assert len(rows) == 5
    assert rows[0].split()[:4] == ["50", "400", "12800", "2.5000"]
    assert rows[0].endswith("TP2 DP2 ZeRO1  weights+optimizer  complete")
    assert rows[1].split()[:4] == ["100", "-", "-", "-"]
    assert rows[1].endswith("1 rank ZeRO1   weights            complete")
    assert "iter_0000150: rank-00001.safetensors: 7 bytes, the manifest says" in rows[2]
    assert rows[3].endswith("iter_0000200: has no manifest.json; it is not a complete checkpoint")
    assert "1.50 MB" in rows[4]
    assert "iter_0000250.tmp: incomplete" in rows[4]


def test_list_as_json(run):
    rows = json.loads(call("list", run / "checkpoints", "--json").stdout)
    assert [row["complete"] for row in rows] == [True, True, False, False, False]
    assert [row["iteration"] for row in rows] == [50, 100, 150, 200, 250]
    assert rows[0]["layout"] == {"pipe": 1, "data": 2, "seq": 1, "tensor": 2, "zero_stage": 1}
    assert rows[0]["holds"] == ["weights", "optimizer"]
    assert (rows[0]["consumed_samples"], rows[0]["consumed_tokens"], rows[0]["loss"]) == (400, 12800, 2.5)
    assert rows[0]["bytes"] == sum(each.stat().st_size for each in (run / "checkpoints/iter_0000050").glob("*.saf*"))


def test_a_loss_that_is_no_number_is_valid_json(tmp_path):
    path = make(tmp_path, 50, progress={"last_loss": float("nan")})
    (row,) = json.loads(call("list", path, "--json").stdout, parse_constant=pytest.fail)
    assert row["loss"] is None


def test_inspect_shows_shapes_cuts_and_norms(tmp_path):
    numbers = numbers_of(TENSORS)
    make(tmp_path, numbers=numbers)
    done = call("inspect", tmp_path)
    assert done.exit_code == 0
    about, table = done.stdout.split("\n\n", 1)
    assert "TP=2 x PP=1 x SP=1 x DP=2, ZeRO 1" in about
    assert "consumed_samples=400" in about
    assert "optim.lr=0.001" in about
    assert "214 parameters" in about
    rows = {line.split()[-1]: line for line in table.splitlines()}
    assert rows.keys() - {"name"} == TENSORS.keys()
    qkv = rows["layers.0.attention.qkv.weight"].split()
    expected = [f"{np.linalg.norm(numbers[kind]['layers.0.attention.qkv.weight']):.4f}" for kind in KINDS]
    assert [f"{float(each):.4f}" for each in qkv[:3]] == expected
    assert " ".join(qkv[3:-1]) == "16 x 6 rows of 8 + 4 + 4"
    assert "columns" in rows["layers.0.attention.out.weight"]
    assert "replicated on every rank" in rows["final_norm.weight"]


def test_inspect_as_json_of_what_matches(tmp_path):
    path = make(tmp_path)
    told = json.loads(call("inspect", path, "--pattern", "*.qkv.*", "--json").stdout)
    assert [each["name"] for each in told["tensors"]] == [name for name in TENSORS if "qkv" in name]
    assert told["tensors"][0]["norms"].keys() == set(KINDS)
    assert told["model"] == {"vocab_size": 7}
    assert told["settings"] == {"model.seq_length": 32, "optim.lr": 0.001}


def test_shapes_are_shown_without_reading_a_tensor(tmp_path):
    path = make(tmp_path, degree=1, bounds=())
    file = path / "rank-00000.safetensors"
    file.write_bytes(bytes(file.stat().st_size))
    assert "16 x 6" in call("inspect", path, "--no-norms").stdout
    assert "its header changed since it was written" in refuse("inspect", path)


def test_inspect_takes_the_newest_that_is_whole(run):
    done = call("inspect", run, "--json")
    assert json.loads(done.stdout)["iteration"] == 100
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()] == ["skipped"] * 2


def test_verify_says_what_is_right(tmp_path):
    paths = [make(tmp_path, 50), make(tmp_path, 100)]
    for words, expected in (((tmp_path,), paths[1:]), ((tmp_path, "--all"), paths), (paths, paths)):
        done = call("verify", *words)
        assert done.exit_code == 0
        lines = done.stdout.splitlines()
        assert [line.split(": unchanged since it was written; 4 files, ")[0] for line in lines] == [
            str(path) for path in expected
        ]


def test_verify_ends_at_the_first_damage(tmp_path):
    sound, path = make(tmp_path, 50), make(tmp_path, 100)
    file = path / "rank-00002.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 4
    file.write_bytes(content)
    assert "rank-00002.safetensors: block 0 changed since it was written" in refuse("verify", tmp_path)
    done = call("verify", tmp_path, "--all")
    assert done.exit_code == 2
    assert done.stdout.startswith(str(sound))
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["list", "inspect", "verify"])
def test_what_is_no_run_is_refused_in_one_line(tmp_path, command):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for place in ("none", "empty", "file"):
        assert place in refuse(command, tmp_path / place)


def test_inspect_names_a_tensor_that_there_is(tmp_path):
    path = make(tmp_path)
    assert "no tensor matches 'x*'; the first one is embedding.weight" in refuse("inspect", path, "--pattern", "x*")


def test_looking_needs_no_torch(tmp_path):
    path = make(tmp_path)
    for words in (("list", path), ("inspect", path), ("verify", path)):
        code = (
            "import sys\nfrom megads.cli import main\n"
            f"main(['checkpoint', {words[0]!r}, {str(words[1])!r}])\n"
            "assert not {'torch', 'deepspeed'} & sys.modules.keys()\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
