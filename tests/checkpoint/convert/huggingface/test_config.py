"""``config.json`` and our settings, both ways."""

from __future__ import annotations

import json

import pytest
from transformers import AutoConfig

from megads.checkpoint.convert.huggingface.config import architecture_of, describe
from megads.checkpoint.convert.huggingface.import_ import import_folder
from megads.comm.grid import Grid
from megads.errors import CheckpointError
from tests.checkpoint.convert.huggingface.models import (
    OURS,
    assert_same_logits,
    exported,
    our_module,
    saved,
    their_module,
    write_checkpoint,
)
from tests.models.shapes import RETRO


def test_the_class_follows_from_the_settings(tmp_path):
    for kind, wanted in {"llama-gqa": "Llama", "uneven-heads": "Mistral", "gpt2-erf": "GPT2"}.items():
        path = write_checkpoint(tmp_path / kind, OURS[kind], Grid())
        assert exported(path, tmp_path / f"{kind}-out").architecture.startswith(wanted)


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


def test_settings_of_transformers_4_are_read(tmp_path):
    source = saved(tmp_path, "llama3.2")
    config = json.loads((source / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope, "torch_dtype": config.pop("dtype", None)}
    (source / "config.json").write_text(json.dumps(config))
    made = import_folder(source, tmp_path / "ours")
    model = made.description.model
    assert (model.rope_theta, model.rope_scaling, model.rope_scaling_factor) == (500000.0, "llama3", 8.0)
    assert (model.rope_low_freq_factor, model.rope_high_freq_factor, model.rope_original_positions) == (1, 4, 16)
    assert_same_logits(our_module(made.path, model), their_module("llama3.2"))


def test_the_older_name_of_linear_scaling_is_read(tmp_path):
    source = saved(tmp_path, "llama-linear")
    config = json.loads((source / "config.json").read_text())
    del config["rope_parameters"]
    (source / "config.json").write_text(json.dumps({**config, "rope_scaling": {"type": "linear", "factor": 2.0}}))
    model = import_folder(source, tmp_path / "ours").description.model
    assert (model.rope_theta, model.rope_scaling, model.rope_scaling_factor) == (10000.0, "linear", 2.0)


@pytest.mark.parametrize(
    ("change", "window"),
    [({}, 4096), ({"sliding_window": None}, None), ({"sliding_window": 32}, 32)],
    ids=["left out", "null", "32"],
)
def test_mistrals_window_is_what_transformers_takes_it_for(tmp_path, change, window):
    source = saved(tmp_path, "mistral")
    path = source / "config.json"
    config = json.loads(path.read_text())
    del config["sliding_window"]
    path.write_text(json.dumps({**config, **change}))
    assert AutoConfig.from_pretrained(source).sliding_window == window
    description = import_folder(source, tmp_path / "ours").description
    assert (description.longest, description.more["sliding_window"]) == (window or 0, window)


@pytest.mark.parametrize(("change", "heads"), [({}, 8), ({"num_key_value_heads": None}, 16)], ids=["left out", "null"])
def test_mistrals_key_value_heads_are_what_transformers_takes_them_for(tmp_path, change, heads):
    config = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 53, "hidden_size": 64}
    config |= {"intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 16, **change}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if not change:  # transformers 4 takes null for as many as query heads, 5 refuses it
        assert AutoConfig.from_pretrained(tmp_path).num_key_value_heads == heads
    assert describe(tmp_path, 128).model.num_kv_heads == heads


def test_a_family_without_a_class_of_transformers_is_refused():
    with pytest.raises(CheckpointError, match="no class of transformers computes a model of the family retro"):
        architecture_of(RETRO)
