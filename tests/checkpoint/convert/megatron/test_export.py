"""Exports of every layout come back bitwise, and hold what Megatron looks for."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
import torch

from megads.checkpoint.convert.megatron.export import export_megatron
from megads.checkpoint.convert.megatron.import_ import import_megatron
from megads.checkpoint.convert.megatron.target import Target
from megads.checkpoint.format.manifest import read_manifest
from megads.checkpoint.format.reader import Reader
from megads.comm.grid import Grid
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError
from tests.checkpoint.convert.megatron.samples import (
    GPT2,
    KINDS,
    LLAMA,
    exported,
    model_settings,
    save_ours,
    weights,
)
from tests.checkpoint.sources import make_arrays, write_source

PAIRS = list(itertools.product([1, 2, 4], [1, 2, 4]))


@pytest.mark.parametrize(("tensor", "pipe"), PAIRS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_comes_back_bitwise(tmp_path, kind, tensor, pipe):
    ours = save_ours(tmp_path / "ours", KINDS[kind])
    exported(ours, tmp_path / "theirs", tensor=tensor, pipe=pipe)
    files = sorted(path.parent.name for path in (tmp_path / "theirs" / "release").glob("*/model_optim_rng.pt"))
    assert len(files) == tensor * pipe
    done = import_megatron(tmp_path / "theirs", tmp_path / "back")
    before, after = weights(ours), weights(done.path)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert done.notes == ()
    assert model_settings(done.path) == model_settings(ours)


@pytest.mark.parametrize("style", ["legacy", "core", "core-te"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_names_comes_back_bitwise(tmp_path, kind, style):
    model = KINDS[kind]
    ours = save_ours(tmp_path / "ours", model)
    exported(ours, tmp_path / "theirs", tensor=2, pipe=2, style=style, iteration=30)
    assert (tmp_path / "theirs" / "latest_checkpointed_iteration.txt").read_text() == "30"
    done = import_megatron(tmp_path / "theirs", tmp_path / "back")
    before, after = weights(ours), weights(done.path)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert read_manifest(done.path).about["source_iteration"] == 30


@pytest.mark.parametrize(
    ("kind", "changed", "style"),
    [
        ("gpt", {"bias": False}, "legacy"),
        ("gpt", {"activation": "gelu"}, "legacy"),
        ("gpt", {"norm_epsilon": 1e-6, "tied_embeddings": False}, "core"),
        ("llama", {"tied_embeddings": True, "rope_theta": 10000.0, "vocab_multiple": 1}, "legacy"),
        ("llama", {"rope_scaling": "linear", "rope_scaling_factor": 4.0}, "legacy"),
        ("llama", {"rope_scaling": "llama3", "rope_scaling_factor": 32.0}, "core-te"),
        ("llama", {"num_kv_heads": 2, "head_dim": 10, "bias": True}, "core"),
        ("llama", {"qk_norm": "head", "head_dim": 10}, "core"),
        ("llama", {"qk_norm": "head"}, "core-te"),
    ],
)
def test_every_setting_comes_back(tmp_path, kind, changed, style):
    ours = save_ours(tmp_path / "ours", KINDS[kind].model_copy(update=changed))
    exported(ours, tmp_path / "theirs", tensor=2, style=style)
    done = import_megatron(tmp_path / "theirs", tmp_path / "back")
    assert model_settings(done.path) == model_settings(ours)
    before, after = weights(ours), weights(done.path)
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(("kind", "said"), [("NullTokenizer", 52), ("HFTokenizer", 53)])
def test_the_end_of_documents_that_a_null_tokenizer_does_not_count(tmp_path, kind, said):
    settings = {"model": LLAMA.model_dump(), "data": {"tokenizer_type": kind}}
    ours = write_source(tmp_path / "ours", LLAMA, make_arrays(LLAMA), Grid(), settings=settings)
    path = exported(ours, tmp_path / "theirs")
    content = torch.load(path / "mp_rank_00" / "model_optim_rng.pt", weights_only=False)
    assert (content["args"].vocab_size, content["args"].tokenizer_type) == (said, kind)
    assert import_megatron(tmp_path / "theirs", tmp_path / "back").model.vocab_size == LLAMA.vocab_size == 53


def test_what_megatron_finds(tmp_path):
    """Names, shapes and arguments of one rank of a Llama with shared keys."""
    ours = save_ours(tmp_path / "ours", LLAMA)
    path = exported(ours, tmp_path / "theirs", tensor=2, pipe=2, dtype="bf16")
    assert (tmp_path / "theirs" / "latest_checkpointed_iteration.txt").read_text() == "release"
    last = torch.load(path / "mp_rank_01_001" / "model_optim_rng.pt", weights_only=False)
    args = last["args"]
    assert (args.padded_vocab_size, args.make_vocab_size_divisible_by, args.vocab_size) == (64, 8, 53)
    assert (args.tensor_model_parallel_size, args.pipeline_model_parallel_size) == (2, 2)
    assert (args.num_query_groups, args.group_query_attention, args.kv_channels) == (4, True, 4)
    assert (args.swiglu, args.add_bias_linear, args.untie_embeddings_and_output_weights) == (True, False, True)
    assert (args.position_embedding_type, args.rotary_base, args.normalization) == ("rope", 50000, "RMSNorm")
    assert args.params_dtype == torch.bfloat16
    assert last["checkpoint_version"] == 3.0
    model = last["model"]["language_model"]
    assert model.keys() == {"encoder", "output_layer"}
    assert model["output_layer"]["weight"].shape == (32, 32)
    encoder = model["encoder"]
    assert encoder["layers.0.self_attention.query_key_value.weight"].shape == (32, 32)
    assert encoder["layers.1.mlp.dense_4h_to_h.weight"].shape == (32, 24)
    assert encoder["final_layernorm.weight"].dtype == torch.bfloat16
    # Layer 2 of the model, gate and up of its second rank: each half is cut apart.
    whole = torch.from_numpy(weights(ours)["layers.2.mlp.gate_up.weight"]).bfloat16()
    own = torch.cat([whole[24:48], whole[72:96]])
    assert torch.equal(encoder["layers.0.mlp.dense_h_to_4h.weight"], own)


def test_the_last_stage_keeps_a_copy_of_a_tied_embedding(tmp_path):
    ours = save_ours(tmp_path / "ours", GPT2)
    path = exported(ours, tmp_path / "theirs", pipe=2)
    models = [
        torch.load(path / f"mp_rank_00_{stage:03d}" / "model_optim_rng.pt", weights_only=False)["model"]
        for stage in range(2)
    ]
    words = models[0]["language_model"]["embedding"]["word_embeddings"]["weight"]
    assert torch.equal(models[1]["word_embeddings_for_head"]["weight"], words)


REFUSED: list[tuple[ModelConfig, dict, str]] = [
    (LLAMA, {"tensor": 3}, "--tp 3 does not divide the 4 key/value heads; use one of 1, 2, 4"),
    (LLAMA, {"pipe": 3}, "--pp 3 does not divide the 4 layers"),
    (GPT2.model_copy(update={"bias": False}), {"style": "core"}, "tanh GELU without biases"),
    (LLAMA.model_copy(update={"rope_scaling": "llama3", "rope_scaling_factor": 8.0}), {}, "--names core"),
    (LLAMA.model_copy(update={"rope_scaling": "linear", "rope_scaling_factor": 2.5}), {}, "integers, not by 2.5"),
    (LLAMA.model_copy(update={"qk_norm": "head"}), {}, "no qk_norm=head; use --names core or core-te"),
    (LLAMA.model_copy(update={"qk_norm": "all"}), {}, "no qk_norm=all, only qk_norm=none or qk_norm=head"),
    (LLAMA.model_copy(update={"norm_position": "after"}), {}, "no norm_position=after"),
]


@pytest.mark.parametrize(("model", "target", "said"), REFUSED)
def test_what_megatron_can_not_have(tmp_path, model, target, said):
    ours = save_ours(tmp_path / "ours", model)
    with pytest.raises(CheckpointError, match=said):
        exported(ours, tmp_path / "theirs", **target)
    assert sorted(os.listdir(tmp_path)) == ["ours"]


def test_numbers_too_large_for_fp16(tmp_path):
    """Found half-way; nothing is left of the export."""
    ours = save_ours(tmp_path / "ours", LLAMA)
    with Reader(ours) as reader:
        whole = reader.whole
        reader.whole = lambda name, kind="weight": whole(name) * (1e6 if name == "layers.2.mlp.down.weight" else 1)
        with pytest.raises(CheckpointError, match=r"layers\.2\.mlp\.down\.weight has elements above 65504"):
            export_megatron(reader, tmp_path / "theirs", Target(dtype="fp16"))
    assert sorted(os.listdir(tmp_path)) == ["ours"]


def test_nothing_is_overwritten(tmp_path):
    ours = save_ours(tmp_path / "ours", LLAMA)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.tex").write_text("x")
    with pytest.raises(CheckpointError, match="already exists"):
        exported(ours, tmp_path / "theirs")
    assert os.listdir(tmp_path / "theirs") == ["thesis.tex"]


def test_a_damaged_checkpoint_is_not_exported(tmp_path):
    ours = save_ours(tmp_path / "ours", LLAMA)
    file = next(ours.glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="safetensors"):
        exported(ours, tmp_path / "theirs")
    assert sorted(os.listdir(tmp_path)) == ["ours"]
