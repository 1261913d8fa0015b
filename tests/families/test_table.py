"""The table of families, and the page that shows how to add one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from megads.config.schema import RunConfig
from megads.config.tree import fields
from megads.families.table import CLASSES, FAMILIES, FAMILY_DEFAULTS, FamilyName, described_by, family_of

BERT_PARTS = {"position_embedding": "learned", "normalization": "layernorm", "bias": True, "activation": "gelu_tanh"}
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/extending.md").read_text()


def test_every_name_is_a_row_and_every_row_is_on_the_page():
    assert get_args(FamilyName) == tuple(FAMILIES)
    kinds = r"(`\w+ForCausalLM`.*?|`\w+LMHeadModel`|`\w+ForConditionalGeneration`|`\w+ForPreTraining`.*?)"
    rows = dict(re.findall(rf"^\| `(\w+)` \|.*?\| {kinds} \|", PAGE, re.MULTILINE))
    named = {name: re.findall(r"\w+", classes) for name, classes in rows.items()}
    assert named == {
        name: [each.name for each in family.classes] for name, family in FAMILIES.items() if family.classes
    }


def test_defaults_are_settings_and_a_class_has_one_family():
    assert all(name in fields() for defaults in FAMILY_DEFAULTS.values() for name in defaults)
    assert len(CLASSES) == sum(len(family.classes) for family in FAMILIES.values())
    assert {family_of(name) for name in CLASSES} == {name for name, family in FAMILIES.items() if family.classes}
    # An encoder with a head for pairs and one without have the same type.
    assert len({(each.model_type, each.is_encoder and name) for name, each in CLASSES.items()}) == len(CLASSES)


@pytest.mark.parametrize(("section", "lines"), [("A model family", 5), ("An optimizer", 13)])
def test_the_diff_on_the_page_is_in_the_files(section, lines):
    diff = PAGE.partition(f"## {section}\n")[2].partition("```diff\n")[2].partition("```")[0]
    added, file = 0, ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            file = (ROOT / line.removeprefix("+++ b/")).read_text()
        elif line.startswith("+"):
            assert line[1:] in file
            added += 1
    assert added == lines


def test_a_model_is_called_what_its_parts_say():
    model = RunConfig.model_validate({"model": {"family": "llama", "head_dim": 128, "num_kv_heads": 8}}).model
    assert described_by(model) == "llama"
    qwen3 = model.model_copy(update={"qk_norm": "head"})
    assert described_by(qwen3) == "qwen3"
    assert described_by(qwen3.model_copy(update={"family": "qwen3"})) == "qwen3"
    assert described_by(qwen3.model_copy(update={"norm_position": "after"})) == "llama"  # no class has both
    bert = RunConfig.model_validate({"model": {"family": "bert", **BERT_PARTS}}).model
    assert described_by(bert) == "bert"  # and not gpt, which has the same layers
