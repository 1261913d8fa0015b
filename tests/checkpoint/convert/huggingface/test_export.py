"""What is exported computes in transformers what it computes here, from any layout."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from megads.checkpoint.convert.huggingface.export import export
from megads.checkpoint.convert.huggingface.write_shards import parse_size
from megads.checkpoint.format.reader import Reader
from megads.comm.grid import Grid
from megads.errors import CheckpointError
from tests.checkpoint.convert.huggingface.models import (
    OURS,
    assert_same_logits,
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


def exported(path, folder, **wanted):
    with Reader(path) as reader:
        return export(reader, folder, **wanted)


@pytest.mark.parametrize("kind", OURS)
def test_logits_in_transformers_equal_ours(tmp_path, kind):
    model = OURS[kind]
    path = write_checkpoint(tmp_path / "ours", model, Grid(tensor=2, data=2))
    done = exported(path, tmp_path / "theirs", dtype="fp32")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", dtype=torch.float32)
    assert type(theirs).__name__ == done.architecture
    assert done.parameters == sum(each.numel() for each in theirs.parameters())
    assert_same_logits(our_module(path, model), theirs)


def test_the_class_follows_from_the_settings(tmp_path):
    for kind, wanted in {"llama-gqa": "Llama", "uneven-heads": "Mistral", "gpt2-erf": "GPT2"}.items():
        path = write_checkpoint(tmp_path / kind, OURS[kind], Grid())
        assert exported(path, tmp_path / f"{kind}-out").architecture.startswith(wanted)


@pytest.mark.parametrize("kind", ["llama-gqa", "gpt2-tanh"])
def test_every_layout_gives_the_same_files(tmp_path, kind):
    files = {}
    for name, grid in GRIDS.items():
        path = write_checkpoint(tmp_path / name, OURS[kind], grid, zero_stage=3 if grid.data > 1 else 0)
        exported(path, tmp_path / f"{name}-out", dtype="fp32")
        files[name] = (tmp_path / f"{name}-out" / "model.safetensors").read_bytes()
    assert len(set(files.values())) == 1


def test_padding_rows_are_left_out(tmp_path):
    model = OURS["llama-gqa"]
    assert weights_of(model)["weight", "embedding.weight"].shape[0] == 56
    exported(write_checkpoint(tmp_path / "ours", model, Grid()), tmp_path / "theirs", dtype="fp32")
    tensors = load_file(tmp_path / "theirs" / "model.safetensors")
    assert tensors["model.embed_tokens.weight"].shape == tensors["lm_head.weight"].shape == (53, 32)
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["vocab_size"] == 53


def test_tied_output_layers_are_not_written_twice(tmp_path):
    exported(write_checkpoint(tmp_path / "ours", OURS["llama-tied"], Grid()), tmp_path / "theirs", dtype="fp32")
    assert "lm_head.weight" not in load_file(tmp_path / "theirs" / "model.safetensors")


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


def test_tensors_of_many_bands_come_out_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("megads.checkpoint.convert.huggingface.export.BAND", 100)  # three rows of 32
    model = OURS["llama-gqa"]
    exported(write_checkpoint(tmp_path / "ours", model, Grid(tensor=2)), tmp_path / "theirs", dtype="fp32")
    tensors, weights = load_file(tmp_path / "theirs" / "model.safetensors"), weights_of(model)
    for theirs, ours in {"embed_tokens": "embedding", "layers.0.self_attn.o_proj": "layers.0.attention.out"}.items():
        assert np.array_equal(tensors[f"model.{theirs}.weight"], weights["weight", f"{ours}.weight"][:53])


def test_settings_are_read_by_transformers_4_and_5(tmp_path):
    """Version 4 reads rope_theta and rope_scaling, version 5 rope_parameters; special tokens default to 1 and 2."""
    exported(write_checkpoint(tmp_path / "ours", OURS["llama-3.1"], Grid()), tmp_path / "theirs")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["rope_theta"] == 10000.0
    expected = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert config["rope_scaling"] == {**expected, "original_max_position_embeddings": 16}
    assert config["rope_parameters"] == {**config["rope_scaling"], "rope_theta": 10000.0}
    assert config["max_position_embeddings"] == 24
    assert config["bos_token_id"] is config["eos_token_id"] is config["pad_token_id"] is None
    exported(write_checkpoint(tmp_path / "plain", OURS["llama-gqa"], Grid()), tmp_path / "plain-out")
    assert json.loads((tmp_path / "plain-out" / "config.json").read_text())["rope_scaling"] is None


def test_a_number_that_fp16_can_not_hold_is_refused_and_nothing_stays(tmp_path):
    model = OURS["llama-gqa"]
    weights = weights_of(model)
    weights["weight", "layers.1.mlp.down.weight"][3, 4] = 70000.0
    path = write_source(tmp_path / "ours", model, weights, Grid(), kinds=("weight",))
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.down\.weight: fp16 cannot hold 70000.*--dtype bf16"):
        exported(path, tmp_path / "theirs", dtype="fp16")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["ours"]


REFUSED = {
    "layernorm": ({"normalization": "layernorm"}, "normalization=layernorm, it has rmsnorm"),
    "gelu-and-rope": ({"activation": "gelu"}, "activation=gelu, it has swiglu"),
    "learned-without-biases": ({"position_embedding": "learned", "normalization": "layernorm"}, "bias=0, it has 1"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_what_no_class_computes_is_refused_naming_the_setting(tmp_path, change, message):
    model = OURS["llama-gqa"].model_copy(update=change)
    path = write_checkpoint(tmp_path / "ours", model, Grid())
    with pytest.raises(CheckpointError, match=message):
        exported(path, tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


GPT2_REFUSED = {
    "gqa": ({"num_kv_heads": 4}, "num_kv_heads=4"),
    "head-dim": ({"head_dim": 6}, "head_dim=6"),
    "rmsnorm": ({"normalization": "rmsnorm"}, "normalization=rmsnorm"),
    "swiglu": ({"activation": "swiglu"}, "activation=swiglu"),
}


@pytest.mark.parametrize(("change", "message"), GPT2_REFUSED.values(), ids=GPT2_REFUSED)
def test_what_gpt2_can_not_is_refused_naming_the_setting(tmp_path, change, message):
    path = write_checkpoint(tmp_path / "ours", OURS["gpt2-erf"].model_copy(update=change), Grid())
    with pytest.raises(CheckpointError, match=message):
        exported(path, tmp_path / "theirs")


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


@pytest.mark.parametrize(("text", "size"), [("5GB", 5 * 10**9), ("2GiB", 2**31), ("1.5 mb", 1_500_000), ("77", 77)])
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "5XB", "-3GB", "0", "1e9"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(CheckpointError, match=r"not a size; use e.g. 5GB"):
        parse_size(text)


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
