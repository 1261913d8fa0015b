"""What is imported computes here what it computes in transformers, and comes out again bit by bit."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from megads.checkpoint.convert.huggingface.export import export
from megads.checkpoint.convert.huggingface.import_ import import_folder
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.resume.compatibility import LORA, SHAPE_SETTINGS, model_of
from megads.errors import CheckpointError
from tests.checkpoint.convert.huggingface.models import (
    DTYPES,
    THEIRS,
    assert_same_logits,
    our_module,
    saved,
    their_module,
)
from tests.checkpoint.made import find_latest


def tensors_in(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


@pytest.mark.parametrize("kind", THEIRS)
def test_logits_equal_transformers(tmp_path, kind):
    made = import_folder(saved(tmp_path, kind), tmp_path / "ours", vocab_multiple=16)
    found = find_latest(tmp_path / "ours")
    assert found is not None
    assert found.path == made.path
    model = model_of(found.path, found.manifest)
    assert model.model_dump(include=set(SHAPE_SETTINGS) - set(LORA)) == found.manifest.model
    assert_same_logits(our_module(found.path, model), their_module(kind))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", THEIRS)
def test_importing_and_exporting_gives_the_original_bit_by_bit(tmp_path, kind, dtype):
    source = saved(tmp_path, kind, dtype, max_shard_size="8KB")
    assert len(list(source.glob("*.safetensors"))) > 1
    made = import_folder(source, tmp_path / "ours")
    with Reader(made.path) as reader:
        done = export(reader, tmp_path / "again")
    assert done.dtype == dtype
    before, after = tensors_in(source), tensors_in(tmp_path / "again")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype == DTYPES[dtype]
        assert torch.equal(tensor.view(torch.uint8), after[name].view(torch.uint8)), name
    first, second = (AutoModelForCausalLM.from_pretrained(each) for each in (source, tmp_path / "again"))
    assert type(first) is type(second)
    ours, theirs = second.config.to_dict(), first.config.to_dict()
    assert {key: ours[key] for key in theirs if key not in FREE} == {k: v for k, v in theirs.items() if k not in FREE}


FREE = {"_name_or_path", "transformers_version", "n_inner", *(f"summary_{each}" for each in ("type", "use_proj"))}
"""Settings that decide nothing, or have a second spelling (n_inner: 4 n_embd)."""


def test_rows_of_padding_are_zeros(tmp_path):
    made = import_folder(saved(tmp_path, "llama3"), tmp_path / "ours", vocab_multiple=64)
    with Reader(made.path) as reader:
        embedding = reader.whole("embedding.weight")
    assert embedding.shape == (64, 32)
    assert not embedding[53:].any()
    assert embedding[:53].all(axis=1).any()


@pytest.mark.parametrize("kind", ["llama3", "gpt2"])
@pytest.mark.parametrize("sharded", [False, True])
def test_pickles_of_weights_are_read(tmp_path, kind, sharded):
    source = saved(tmp_path, kind)
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    if sharded:
        names = sorted(tensors)
        shards = {"pytorch_model-1.bin": names[:5], "pytorch_model-2.bin": names[5:]}
        for file, each in shards.items():
            torch.save({name: tensors[name] for name in each}, source / file)
        where = {name: file for file, each in shards.items() for name in each}
        (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))
    else:
        torch.save(tensors, source / "pytorch_model.bin")
    made = import_folder(source, tmp_path / "ours")
    with Reader(made.path) as reader:
        export(reader, tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())


def test_gpt2_folders_of_the_first_kind(tmp_path):
    """The original one has no prefix, and the tables of the causal mask."""
    source = saved(tmp_path, "gpt2")
    tensors = {
        name.removeprefix("transformer."): each for name, each in load_file(source / "model.safetensors").items()
    }
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 24, 24).tril()
    tensors["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, source / "model.safetensors")
    made = import_folder(source, tmp_path / "ours")
    assert_same_logits(our_module(made.path, made.description.model), their_module("gpt2"))


def test_a_tied_output_layer_may_be_there_if_it_is_the_embedding(tmp_path):
    source = saved(tmp_path, "llama3.2")
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, source / "model.safetensors")
    import_folder(source, tmp_path / "ours")
    tensors["lm_head.weight"][3, 3] += 1
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"says tie_word_embeddings, but lm_head\.weight is not"):
        import_folder(source, tmp_path / "other")


def test_what_is_kept_of_the_source(tmp_path):
    source = saved(tmp_path, "mistral-window", "bf16")
    (source / "generation_config.json").write_text('{"temperature": 0.7, "eos_token_id": [2, 5]}')
    (source / "tokenizer.json").write_text("{}")
    made = import_folder(source, tmp_path / "ours")
    found = find_latest(tmp_path / "ours")
    about = found.manifest.about
    assert about["source"] == str(source)
    assert about["torch_dtype"] == "bfloat16"
    assert about["max_seq_length"] == 32
    assert about["tokenizer_type"] == "HFTokenizer"
    assert about["tokenizer_model"] == str(tmp_path / "ours" / "tokenizer")
    assert (tmp_path / "ours" / "tokenizer" / "tokenizer.json").read_text() == "{}"
    assert sorted(each.name for each in (tmp_path / "ours").iterdir()) == ["iter_0000000", "tokenizer"]
    assert not found.manifest.has_optimizer
    with Reader(made.path) as reader:
        export(reader, tmp_path / "again")
    assert json.loads((tmp_path / "again" / "generation_config.json").read_text())["temperature"] == 0.7
    assert json.loads((tmp_path / "again" / "config.json").read_text())["sliding_window"] == 32


def test_weights_of_two_types_become_the_wider_one(tmp_path):
    source = saved(tmp_path, "llama3", "bf16")
    tensors = load_file(source / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].float() + 1e-5
    save_file(tensors, source / "model.safetensors")
    made = import_folder(source, tmp_path / "ours")
    assert made.dtype == "float32"
    with Reader(made.path) as reader:
        assert np.array_equal(reader.whole("final_norm.weight"), tensors["model.norm.weight"].numpy())
