"""Llama's and Mistral's config.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.errors import CheckpointError
from megads.families.config_json import ConfigJson
from megads.families.llama import LLAMA_CLASS, MISTRAL_CLASS
from tests.families.read import DECODER, is_whole, read


@pytest.mark.parametrize("kind", [LLAMA_CLASS, MISTRAL_CLASS], ids=lambda kind: kind.name)
def test_a_model_is_read(kind):
    model = read(kind)
    assert (model.hidden_size, model.num_heads, model.num_kv_heads, model.head_dim) == (64, 4, 2, 16)
    assert is_whole(kind, model)
    assert kind.write(model, {"max_position_embeddings": 32})["num_key_value_heads"] == 2


def test_biases_of_a_part_are_refused():
    assert read(LLAMA_CLASS, attention_bias=True, mlp_bias=True).bias
    with pytest.raises(CheckpointError, match="attention_bias=True and mlp_bias=False"):
        read(LLAMA_CLASS, attention_bias=True)


@pytest.mark.parametrize(
    ("given", "window"), [({}, 4096), ({"sliding_window": None}, None), ({"sliding_window": 8}, 8)]
)
def test_mistrals_window(given, window):
    assert MISTRAL_CLASS.window(ConfigJson(Path("config.json"), {**DECODER, **given})) == window
    assert LLAMA_CLASS.window(ConfigJson(Path("config.json"), {**DECODER, **given})) is None


def test_a_head_width_of_its_own_is_mistrals():
    model = read(LLAMA_CLASS, head_dim=32).model_copy(update={"hidden_size": 66})
    assert not LLAMA_CLASS.suits(model)
    assert MISTRAL_CLASS.suits(model)
