"""config.json of Hugging Face: what is read, written, and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.config.schema import RunConfig
from megads.errors import CheckpointError
from megads.families.config_json import ConfigJson, read_decoder, write_decoder

CONTENT = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-6,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def config(**changes) -> ConfigJson:
    return ConfigJson(Path("config.json"), {**CONTENT, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": None}, "hidden_size is None"),
        ({"hidden_size": 64.0}, "hidden_size is 64.0, expected an integer"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
    ],
)
def test_what_is_wrong_names_the_file_and_the_key(changes, words):
    with pytest.raises(CheckpointError, match=r"^config\.json: ") as problem:
        read_decoder(config(**changes))
    assert words in str(problem.value)


@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 2.0}, LLAMA3])
def test_a_decoder_that_is_written_is_read_again(scaling):
    read = read_decoder(config(rope_scaling=scaling))
    assert read["num_kv_heads"] == read["num_heads"] == 4
    assert read["head_dim"] == 16
    assert read["rope_scaling"] == (scaling or {"rope_type": "none"})["rope_type"]
    model = RunConfig.model_validate({"model": read}).model
    again = read_decoder(config(**write_decoder(model, {"max_position_embeddings": 32})))
    assert again == read
