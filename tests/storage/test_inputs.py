"""Inputs that would hang or fill the memory are one line, at once."""

from __future__ import annotations

import gzip
import json
import os
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from megads.checkpoint.convert.huggingface.config import describe
from megads.checkpoint.convert.reshard import target_of
from megads.checkpoint.format.manifest import read_manifest
from megads.cli import main
from megads.comm.grid import Grid
from megads.config.schema import RunConfig
from megads.config.setting import LARGEST
from megads.config.tree import fields
from megads.data.preprocess.input import blocks, files, ranges
from megads.data.preprocess.input.blocks import Blocks
from megads.data.preprocess.input.files import look_at, open_pipe
from megads.data.preprocess.plan import How, Job, Segment, check_job
from megads.data.sources.file_list import read_file_list
from megads.data.tokenizers.base import TokenizerSpec
from megads.errors import CheckpointError, ConfigError, DataError
from tests.checkpoint.convert.test_reshard import ARRAYS, FOUR
from tests.checkpoint.sources import write_source

JOB = Job(inputs=(), output_prefix="/x/out", tokenizer=TokenizerSpec("NullTokenizer"))


@pytest.mark.parametrize("given", [{"partitions": 100_000}, {"workers": 10**9}])
def test_more_processes_than_a_host_can_use_are_refused(given):
    check_job(replace(JOB, how=How(partitions=8, workers=8)))
    with pytest.raises(ConfigError, match=r"--\w+ \d+: at most \d+ processes on this host, which has \d+ cores?"):
        check_job(replace(JOB, how=How(**given)))


def test_devices_and_pipes_without_a_writer_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PATIENCE_S", 0.2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="/dev/zero: is a device, expected a regular file"):
        look_at("/dev/zero")
    source = look_at(str(tmp_path / "pipe"))
    began = time.monotonic()
    with pytest.raises(DataError, match=r"pipe: is a pipe without data for 0\.2 s; pass files"):
        list(files.read_pieces(source))
    assert time.monotonic() - began < 50


def test_every_reader_of_input_gives_up_on_a_pipe_without_a_writer(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PATIENCE_S", 0.2)
    os.mkfifo(pipe := tmp_path / "pipe")
    output = str(tmp_path / "tokenizer")
    words = ["data", "train-tokenizer", "--input", str(pipe), "--vocab-size", "300", "--output", output]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.stderr) == (
        2,
        f"megads: --input {pipe}: is a pipe without data for 0.2 s; pass files\n",
    )
    assert not os.path.lexists(output)


def test_a_pipe_whose_writer_has_ended_keeps_its_text(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    hold = os.open(pipe, os.O_RDWR)  # stands for the writer; a pipe keeps its text while somebody has it open
    os.write(hold, b"x\n")
    with open_pipe(str(pipe), 5.0) as file:
        os.close(hold)
        assert file.read() == b"x\n"


def _wait(made: Blocks) -> None:
    until = time.monotonic() + 60
    while not made.is_done and time.monotonic() < until:
        made.next()
        time.sleep(0.001)


@pytest.mark.parametrize("packed", [True, False])
def test_a_line_without_end_is_refused_with_its_place(tmp_path, monkeypatch, packed):
    monkeypatch.setattr(blocks, "LONGEST_LINE", 1 << 20)
    monkeypatch.setattr(ranges, "LONGEST_LINE", 1 << 20)
    path = tmp_path / "x.jsonl"
    content = b'{"text": "a"}\n' * 3 + b'{"text": "' + b"a" * (5 << 20) + b'"}\n'
    path.write_bytes(gzip.compress(content) if packed else content)
    source = look_at(str(path))
    if packed:
        made = Blocks([source], [Segment(0, 0, -1)], blocks.Position(), 1 << 16)
        with pytest.raises(DataError, match=r"x\.jsonl: line 4 has more than 1 MiB"):
            _wait(made)
        made.close()
    else:
        with pytest.raises(DataError, match=r"x\.jsonl: near byte \d+: a line of more than 1 MiB"):
            ranges.RangeReader().read(str(path), 0, 60)


def test_a_zero_byte_in_a_list_is_named(tmp_path):
    (tmp_path / "list.txt").write_bytes(b"1 /da\0ta c\n")
    with pytest.raises(DataError, match=r"list\.txt.*'/da\\\\?x00ta' holds a zero byte"):
        read_file_list(tmp_path / "list.txt")


SIZES = ["num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads"]
WRONG_SIZES = [10**9, 10**18, 10**400, True, "8", [8], -1, 0, 1e9]


CASES = [
    (name, value)
    for name in SIZES
    for value in WRONG_SIZES
    if not (name == "vocab_size" and value == 10**9)  # a vocabulary may be so large
]


@pytest.mark.parametrize(("name", "value"), CASES)
def test_sizes_of_a_model_that_nobody_has_are_refused(tmp_path, name, value):
    config = {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 100, "max_position_embeddings": 64},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert describe(tmp_path, 1).model.num_layers == 2
    (tmp_path / "config.json").write_text(json.dumps({**config, name: value}))
    with pytest.raises(CheckpointError, match=r"config\.json: ") as error:
        describe(tmp_path, 1)
    assert len(str(error.value)) < 400


def test_a_layout_of_more_ranks_than_a_checkpoint_can_fill_is_refused(tmp_path):
    manifest = read_manifest(write_source(tmp_path, FOUR["gpt"], ARRAYS["gpt"], Grid()))
    with pytest.raises(ConfigError, match=r"10000000 ranks, each with a file of its own; at most \d+"):
        target_of(manifest, data=10_000_000, tensor=1, pipeline=1, sequence=1)


def test_no_setting_takes_a_number_that_is_too_large():
    """Whatever a whole number is for, it has a limit."""
    numbers = [name for name, kind in fields().items() if kind.annotation is int and "." in name]
    assert len(numbers) > 50
    for name in numbers:
        section, key = name.split(".")
        with pytest.raises(ValidationError):
            RunConfig(**{section: {key: LARGEST * 1000}})
