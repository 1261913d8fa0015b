"""What is kept, against counts made by hand."""

from __future__ import annotations

import json
import math
import statistics

import pytest

from megads.detoxify.filter import filter_file, least_toxic, summary_of
from megads.errors import DataError

SCORES = [0.5, 0.9, None, 0.1, 0.1, 0.7, None, 0.3, 0.51]


def _write(path, scores):
    lines = [
        json.dumps(
            {
                "text": f"t{place}",
                "id": place,
                "score": None if score is None else {"toxicity": score, "threat": 1 - score},
            }
        )
        for place, score in enumerate(scores)
    ]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_half_of_all_lines_the_least_toxic_first_and_ties_in_order():
    assert least_toxic(SCORES, 0.5) == [(0.1, 3), (0.1, 4), (0.3, 7), (0.5, 0)]
    assert least_toxic(SCORES, 1) == [(0.1, 3), (0.1, 4), (0.3, 7), (0.5, 0), (0.51, 8), (0.7, 5), (0.9, 1)]
    assert least_toxic([0.3, 0.2, 0.1], 0.34) == [(0.1, 2)]
    assert least_toxic([None, None, 0.1], 0.5) == [(0.1, 2)]
    # 0.29 * 100 and 0.57 * 100 are below 29 and 57 in floating point.
    assert [len(least_toxic([0.1] * 100, share)) for share in (0.29, 0.57, 1 / 3, 1)] == [29, 57, 33, 100]


def test_a_file_is_filtered_shuffled_and_summed_up(tmp_path):
    source, target = _write(tmp_path / "a", SCORES), tmp_path / "b"
    found = filter_file(source, target, keep=0.5, seed=3)
    kept = [json.loads(line) for line in target.read_text().splitlines()]
    lines = [json.loads(line) for line in source.read_text().splitlines()]
    assert sorted(each["id"] for each in kept) == [0, 3, 4, 7]
    assert all(each == lines[each["id"]] for each in kept)
    assert (found.lines, found.unscored) == (9, 2)
    by_hand = {
        "all": [0.5, 0.9, 0.1, 0.1, 0.7, 0.3, 0.51],
        "toxic": [0.9, 0.7, 0.51],
        "nontoxic": [0.5, 0.1, 0.1, 0.3],
        "kept": [0.1, 0.1, 0.3, 0.5],
    }
    for name, values in by_hand.items():
        summary = getattr(found, name)
        expected = (len(values), statistics.fmean(values), statistics.pstdev(values), min(values), max(values))
        assert tuple(vars(summary).values()) == pytest.approx(expected, abs=1e-12)


def test_the_seed_decides_the_order_alone(tmp_path):
    scores = [place / 100 for place in range(100)]
    source = _write(tmp_path / "a", scores)
    orders = []
    for name, seed in (("b", 1), ("c", 1), ("d", 2)):
        filter_file(source, tmp_path / name, keep=0.5, seed=seed)
        orders.append([json.loads(line)["id"] for line in (tmp_path / name).read_text().splitlines()])
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(50)) != orders[0]


def test_another_attribute(tmp_path):
    filter_file(_write(tmp_path / "a", [0.1, 0.9]), tmp_path / "b", keep=0.5, seed=0, attribute="threat")
    assert json.loads((tmp_path / "b").read_text())["id"] == 1


@pytest.mark.parametrize(
    ("scores", "keep", "words"),
    [
        ([], 0.5, "a: has no line; nothing is kept"),
        ([None, None], 0.5, "none of its 2 lines has a score; nothing is kept"),
        ([0.1, 0.2], 0.4, "a share of 0.4 of its 2 lines is none; nothing is kept"),
    ],
)
def test_nothing_to_keep(tmp_path, scores, keep, words):
    with pytest.raises(DataError, match=words):
        filter_file(_write(tmp_path / "a", scores), tmp_path / "b", keep=keep, seed=0)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_summary_of_nothing():
    assert summary_of([]).count == 0
    assert math.isnan(summary_of([]).mean)
