"""Megatron's files become a checkpoint that says the same."""

from __future__ import annotations

import argparse
import enum
import io
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megads.checkpoint.convert.megatron.architecture import Stated
from megads.checkpoint.convert.megatron.import_ import Imported, import_megatron
from megads.checkpoint.format.manifest import read_manifest
from megads.errors import CheckpointError
from tests.checkpoint.convert.megatron import megatron
from tests.checkpoint.convert.megatron.megatron import ROWS, arguments, model_tensors, save, stage_model
from tests.checkpoint.convert.megatron.samples import our_logits, tokens_of, weights

VOCAB = 21
UNSAID = {"head_dim": megatron.WIDTH, "norm_epsilon": megatron.EPSILON}
"""What must be stated of files that do not say it."""


def _check(done: Imported, chunks: list[Any], version: float = 3.0, groups: int = megatron.HEADS) -> None:
    expected = megatron.logits(chunks, tokens_of(done.model), version, groups=groups)
    ours = our_logits(done.path, done.model)
    torch.testing.assert_close(ours, expected[..., : done.model.vocab_size], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize("version", [0, 1.0, 2.0, 3.0])
def test_every_order_of_queries_keys_and_values(tmp_path, version, degree):
    chunks = model_tensors(2, degree)
    save(tmp_path / "src", chunks, checkpoint_version=version or None)
    done = import_megatron(tmp_path / "src", tmp_path / "dst")
    assert (done.model.vocab_size, done.model.tied_embeddings, done.model.activation) == (VOCAB, True, "gelu_tanh")
    assert done.notes == ()
    _check(done, chunks, version)


@pytest.mark.parametrize(("degree", "pipe"), [(1, 1), (2, 1), (2, 2)])
def test_llama_with_shared_keys(tmp_path, degree, pipe):
    chunks = model_tensors(2, degree, groups=2, llama=True)
    path = save(tmp_path / "src", chunks, pipe=pipe, checkpoint_version=3.0)
    done = import_megatron(path, tmp_path / "dst")
    assert (done.model.num_kv_heads, done.model.normalization, done.model.activation) == (2, "rmsnorm", "swiglu")
    assert not done.model.tied_embeddings
    _check(done, chunks, groups=2)


def test_a_release_of_2019(tmp_path):
    """Not a zip, old names, no version; what it lacks is stated."""
    chunks = model_tensors(2, 1)
    old = argparse.Namespace(num_layers=2, hidden_size=16, num_attention_heads=4, max_position_embeddings=12)
    save(tmp_path / "src", chunks, name="release", old=True, args=old, iteration=None)
    done = import_megatron(tmp_path / "src", tmp_path / "dst", Stated(vocab_size=VOCAB, vocab_multiple=8, **UNSAID))
    assert done.model.vocab_size == VOCAB
    _check(done, chunks, 0)


def test_an_old_order_with_shared_keys_can_not_be(tmp_path):
    chunks = model_tensors(2, 2, groups=2, llama=True)
    save(tmp_path / "src", chunks)
    with pytest.raises(CheckpointError, match="checkpoint_version 0, which had no shared key/value heads"):
        import_megatron(tmp_path / "src", tmp_path / "dst")
    assert not (tmp_path / "dst").exists()
    _check(import_megatron(tmp_path / "src", tmp_path / "dst", version=3.0), chunks, groups=2)


def test_without_any_arguments(tmp_path):
    chunks = model_tensors(2, 2)
    save(tmp_path / "src", chunks, args=None, checkpoint_version=3.0)
    with pytest.raises(CheckpointError, match="--num-heads"):
        import_megatron(tmp_path / "src", tmp_path / "dst")
    assert not (tmp_path / "dst").exists()
    done = import_megatron(tmp_path / "src", tmp_path / "dst", Stated(num_heads=4, **UNSAID))
    assert done.model.vocab_size == ROWS
    assert any("--vocab-size" in note for note in done.notes)
    assert any("holds no arguments" in note for note in done.notes)
    _check(done, chunks)


def test_what_is_kept_of_the_source(tmp_path):
    chunks = model_tensors(2, 1)
    path = save(tmp_path / "src", chunks, checkpoint_version=3.0)
    about = read_manifest(import_megatron(tmp_path / "src", tmp_path / "dst").path).about
    assert about["source"] == str(path)
    assert (about["source_iteration"], about["consumed_train_samples"]) == (40, 640)
    assert about["torch_dtype"] == "float32"
    assert "tokenizer_type" not in about


def test_a_tokenizer_is_kept_where_ours_reads_it(tmp_path):
    here = tmp_path / "tokenizer.model"
    here.touch()
    for number, (said, kept) in enumerate(
        (
            ({"tokenizer_type": "NullTokenizer", "vocab_size": 20}, {"tokenizer_type": "NullTokenizer"}),
            ({"tokenizer_type": "Llama2Tokenizer", "tokenizer_model": str(here)}, {"tokenizer_model": str(here)}),
            ({"tokenizer_type": "Llama2Tokenizer", "tokenizer_model": "/gone/tokenizer.model"}, {}),
            ({"tokenizer_type": "TikTokenizer", "tokenizer_model": str(here)}, {}),
        )
    ):
        save(tmp_path / f"src{number}", model_tensors(2, 1), args=arguments(**said), checkpoint_version=3.0)
        done = import_megatron(tmp_path / f"src{number}", tmp_path / f"dst{number}")
        assert done.model.vocab_size == VOCAB
        about = read_manifest(done.path).about
        assert {key: about[key] for key in ("tokenizer_model",) if key in about} == {
            key: each for key, each in kept.items() if key == "tokenizer_model"
        }
        assert about.get("tokenizer_type") == (said["tokenizer_type"] if kept else None)


def test_the_tracker_decides_which(tmp_path):
    for iteration, seed in ((40, 1), (50, 2)):
        save(tmp_path / "src", model_tensors(2, 1, seed=seed), name=f"iter_{iteration:07d}", checkpoint_version=3.0)
    (tmp_path / "src" / "latest_checkpointed_iteration.txt").write_text("40\n")
    _check(import_megatron(tmp_path / "src", tmp_path / "dst"), model_tensors(2, 1, seed=1))
    (tmp_path / "src" / "latest_checkpointed_iteration.txt").unlink()
    with pytest.raises(CheckpointError, match="iter_0000040, iter_0000050"):
        import_megatron(tmp_path / "src", tmp_path / "other")
    _check(import_megatron(tmp_path / "src" / "iter_0000050", tmp_path / "other"), model_tensors(2, 1, seed=2))


@pytest.mark.parametrize("degree", [1, 2])
def test_virtual_pipeline_stages(tmp_path, degree):
    """Stage 0 holds layers 0 and 2, stage 1 layers 1 and 3."""
    chunks = model_tensors(4, degree)
    args = arguments(num_layers=4, tensor_model_parallel_size=degree, pipeline_model_parallel_size=2)
    for stage in range(2):
        for rank in range(degree):
            path = tmp_path / "src" / "iter_0000040" / f"mp_rank_{rank:02d}_{stage:03d}"
            path.mkdir(parents=True)
            models = {
                f"model{chunk}": stage_model(chunks, range(layer, layer + 1), rank)
                for chunk, layer in enumerate((stage, stage + 2))
            }
            content = {"args": args, "iteration": 40, "checkpoint_version": 3.0, **models}
            torch.save(content, path / "model_optim_rng.pt")
    _check(import_megatron(tmp_path / "src", tmp_path / "dst"), chunks)


def test_drifted_copies_become_their_mean(tmp_path):
    chunks = model_tensors(2, 2)
    norm = chunks[1][0]["input_layernorm.weight"]
    chunks[1][1]["input_layernorm.weight"] = norm + 0.5
    save(tmp_path / "src", chunks, checkpoint_version=3.0)
    done = import_megatron(tmp_path / "src", tmp_path / "dst")
    assert len(done.notes) == 1
    assert "1 tensors" in done.notes[0]
    assert "by up to 0.5" in done.notes[0]
    np.testing.assert_allclose(weights(done.path)["layers.0.input_norm.weight"], (norm + 0.25).numpy(), rtol=1e-6)


def test_a_tied_copy_that_is_another_is_told(tmp_path):
    chunks = model_tensors(2, 1)
    path = save(tmp_path / "src", chunks, pipe=2, checkpoint_version=3.0)
    file = path / "mp_rank_00_001" / "model_optim_rng.pt"
    content = torch.load(file, weights_only=False)
    content["model"]["word_embeddings_for_head"]["weight"] += 1
    torch.save(content, file)
    done = import_megatron(tmp_path / "src", tmp_path / "dst")
    assert len(done.notes) == 1
    assert "word_embeddings_for_head" in done.notes[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_loses_nothing(tmp_path, dtype):
    chunks = [
        [{name: each.to(dtype) for name, each in rank.items()} for rank in ranks] for ranks in model_tensors(2, 2)
    ]
    save(tmp_path / "src", chunks, checkpoint_version=3.0)
    done = import_megatron(tmp_path / "src", tmp_path / "dst")
    assert read_manifest(done.path).about["torch_dtype"] == str(dtype).removeprefix("torch.")
    _check(done, [[{name: each.float() for name, each in rank.items()} for rank in ranks] for ranks in chunks])


def test_padding_is_made_anew(tmp_path):
    chunks = model_tensors(2, 2)
    save(tmp_path / "src", chunks, checkpoint_version=3.0)
    done = import_megatron(tmp_path / "src", tmp_path / "dst", Stated(vocab_size=17, vocab_multiple=16))
    found = weights(done.path)["embedding.weight"]
    theirs = torch.cat([rank["words"] for rank in chunks[0]]).numpy()
    assert found.shape == (32, 16)
    np.testing.assert_array_equal(found[:ROWS], theirs)
    assert not found[ROWS:].any()


def _save_layers(folder: Path, chunks: list[Any], *, head: bool) -> Path:
    """Write the files of DeepSpeed's pipeline engine, numbered as BigScience's."""
    path = folder / "global_step40"
    path.mkdir(parents=True)
    degree, total = len(chunks[0]), len(chunks) - 2
    for rank in range(degree):
        embedding = {"word_embeddings.weight": chunks[0][rank]["words"]}
        if "positions" in chunks[0][rank]:
            embedding["position_embeddings.weight"] = chunks[0][rank]["positions"]
        last = dict(chunks[-1][rank])
        files = {1: embedding, **{3 + layer: chunks[1 + layer][rank] for layer in range(total)}}
        if head:
            files[total + 5] = {"lm_head.weight": last.pop("output")}
        files[total + 4] = last
        for number, tensors in files.items():
            torch.save(tensors, path / f"layer_{number:02d}-model_{rank:02d}-model_states.pt")
        args = arguments(num_layers=total, tensor_model_parallel_size=degree, num_key_value_heads=2 if head else 4)
        content = {"module": None, "args": args, "checkpoint_version": 3.0, "iteration": 40, "global_steps": 41}
        torch.save(content, path / f"mp_rank_{rank:02d}_model_states.pt")
    (folder / "latest").write_text("global_step40")
    return path


@pytest.mark.parametrize("llama", [False, True])
@pytest.mark.parametrize("degree", [1, 2])
def test_layers_of_deepspeeds_pipeline(tmp_path, degree, llama):
    groups = 2 if llama else 4
    chunks = model_tensors(3, degree, groups=groups, llama=llama)
    _save_layers(tmp_path / "src", chunks, head=llama)
    done = import_megatron(tmp_path / "src", tmp_path / "dst")
    assert read_manifest(done.path).about["source_iteration"] == 40
    _check(done, chunks, groups=groups)


def test_a_layer_of_the_pipeline_is_missing(tmp_path):
    path = _save_layers(tmp_path / "src", model_tensors(3, 2), head=False)
    (path / "layer_04-model_01-model_states.pt").unlink()
    with pytest.raises(CheckpointError, match=r"layer_04-model_01-model_states\.pt is missing, of TP=2"):
        import_megatron(tmp_path / "src", tmp_path / "dst")
    (path / "layer_04-model_00-model_states.pt").unlink()
    with pytest.raises(CheckpointError, match="layer 4 are missing"):
        import_megatron(tmp_path / "src", tmp_path / "dst")


@pytest.mark.parametrize("flat", [False, True])
def test_deepspeed_without_its_pipeline(tmp_path, flat):
    chunks = model_tensors(2, 2)
    path = tmp_path / "src" / "global_step7"
    path.mkdir(parents=True)
    for rank in range(2):
        module = stage_model(chunks, range(2), rank)
        if flat:
            model = module["language_model"]
            module = {f"language_model.encoder.{name}": each for name, each in model["encoder"].items()}
            for name, each in model["embedding"].items():
                module[f"language_model.embedding.{name}.weight"] = each["weight"]
        args = arguments(tensor_model_parallel_size=2)
        content = {"module": module, "args": args, "global_steps": 7, "mp_world_size": 2, "checkpoint_version": 3.0}
        torch.save(content, path / f"mp_rank_{rank:02d}_model_states.pt")
    (tmp_path / "src" / "latest").write_text("global_step7")
    _check(import_megatron(tmp_path / "src", tmp_path / "dst"), chunks)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_experts": 8}, "num_experts"),
        ({"position_embedding_type": "alibi"}, "alibi positions"),
        ({"rotary_percent": 0.25}, "rotary_percent"),
        ({"apply_layernorm_1p": True}, "apply_layernorm_1p"),
        ({"num_layers": 24}, "num_layers=24"),
        ({"position_embedding_type": "mrope"}, "has mrope positions; megads has rotary and learned ones"),
        ({"no_rope_freq": 4}, "no_rope_freq, layers without rotary positions"),
        ({"window_size": (128, 0)}, "window_size, sliding-window attention"),
        ({"layernorm_epsilon": 0.0}, "its norm_epsilon is 0.0: input should be greater than 0"),
        ({"vocab_size": 5000}, "--vocab-size"),
        ({"num_attention_heads": 5, "kv_channels": None}, "--num-heads"),
    ],
)
def test_models_that_megads_has_not(tmp_path, changed, said):
    save(tmp_path / "src", model_tensors(2, 1), args=arguments(**changed), checkpoint_version=3.0)
    with pytest.raises(CheckpointError, match=said):
        import_megatron(tmp_path / "src", tmp_path / "dst")
    assert not (tmp_path / "dst").exists()


TRANSFORMER_ENGINE = {
    "input_layernorm.": "self_attention.layernorm_qkv.layer_norm_",
    "self_attention.query_key_value.": "self_attention.layernorm_qkv.",
    "self_attention.dense.": "self_attention.proj.",
    "post_attention_layernorm.": "layernorm_mlp.layer_norm_",
    "mlp.dense_h_to_4h.": "layernorm_mlp.fc1_",
    "mlp.dense_4h_to_h.": "layernorm_mlp.fc2_",
}


def test_legacy_models_with_transformer_engine(tmp_path):
    """Other names, and the state of fp8 besides the tensors."""
    chunks = model_tensors(2, 2)
    path = save(tmp_path / "src", chunks, checkpoint_version=3.0)
    for file in path.glob("*/model_optim_rng.pt"):
        content = torch.load(file, weights_only=False)
        encoder = content["model"]["language_model"]["encoder"]
        renamed = {
            "layers.0.self_attention._extra_state": io.BytesIO(b"fp8"),
            "layers.1.layernorm_mlp._extra_state": None,
        }
        for name, each in encoder.items():
            for old, new in TRANSFORMER_ENGINE.items():
                name = name.replace(old, new)
            renamed[name] = each
        content["model"]["language_model"]["encoder"] = renamed
        torch.save(content, file)
    _check(import_megatron(tmp_path / "src", tmp_path / "dst"), chunks)


def test_an_enum_of_a_program_that_is_not_there(tmp_path, monkeypatch):
    """BigScience keeps the kind of positions as one of its enums."""
    module = types.ModuleType("megatron.enums")
    module.PositionEmbeddingType = enum.Enum(
        "PositionEmbeddingType", {"rotary": 1, "absolute": 2, "alibi": 3}, module="megatron.enums"
    )
    monkeypatch.setitem(sys.modules, "megatron.enums", module)
    chunks = model_tensors(2, 1)
    for kind in ("absolute", "alibi"):
        args = arguments(position_embedding_type=module.PositionEmbeddingType[kind])
        save(tmp_path / kind, chunks, args=args, checkpoint_version=3.0)
    monkeypatch.delitem(sys.modules, "megatron.enums")
    _check(import_megatron(tmp_path / "absolute", tmp_path / "dst"), chunks)
    with pytest.raises(CheckpointError, match="alibi positions"):
        import_megatron(tmp_path / "alibi", tmp_path / "other")
