"""N-grams of tasks."""

from __future__ import annotations

import random

import pytest

from megads.data.corpus.contamination.ngrams import Match, Matcher, ngrams_of, words_of
from tests.data.corpus.made import WORDS


def test_words_are_in_lower_case_with_their_places():
    assert words_of("One two-THREE, f4_r!") == (["one", "two", "three", "f4_r"], [0, 4, 8, 15])


def test_a_long_text_has_an_ngram_at_each_word_and_a_short_one_is_its_own():
    words = [f"w{number}" for number in range(15)]
    assert ngrams_of(" ".join(words)) == [" ".join(words[at : at + 13]) for at in range(3)]
    assert ngrams_of(" ".join(words[:13])) == [" ".join(words[:13])]
    assert ngrams_of("; ".join(words[:8])) == [" ".join(words[:8])]
    assert ngrams_of(" ".join(words[:7])) == []


def slowly(words: list[str], ngrams: set[str], most: int) -> tuple[str, int] | None:
    """Return the first match and the index of its first word, every place being tried."""
    lengths = sorted({len(each.split()) for each in ngrams})
    for at in range(len(words) - most + 1):
        for length in [most, *lengths]:
            if (found := " ".join(words[at : at + length])) in ngrams:
                return found, at
    if len(words) > most:
        for length in lengths:
            for at in range(len(words) - most, len(words) - length + 1):
                if (found := " ".join(words[at : at + length])) in ngrams:
                    return found, at
    return None


@pytest.mark.parametrize("seed", range(4))
def test_the_first_match_is_that_of_every_place_tried(seed):
    draw = random.Random(seed)
    found = 0
    for _ in range(150):
        letters = draw.sample(WORDS, 3)
        most = draw.randint(4, 6)
        ngrams = {
            " ".join(draw.choice(letters) for _ in range(draw.randint(3, most))) for _ in range(draw.randint(1, 6))
        }
        words = [draw.choice(letters) for _ in range(draw.randint(0, 14))]
        wanted = slowly(words, ngrams, most)
        text = " ".join(words)
        match = Matcher(ngrams, most).first(text)
        if wanted is None:
            assert match is None
        else:
            found += 1
            assert match == Match(wanted[0], len(" ".join([*words[: wanted[1]], ""])) if wanted[1] else 0)
    assert 20 < found < 150


def test_an_empty_dictionary_matches_nothing():
    assert Matcher([]).first("a b c d e f g h i j k l m n o p q") is None
