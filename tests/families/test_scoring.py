"""The classes of transformers with the head of a task, and names of classes in their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.errors import CheckpointError
from megads.families.config_json import ConfigJson
from megads.families.scoring import has_own_names, names_in
from megads.families.table import CLASSES, SCORING, family_of
from tests.models import shapes


def test_every_family_but_t5_has_classes_that_score():
    import transformers

    assert {family_of(name) for name in SCORING} == {family_of(name) for name in CLASSES} - {"t5"}
    assert not SCORING.keys() & CLASSES.keys()
    assert all(hasattr(transformers, name) for name in SCORING)


@pytest.mark.parametrize(
    ("model", "outputs", "names"),
    [
        (shapes.BERT, 3, ["MegatronBertForSequenceClassification"]),
        (shapes.BERT, 1, ["MegatronBertForMultipleChoice"]),
        (shapes.BERT_ORIGINAL, 2, ["BertForSequenceClassification"]),
        (shapes.BERT_ORIGINAL, 1, ["BertForMultipleChoice"]),
        (shapes.GPT, 1, ["GPT2ForSequenceClassification"]),
        (shapes.LLAMA, 5, ["LlamaForSequenceClassification", "MistralForSequenceClassification"]),
    ],
)
def test_the_form_and_the_head_decide_the_class(model, outputs, names):
    scoring = model.model_copy(update={"num_classes": outputs})
    assert [name for name, each in SCORING.items() if each.suits_all(scoring)] == names


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, []),
        ({"id2label": {"0": "no", "1": "yes"}}, ["no", "yes"]),
        ({"id2label": {"1": "b", "0": "a"}}, ["a", "b"]),
    ],
)
def test_names_are_in_the_order_of_their_numbers(given, names):
    assert names_in(ConfigJson(Path("c"), given)) == names


@pytest.mark.parametrize("given", [{"1": "a", "2": "b"}, {"0": "a", "1": 2}, {"0": "a", "1": "a"}, ["a"]])
def test_names_that_are_none_are_refused(given):
    with pytest.raises(CheckpointError, match=r"^c: id2label is .*, expected names that differ, numbered from 0 on$"):
        names_in(ConfigJson(Path("c"), {"id2label": given}))


def test_names_that_transformers_makes_up_are_none():
    assert [has_own_names(names) for names in ([], ["a"], ["LABEL_0", "LABEL_1"], ["a", "b"])] == [False] * 3 + [True]
