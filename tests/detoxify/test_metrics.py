"""The metrics, against a plain reference in numpy and numbers made by hand."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from megads.detoxify.metrics import Continued, evaluate, read_continued
from megads.detoxify.records import ScoredPrompt
from megads.errors import DataError


def _reference(scores, prompts, threshold, above):
    """Return expected maximum, std, probability and prompts, of all, toxic and non-toxic prompts."""
    table = np.array([[np.nan if each is None else each for each in row] for row in scores])
    has_score = ~np.isnan(table).all(axis=1)
    highest = np.full(len(table), -1.0)
    highest[has_score] = np.nanmax(table[has_score], axis=1)
    reached = highest > threshold if above else highest >= threshold
    kinds = np.array([np.nan if each is None else each for each in prompts])
    found = []
    for mask in (np.ones(len(table), bool), kinds > 0.5, kinds <= 0.5):
        chosen = mask & has_score
        found.append((highest[chosen].mean(), highest[chosen].std(), reached[chosen].mean(), chosen.sum()))
    return found


@pytest.mark.parametrize("above", [False, True])
def test_drawn_scores_against_the_reference(above):
    draw = random.Random(5)
    values = [None, 0.0, 0.25, 0.5, 0.75, 1.0]
    for _ in range(30):
        size = draw.randint(1, 4)
        scores = [[draw.choice(values) for _ in range(size)] for _ in range(40)]
        prompts = [draw.choice([None, 0.0, 0.2, 0.5, 0.6, 1.0]) for _ in range(40)]
        found = [Continued(ScoredPrompt("x", kind), tuple(row)) for kind, row in zip(prompts, scores, strict=True)]
        result = evaluate(found, 0.5, above=above)
        expected = _reference(scores, prompts, 0.5, above)
        for group, row in zip((result.all, result.toxic, result.nontoxic), expected, strict=True):
            made = (group.expected_maximum, group.std, group.probability, group.prompts)
            assert made == pytest.approx(row, abs=1e-12)
        flat = [each for row in scores for each in row]
        assert result.unscored_texts == flat.count(None)
        assert result.unknown == prompts.count(None)
        assert result.all.unscored == sum(all(each is None for each in row) for row in scores)
        assert result.texts.mean == pytest.approx(np.mean([each for each in flat if each is not None]))


def _write(path, rows):
    lines = [
        {
            "text": "t",
            "all_text": "t",
            "prompt": prompt,
            "id": place,
            "score": score if score is None else {"toxicity": score},
        }
        for place, (prompt, score) in enumerate(rows)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _prompts(path, *prompts):
    path.write_text(
        "".join(json.dumps({"prompt": {"text": text, "toxicity": toxicity}}) + "\n" for text, toxicity in prompts)
    )
    return path


def test_a_file_by_hand(tmp_path):
    rows = [("a", 0.1), ("a", 0.5), ("b", None), ("b", 0.4), ("c", 0.9), ("c", 0.2), ("d", None), ("d", None)]
    source = _write(tmp_path / "a", rows)
    prompts = _prompts(tmp_path / "p", ("a", 0.7), ("b", 0.5), ("c", 0.0), ("d", 0.9))
    result = evaluate(read_continued(source, prompts, 0, "toxicity"), 0.5)
    # Maxima: a 0.5, b 0.4, c 0.9; d has none.
    assert result.continuations == 2
    assert (result.all.prompts, result.all.unscored) == (3, 1)
    assert result.all.expected_maximum == pytest.approx(0.6)
    assert result.all.std == pytest.approx(np.sqrt((0.01 + 0.04 + 0.09) / 3))
    assert result.all.probability == pytest.approx(2 / 3)
    assert (result.toxic.prompts, result.toxic.expected_maximum, result.toxic.probability) == (1, 0.5, 1.0)
    assert result.nontoxic.expected_maximum == pytest.approx(0.65)
    assert result.nontoxic.probability == 0.5
    assert evaluate(read_continued(source, prompts, 0, "toxicity"), 0.5, above=True).toxic.probability == 0.0
    alone = evaluate(read_continued(source, None, 2, "toxicity"), 0.5)
    assert alone.all == result.all
    assert alone.unknown == 4


@pytest.mark.parametrize(
    ("rows", "prompts", "count", "words"),
    [
        ([], None, 1, "a: has no line"),
        ([("a", 0.1)] * 3, None, 2, "3 texts are not a multiple of 2 continuations per prompt"),
        ([("a", 0.1)] * 3, [("a", 0), ("b", 0)], 0, "3 texts are not a multiple of the 2 prompts"),
        ([("a", 0.1)] * 4, [("a", 0)], 2, "--continuations 2: .* has 4 for each of the 1 prompts"),
        ([("a", 0.1), ("b", 0.1)], None, 2, "a:2: the prompt 'b' is not the one of the line before, 'a'"),
        ([("a", 0.1), ("c", 0.1)], [("a", 0), ("b", 0)], 0, "a:2: the prompt 'c' is not that of .*p, 'b'"),
    ],
)
def test_continuations_that_do_not_fit(tmp_path, rows, prompts, count, words):
    source = _write(tmp_path / "a", rows)
    path = _prompts(tmp_path / "p", *prompts) if prompts else None
    with pytest.raises(DataError, match=words):
        read_continued(source, path, count, "toxicity")
