"""Every setting of a model is a convention, or is known to change nothing of what given weights compute."""

from __future__ import annotations

import json

import pytest

from megads.config.schema import ModelConfig
from megads.families.conventions import BY_KEY, CONVENTIONS, TOKENIZER, changes_between, conventions_of
from tests.checkpoint.faked import derived

SHAPES = {
    *("num_layers", "decoder_layers", "hidden_size", "ffn_hidden_size", "max_positions", "vocab_multiple"),
    *("retro_encoder_layers", "binary_head"),
}
"""Weights of another value have other tensors or shapes."""
OTHER = {
    *("seq_length", "decoder_seq_length", "init_std", "attention"),
    *("hidden_dropout", "attention_dropout", "lora_dropout"),
    *("retro_encoder_hidden_dropout", "retro_encoder_attention_dropout"),
}
"""How long rows are, how weights begin, what is dropped in training, which kernel computes."""
NOT_WEIGHTS = {"retro_num_neighbors", "retro_attention_gate"}
"""What a user of the model may choose each time: `megads generate --neighbors`."""


def test_every_setting_of_a_model_is_a_convention_or_known_to_be_none():
    named = {each.setting.partition(".")[2] for each in CONVENTIONS if each.setting.startswith("model.")}
    others = SHAPES | OTHER | NOT_WEIGHTS | {"family"}  # the family's kind of samples is a convention
    assert named & others == set()
    assert set(ModelConfig.model_fields) == named | others


@pytest.mark.parametrize(
    ("env", "there", "missing"),
    [
        ({}, {"rope_theta", "rope_pairs", "gate"}, {"rope_scaling_factor", "relative_buckets", "lora_alpha"}),
        ({"ROPE_SCALING": "linear", "ROPE_SCALING_FACTOR": "2"}, {"rope_scaling_factor"}, {"rope_low_freq_factor"}),
        ({"ROPE_SCALING": "llama3", "ROPE_SCALING_FACTOR": "2"}, {"rope_low_freq_factor"}, set()),
        ({"MODEL_FAMILY": "gpt"}, {"softmax_scale"}, {"rope_theta", "rope_pairs", "gate"}),
        ({"MODEL_FAMILY": "qwen3"}, {"qk_norm_place"}, set()),
        ({"MODEL_FAMILY": "t5", "POSITION_EMBEDDING": "relative"}, {"relative_distance"}, {"rope_theta"}),
        ({"MODEL_FAMILY": "retro"}, {"retro_chunk_length"}, {"relative_distance"}),
    ],
)
def test_a_part_that_a_model_lacks_has_no_convention(env, there, missing):
    found = conventions_of(derived(env))
    assert there <= found.keys()
    assert not missing & found.keys()
    assert json.loads(json.dumps(found)) == found  # a manifest gives back what was stored


def test_forms_that_the_code_chose_follow_the_model():
    plain, t5 = conventions_of(derived()), conventions_of(derived(MODEL_FAMILY="t5", POSITION_EMBEDDING="relative"))
    assert (plain["softmax_scale"], t5["softmax_scale"]) == ("1/sqrt(HEAD_DIM)", "1")
    assert plain["attention_mask"] != t5["attention_mask"]
    assert conventions_of(derived(MODEL_FAMILY="olmo2"))["residual"] == "x + norm(f(x))"


def test_changes_are_named_and_what_only_one_says_is_none():
    was, now = conventions_of(derived(), "abc"), conventions_of(derived(ROPE_THETA="1e4", RESET_ATTENTION_MASK="1"))
    found = {each.convention.key: (each.was, each.now) for each in changes_between(was, now)}
    assert found == {"rope_theta": (50000.0, 10000.0), "reset_attention_mask": (False, True)}
    newer = {**now, "of_a_later_version": 1}
    assert not changes_between(newer, now)
    assert changes_between({**now, "rope_pairs": "i with i + 1"}, now)[0].convention is BY_KEY["rope_pairs"]
    assert [each.convention.key for each in changes_between(was, {TOKENIZER: "xyz"})] == [TOKENIZER]
