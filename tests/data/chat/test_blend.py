"""Files and their shares, and what an epoch draws of each."""

import itertools
from collections import Counter

import numpy as np
import pytest

from megads.data.chat.blend import Blend, Shared, parse_files
from megads.errors import ConfigError


def test_files_are_paths_or_weights_and_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my chats.jsonl").touch()
    assert parse_files("", "T") == ()
    assert parse_files("a.jsonl b.jsonl", "T") == (Shared("a.jsonl"), Shared("b.jsonl"))
    assert parse_files("'my chats.jsonl'", "T") == (Shared("my chats.jsonl"),)
    blend = (Shared("a.jsonl", 0.3), Shared("b.jsonl", 0.7))
    assert parse_files("0.3 a.jsonl 0.7 b.jsonl", "T") == blend
    assert parse_files("'0.3 a.jsonl 0.7 b.jsonl'", "T") == blend  # one word, as a shell passes what is in quotes
    (tmp_path / "7").touch()
    assert parse_files("7", "T") == (Shared("7"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0.3 a 0.7", "0.7 has no weight"),
        ("0.3 a b c", "'b' is not a weight of c"),
        ("0 a", "'0' is not a weight of a"),
        ("-1 a", "'-1' is not a weight of a"),
        ("nan a", "'nan' is not a weight"),
        ("inf a", "'inf' is not a weight"),
        ("a a", "a is named twice; name every file once"),
        ("1 a 2 a", "a is named twice"),
        ("'a", "quote a path with blanks"),
    ],
)
def test_what_is_no_list_of_files_is_rejected(text, words):
    with pytest.raises(ConfigError, match=words) as caught:
        parse_files(text, "TASK_TRAIN_DATA")
    assert "TASK_TRAIN_DATA" in str(caught.value)


def test_without_weights_an_epoch_is_every_example_once():
    blend = Blend([3, 4], None, seed=1)
    assert blend.is_constant
    for epoch in (0, 1, 5):
        assert sorted(blend.draw(epoch).tolist()) == list(range(7))


@pytest.mark.parametrize(
    ("sizes", "weights", "shares"),
    [([10, 10], [0.3, 0.7], [6, 14]), ([3, 30], [1, 1], [17, 16]), ([5, 5, 5], [1, 1, 1], [5, 5, 5])],
)
def test_with_weights_an_epoch_has_the_share_of_each_file_and_passes_over_it_are_complete(sizes, weights, shares):
    blend = Blend(sizes, weights, seed=3)
    firsts = [0, *np.cumsum(sizes).tolist()]
    seen: Counter[int] = Counter()
    for epoch in range(4):
        drawn = blend.draw(epoch)
        assert [int(((drawn >= a) & (drawn < b)).sum()) for a, b in itertools.pairwise(firsts)] == shares
        assert drawn.tolist() == Blend(sizes, weights, seed=3).draw(epoch).tolist()
        seen.update(drawn.tolist())
        for first, size in zip(firsts, sizes, strict=False):
            counts = [seen[number] for number in range(first, first + size)]
            assert max(counts) - min(counts) <= 1, "an example is read again before all others are"


def test_the_order_of_passes_follows_from_the_seed():
    assert Blend([50], [1.0], seed=1).draw(0).tolist() != Blend([50], [1.0], seed=2).draw(0).tolist()
