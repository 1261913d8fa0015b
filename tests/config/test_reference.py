"""A setting in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.config.reference import explanation, find_settings, settings_page, values_text
from megads.config.tree import fields
from megads.errors import ConfigError


@pytest.mark.parametrize("word", ["TP", "parallel.tensor", "--tensor-model-parallel-size"])
def test_a_setting_is_found_by_any_of_its_names(word):
    assert find_settings((word,)) == ("parallel.tensor",)


def test_several_words_narrow_what_is_found():
    warm = find_settings(("warm-up", "tokens"))
    assert "optim.lr_warmup_tokens" in warm
    assert set(warm) < set(find_settings(("warm-up",)))
    with pytest.raises(ConfigError, match="no setting has 'NLAYERX' in its name or meaning; did you mean NLAYERS"):
        find_settings(("NLAYERX",))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.dtype", "fp32, bf16, fp16"),
        ("train.force", "0 or 1"),
        ("model.num_layers", "int > 0, <= 100000"),
        ("model.num_kv_heads", "int >= 0"),
        ("optim.lr", "number >= 0"),
        ("name", "text"),
    ],
)
def test_values_in_words(name, text):
    assert values_text(fields()[name]) == text


def test_an_explanation_has_a_line_for_what_there_is():
    lines = explanation("train.dtype", "bf16", "env DTYPE")
    assert lines[0] == "DTYPE  train.dtype"
    assert "  value    bf16  (env DTYPE)" in lines
    assert any(line.startswith("  also     bfloat16 for bf16") for line in lines)
    assert any(line.startswith("  options  --fp16 (fp16), --bf16 (bf16)") for line in lines)
    assert not any(line.startswith("  switches") for line in lines)


def test_the_page_is_current():
    assert (Path(__file__).parents[2] / "docs/settings.md").read_text() == settings_page()
