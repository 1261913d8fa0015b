"""Files of bounded size, and the sizes that a user gives."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from megads.checkpoint.convert.huggingface.write_shards import parse_size
from megads.comm.grid import Grid
from megads.errors import CheckpointError
from tests.checkpoint.convert.huggingface.models import (
    OURS,
    assert_same_logits,
    exported,
    our_module,
    write_checkpoint,
)


@pytest.mark.parametrize("kind", ["llama-gqa", "gpt2-untied"])
def test_shards_are_bounded_and_load_like_one_file(tmp_path, kind):
    path = write_checkpoint(tmp_path / "ours", OURS[kind], Grid(tensor=2))
    exported(path, tmp_path / "one", dtype="fp32")
    done = exported(path, tmp_path / "many", dtype="fp32", limit=parse_size("10KB"))
    assert len(done.files) > 5
    assert done.files[0] == f"model-00001-of-{len(done.files):05d}.safetensors"
    whole, seen = load_file(tmp_path / "one" / "model.safetensors"), {}
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    for name in done.files:
        tensors = load_file(tmp_path / "many" / name)
        assert len(tensors) == 1 or sum(each.nbytes for each in tensors.values()) <= 10_000
        assert all(index["weight_map"][tensor] == name for tensor in tensors)
        seen |= tensors
    assert seen.keys() == whole.keys()
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in whole.values())
    assert_same_logits(our_module(path, OURS[kind]), AutoModelForCausalLM.from_pretrained(tmp_path / "many"))


@pytest.mark.parametrize(("text", "size"), [("5GB", 5 * 10**9), ("2GiB", 2**31), ("1.5 mb", 1_500_000), ("77", 77)])
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "5XB", "-3GB", "0", "1e9"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(CheckpointError, match=r"not a size; use e.g. 5GB"):
        parse_size(text)
