import random
import string

import pytest

from megads.evaluate.qa.scores import NO_ANSWER, Overlap, exact_match, normalised, overlap, words_of


def test_hand_computed_scores():
    # "cat sat on mat" and "cat is on mat": 3 of 4 words each way; articles and punctuation do not count.
    assert overlap("The cat sat on the mat.", "a cat is on a mat") == Overlap(0.75, 0.75)
    assert overlap("in 1912, in the north", "1912") == Overlap(0.25, 1.0)
    assert overlap("in 1912, in the north", "1912").f1 == pytest.approx(0.4, abs=1e-15)
    # A word counts as often as in both texts: "no no" against "no": 1 of 2, 1 of 1.
    assert overlap("no no", "no") == Overlap(0.5, 1.0)
    assert overlap("yes", "no") == Overlap()
    assert overlap("", "no") == Overlap()
    assert overlap("Louis XIV", "the") == Overlap()
    assert overlap("no", "") is None
    assert overlap("no", NO_ANSWER) is None


def test_punctuation_separates_words_for_f1_and_is_dropped_for_exact_match():
    assert words_of("A well-known O'Brien; the end") == ["well", "known", "o", "brien", "end"]
    assert normalised("A well-known O'Brien; the end") == "wellknown obrien end"
    assert exact_match(" The WELL-known\n obrien,end ", ["x", "well-known O'Brien end"]) is False
    assert exact_match(" The WELL-known\n obrien, end ", ["x", "well-known O'Brien end"])
    assert not exact_match("anthem", ["them"])  # an article inside a word is none
    assert not exact_match("x", [])


def _reference(guess, gold):
    """F1 counted word by word, without a pattern or a counter."""

    def split(text):
        spaced = "".join(" " if each in string.punctuation else each.lower() for each in text)
        return [word for word in spaced.split() if word not in ("a", "an", "the")]

    guessed, left = split(guess), split(gold)
    count, both = len(left), 0
    for word in guessed:
        if word in left:
            left.remove(word)
            both += 1
    if not both:
        return 0.0
    precision, recall = both / len(guessed), both / count
    return 2 * precision * recall / (precision + recall)


def test_drawn_pairs_against_a_reference():
    rng = random.Random(3)
    words = ["the", "An", "red", "Red,", "fox", "o'clock", "fox-trot", "42", "4.2", "ant", "?", "_x_", "the-end"]
    seen = set()
    for _ in range(500):
        guess, gold = (" ".join(rng.choices(words, k=rng.randrange(1, 7))) for _ in range(2))
        found = overlap(guess, gold)
        assert found.f1 == pytest.approx(_reference(guess, gold), abs=1e-15)
        seen.add(round(found.f1, 3))
    assert len(seen) > 20
