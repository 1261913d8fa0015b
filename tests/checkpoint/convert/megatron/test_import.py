"""Megatron's files become a checkpoint that says the same."""

from __future__ import annotations

import argparse
import io

import numpy as np
import pytest
import torch

from megads.checkpoint.convert.megatron.import_ import import_megatron
from megads.checkpoint.format.manifest import read_manifest
from megads.errors import CheckpointError
from tests.checkpoint.convert.megatron import megatron
from tests.checkpoint.convert.megatron.megatron import ROWS, arguments, model_tensors, save
from tests.checkpoint.convert.megatron.samples import check_logits, weights

VOCAB = 21


@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize("version", [0, 1.0, 2.0, 3.0])
def test_every_order_of_queries_keys_and_values(tmp_path, version, degree):
    chunks = model_tensors(2, degree)
    save(tmp_path / "src", chunks, checkpoint_version=version or None)
    done = import_megatron(tmp_path / "src", tmp_path / "dst")
    assert (done.model.vocab_size, done.model.tied_embeddings, done.model.activation) == (VOCAB, True, "gelu_tanh")
    assert done.notes == ()
    check_logits(done, chunks, version)


@pytest.mark.parametrize(("degree", "pipe"), [(1, 1), (2, 1), (2, 2)])
def test_llama_with_shared_keys(tmp_path, degree, pipe):
    chunks = model_tensors(2, degree, groups=2, llama=True)
    path = save(tmp_path / "src", chunks, pipe=pipe, checkpoint_version=3.0)
    done = import_megatron(path, tmp_path / "dst")
    assert (done.model.num_kv_heads, done.model.normalization, done.model.activation) == (2, "rmsnorm", "swiglu")
    assert not done.model.tied_embeddings
    check_logits(done, chunks, groups=2)


def test_a_release_of_2019(tmp_path):
    """Not a zip, old names, no version; what it lacks is stated."""
    chunks = model_tensors(2, 1)
    old = argparse.Namespace(num_layers=2, hidden_size=16, num_attention_heads=4, max_position_embeddings=12)
    save(tmp_path / "src", chunks, name="release", old=True, args=old, iteration=None)
    done = import_megatron(
        tmp_path / "src", tmp_path / "dst", dict(vocab_size=VOCAB, vocab_multiple=8, **megatron.UNSAID)
    )
    assert done.model.vocab_size == VOCAB
    check_logits(done, chunks, 0)


def test_an_old_order_with_shared_keys_can_not_be(tmp_path):
    chunks = model_tensors(2, 2, groups=2, llama=True)
    save(tmp_path / "src", chunks)
    with pytest.raises(CheckpointError, match="checkpoint_version 0, which had no shared key/value heads"):
        import_megatron(tmp_path / "src", tmp_path / "dst")
    assert not (tmp_path / "dst").exists()
    check_logits(import_megatron(tmp_path / "src", tmp_path / "dst", version=3.0), chunks, groups=2)


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
    check_logits(done, [[{name: each.float() for name, each in rank.items()} for rank in ranks] for ranks in chunks])


def test_padding_is_made_anew(tmp_path):
    chunks = model_tensors(2, 2)
    save(tmp_path / "src", chunks, checkpoint_version=3.0)
    done = import_megatron(tmp_path / "src", tmp_path / "dst", dict(vocab_size=17, vocab_multiple=16))
    found = weights(done.path)["embedding.weight"]
    theirs = torch.cat([rank["words"] for rank in chunks[0]]).numpy()
    assert found.shape == (32, 16)
    np.testing.assert_array_equal(found[:ROWS], theirs)
    assert not found[ROWS:].any()


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
    check_logits(import_megatron(tmp_path / "src", tmp_path / "dst"), chunks)
