"""What is exported computes in transformers what it computes here, from any layout."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from megads.checkpoint.convert.huggingface.export import _ending_with
from megads.comm.grid import Grid
from megads.errors import CheckpointError
from tests.checkpoint.convert.huggingface.models import (
    OURS,
    assert_same_logits,
    exported,
    our_module,
    weights_of,
    write_checkpoint,
)
from tests.checkpoint.sources import write_source

GRIDS = {
    "one": Grid(),
    "tp2": Grid(tensor=2),
    "pp2": Grid(pipe=2),
    "zero-dp3": Grid(data=3),
    "all": Grid(pipe=2, data=2, seq=2, tensor=2),
}


@pytest.mark.parametrize("kind", OURS)
def test_logits_in_transformers_equal_ours(tmp_path, kind):
    model = OURS[kind]
    path = write_checkpoint(tmp_path / "ours", model, Grid(tensor=2, data=2))
    done = exported(path, tmp_path / "theirs", dtype="fp32")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", dtype=torch.float32)
    assert type(theirs).__name__ == done.architecture
    assert done.parameters == sum(each.numel() for each in theirs.parameters())
    assert_same_logits(our_module(path, model), theirs)


@pytest.mark.parametrize("kind", ["llama-gqa", "gpt2-tanh"])
def test_every_layout_gives_the_same_files(tmp_path, kind):
    files = {}
    for name, grid in GRIDS.items():
        path = write_checkpoint(tmp_path / name, OURS[kind], grid, zero_stage=3 if grid.data > 1 else 0)
        exported(path, tmp_path / f"{name}-out", dtype="fp32")
        files[name] = (tmp_path / f"{name}-out" / "model.safetensors").read_bytes()
    assert len(set(files.values())) == 1


@pytest.mark.parametrize(
    ("dtype", "kind"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_numbers_are_rounded_as_torch_does(tmp_path, dtype, kind):
    model = OURS["llama-gqa"]
    exported(write_checkpoint(tmp_path / "ours", model, Grid()), tmp_path / "theirs", dtype=dtype)
    found = load_file(tmp_path / "theirs" / "model.safetensors")["model.layers.1.mlp.down_proj.weight"]
    assert torch.equal(found, torch.from_numpy(weights_of(model)["weight", "layers.1.mlp.down.weight"]).to(kind))


def test_the_type_is_that_of_the_training_unless_another_is_asked_for(tmp_path):
    settings = {"model": OURS["gpt2-erf"].model_dump(), "train": {"dtype": "bf16"}}
    path = write_checkpoint(tmp_path / "ours", OURS["gpt2-erf"], Grid(), settings=settings)
    assert exported(path, tmp_path / "theirs").dtype == "bf16"
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["torch_dtype"] == config["dtype"] == "bfloat16"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").dtype == torch.bfloat16


def test_tensors_of_many_bands_come_out_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("megads.checkpoint.convert.huggingface.export.BAND", 100)  # three rows of 32
    model = OURS["llama-gqa"]
    exported(write_checkpoint(tmp_path / "ours", model, Grid(tensor=2)), tmp_path / "theirs", dtype="fp32")
    tensors, weights = load_file(tmp_path / "theirs" / "model.safetensors"), weights_of(model)
    for theirs, ours in {"embed_tokens": "embedding", "layers.0.self_attn.o_proj": "layers.0.attention.out"}.items():
        assert np.array_equal(tensors[f"model.{theirs}.weight"], weights["weight", f"{ours}.weight"][:53])


def test_a_number_that_fp16_can_not_hold_is_refused_and_nothing_stays(tmp_path):
    model = OURS["llama-gqa"]
    weights = weights_of(model)
    weights["weight", "layers.1.mlp.down.weight"][3, 4] = 70000.0
    path = write_source(tmp_path / "ours", model, weights, Grid(), kinds=("weight",))
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.down\.weight: fp16 cannot hold 70000.*--dtype bf16"):
        exported(path, tmp_path / "theirs", dtype="fp16")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["ours"]


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    path = write_checkpoint(tmp_path / "ours", OURS["gpt2-erf"], Grid())
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "mine").write_text("keep")
    with pytest.raises(CheckpointError, match="already exists"):
        exported(path, tmp_path / "theirs")
    assert (tmp_path / "theirs" / "mine").read_text() == "keep"
    (tmp_path / "theirs" / "mine").unlink()
    exported(path, tmp_path / "theirs")
    assert (tmp_path / "theirs" / "config.json").is_file()


def test_a_folder_of_the_users_that_ends_like_ours_is_left_alone(tmp_path):
    path = write_checkpoint(tmp_path / "ours", OURS["gpt2-erf"], Grid())
    (tmp_path / "theirs.tmp").mkdir()
    (tmp_path / "theirs.tmp" / "mine").write_text("keep")
    exported(path, tmp_path / "theirs")
    assert (tmp_path / "theirs.tmp" / "mine").read_text() == "keep"


def test_a_damaged_checkpoint_leaves_no_folder(tmp_path):
    path = write_checkpoint(tmp_path / "ours", OURS["gpt2-erf"], Grid())
    file = path / "rank-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="CRC-32 differs"):
        exported(path, tmp_path / "new" / "theirs")
    assert [each.name for each in tmp_path.iterdir()] == ["ours"]


def _peak(path, folder):
    """Return the bytes that an export holds at once."""
    tracemalloc.start()
    try:
        exported(path, folder, dtype="bf16")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr("megads.checkpoint.convert.huggingface.export.BAND", 1 << 16)
    few, many = (OURS["llama-gqa"].model_copy(update={"num_layers": n, "ffn_hidden_size": 8192}) for n in (2, 8))
    paths = [write_checkpoint(tmp_path / name, model, Grid(tensor=2)) for name, model in (("few", few), ("many", many))]
    first, second = (_peak(path, tmp_path / f"{index}-out") for index, path in enumerate(paths))
    added = 6 * 3 * 8192 * 32 * 4
    assert second < first + added / 20


def test_what_a_killed_export_left_is_cleared_by_the_next(tmp_path):
    path = write_checkpoint(tmp_path / "ours", OURS["gpt2-erf"], Grid())
    (tmp_path / ".theirs.megads.tmp.lock").touch()
    (tmp_path / ".theirs.megads.tmp").mkdir()
    (tmp_path / ".theirs.megads.tmp" / "model-00009-of-00009.safetensors").write_bytes(b"half")
    exported(path, tmp_path / "theirs")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["ours", "theirs"]
    names = sorted(each.name for each in (tmp_path / "theirs").iterdir())
    assert names == ["config.json", "generation_config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [({"eos_token_id": 1}, [1, 5]), ({"eos_token_id": [1, 5]}, [1, 5]), ({"eos_token_id": 5}, 5), ({}, 5)],
)
def test_the_token_that_ends_an_answer_ends_a_text_too(given, wanted):
    assert _ending_with(5, given)["eos_token_id"] == wanted
    assert _ending_with(None, given) is given
