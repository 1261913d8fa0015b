"""The lines that are printed of what a BERT puts in masks."""

from __future__ import annotations

import click
import pytest

from megads.cli.fill_mask import check_options, printed
from megads.cli.generate import generate
from megads.errors import ConfigError


def _candidates(*words: str) -> list[dict[str, object]]:
    return [{"text": word, "probability": 0.5 / (place + 1)} for place, word in enumerate(words)]


def test_words_of_a_mask_and_of_several():
    one = {"all_text": "the cat", "masks": [_candidates("cat", "mat")]}
    assert printed(one) == "the cat\n  0.5000  cat\n  0.2500  mat"
    two = {"all_text": "a b", "masks": [_candidates("a"), _candidates("b")]}
    assert printed(two) == "a b\nmask 1:\n  0.5000  a\nmask 2:\n  0.5000  b"


@pytest.mark.parametrize(
    "words",
    [
        ["--max-tokens", "64"],
        ["--greedy"],
        ["--random-seed", "1"],
        ["--stop", "a"],
        ["--num-samples", "1"],
        ["--logprobs", "1"],
    ],
)
def test_options_of_texts_are_refused_also_with_their_default(words):
    command = click.Command("generate", params=generate.params, callback=lambda **options: check_options())
    with pytest.raises(ConfigError, match="the model fills masks and generates no text; use --top-k, or drop it"):
        command.main(["model", *words], standalone_mode=False)
    command.main(["model", "--prompt", "a", "--top-k", "3", "--tp", "2"], standalone_mode=False)
