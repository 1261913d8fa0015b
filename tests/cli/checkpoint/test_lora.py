"""``megads checkpoint merge-lora``: a plain checkpoint of both, and what is refused in one line."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from click.testing import CliRunner, Result

from megads.checkpoint.format.reader import Reader
from megads.cli import main
from tests.checkpoint.lora.made import make_both


def _run(*words: object) -> Result:
    return CliRunner().invoke(main, ["checkpoint", *map(str, words)])


def refusal(result: Result) -> str:
    """Return the one line of a refusal."""
    assert result.exit_code == 2, result.output
    (line,) = result.output.strip().split("\n")
    assert line.startswith("megads: ")
    return line


def test_merged_weights_are_a_plain_checkpoint(tmp_path):
    adapters, base, merged = make_both(tmp_path)
    done = _run("merge-lora", tmp_path / "adapters", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert f"out/iter_0000050: 77.4 KiB, 8 adapters of {adapters.path} in {base.path}" in done.stdout
    with Reader(tmp_path / "out/iter_0000050") as reader:
        for name, wanted in merged.items():
            np.testing.assert_array_equal(reader.whole(name), wanted)
    assert _run("verify", tmp_path / "out").exit_code == 0


def test_a_base_that_moved_is_named(tmp_path):
    _, base, _ = make_both(tmp_path)
    shutil.move(base.path.parent, tmp_path / "moved")
    assert "is not there; restore it, or name a copy" in refusal(_run("merge-lora", tmp_path / "adapters", "out"))
    done = _run("merge-lora", tmp_path / "adapters", tmp_path / "out", "--base", tmp_path / "moved")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("base", "out"), "holds no adapters; it is a plain checkpoint already"),
        (("nothing", "out"), "No such file or directory"),
        (("adapters", "out", "--step", "3"), "no checkpoint of iteration 3"),
        (("adapters", "base/iter_0000007"), "is a checkpoint; pass the folder"),
        (("adapters", "out", "--base", "adapters"), "8 adapters"),
    ],
)
def test_what_cannot_be_merged(tmp_path, monkeypatch, words, told):
    make_both(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = _run("merge-lora", *words)
    if told == "8 adapters":  # what is named is not the base, which is where it was
        assert told in result.stdout
    else:
        assert told in refusal(result)


def test_adapters_go_to_peft_and_back(tmp_path):
    adapters, *_ = make_both(tmp_path)
    done = _run("export-lora", tmp_path / "adapters", tmp_path / "out", "--base-name", "mine")
    assert done.exit_code == 0, done.output
    assert (
        "out: adapters of rank 2 of down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj in fp32"
        in done.stdout
    )
    done = _run("import-lora", tmp_path / "out", tmp_path / "back", "--base", tmp_path / "base")
    assert done.exit_code == 0, done.output
    assert "back/iter_0000000: adapters of rank 2, alpha 5, of q k v out gate up down" in done.stdout
    assert done.stdout.endswith("USE_CHECKPOINT_ARGS=1 DATA_FILE_LIST=my-data.txt megads train\n")
    with Reader(tmp_path / "back/iter_0000000") as ours, Reader(adapters.path) as first:
        for name in first.manifest.tensors:
            np.testing.assert_array_equal(ours.whole(name), first.whole(name))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("export-lora", "base", "out"), "holds no adapters (LORA_RANK); `megads checkpoint export-hf` exports it"),
        (("export-lora", "adapters", "base"), "already exists"),
        (("import-lora", "adapters", "out", "--base", "base"), "adapter_config.json: No such file"),
        (("import-lora", "adapters", "out", "--base", "adapters"), "holds adapters itself"),
        (("import-lora", "adapters", "out"), "Missing option '--base'"),
        (("export-hf", "adapters", "out", "--step", "4"), "no checkpoint of iteration 4"),
    ],
)
def test_what_is_refused(tmp_path, monkeypatch, words, told):
    make_both(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert told in refusal(_run(*words))
