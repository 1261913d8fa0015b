"""BERT's ``config.json`` and names; the weights themselves: tests/checkpoint/convert/huggingface/test_bert.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.checkpoint.convert.huggingface.config import architecture_of
from megads.checkpoint.convert.huggingface.names import tensors_of
from megads.errors import CheckpointError
from megads.families.config_json import ConfigJson
from megads.families.decoder import spec_of
from megads.families.table import CLASSES, described_by
from tests.models import shapes

FORMS = {
    "MegatronBertForPreTraining": shapes.BERT,
    "MegatronBertForMaskedLM": shapes.BERTS["bert-tokens"],
    "BertForPreTraining": shapes.BERT_ORIGINAL,
    "BertForMaskedLM": shapes.BERT_ORIGINAL.model_copy(update={"binary_head": False}),
}


def _read(name: str = "BertForPreTraining", **content) -> dict:
    return CLASSES[name].read(ConfigJson(Path("config.json"), content))


def test_a_config_without_sizes_is_bert_base():
    found = _read()
    assert (found["hidden_size"], found["num_layers"], found["num_heads"], found["vocab_size"]) == (768, 12, 12, 30522)
    assert (found["norm_position"], found["token_types"], found["binary_head"]) == ("behind_sum", 2, True)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_has_its_class_which_reads_what_it_writes(name):
    model = FORMS[name]
    assert architecture_of(model) == name
    assert described_by(model) == "bert"
    read = _read(name, **CLASSES[name].write(model, {}), vocab_size=model.vocab_size, initializer_range=0.3)
    assert read == {setting: getattr(model, setting) for setting in read}


@pytest.mark.parametrize("name", FORMS)
def test_every_parameter_has_its_names(name):
    found = tensors_of(FORMS[name], name)
    assert {each.ours for each in found} == {each.name for each in spec_of(FORMS[name]).parameters()}
    assert len({each.name for each in found}) == len(found)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("BertForMaskedLM", {"hidden_act": "relu"}, "hidden_act='relu' is not supported; gelu, gelu_new"),
        ("MegatronBertForMaskedLM", {"hidden_act": "gelu_new"}, "hidden_act='gelu_new' is not supported; gelu are"),
        ("BertForMaskedLM", {"is_decoder": True}, "is_decoder is set: causal attention"),
        ("BertForMaskedLM", {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key' is"),
        ("BertForMaskedLM", {"num_attention_heads": 7}, "hidden_size=768 is not a multiple of num_attention_heads=7"),
    ],
)
def test_what_megads_does_not_do_is_refused(name, content, told):
    with pytest.raises(CheckpointError, match=told):
        _read(name, **content)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"activation": "swiglu"}, "MegatronBertForPreTraining has no activation=swiglu, it has gelu or gelu_tanh"),
        ({"token_types": 0}, "has no token_types=0, it has 1 or more"),
        ({"num_kv_heads": 4}, "has no num_kv_heads=4"),
        ({"num_classes": 3, "token_types": 0}, "MegatronBertForSequenceClassification has no token_types=0, it has"),
    ],
)
def test_what_no_class_computes_is_refused(changes, told):
    with pytest.raises(CheckpointError, match=told):
        architecture_of(shapes.BERT.model_copy(update=changes))


def test_an_encoder_is_no_gpt():
    """Whose learned positions and norms it has."""
    assert not CLASSES["GPT2LMHeadModel"].suits_all(shapes.BERT)
    assert CLASSES["GPT2LMHeadModel"].suits_all(shapes.GPT)
