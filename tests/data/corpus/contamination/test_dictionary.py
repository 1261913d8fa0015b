"""Files of n-grams, and files that are none."""

from __future__ import annotations

import json
import os
import pickle

import pytest

from megads.data.corpus.contamination.dictionary import load_ngrams, save_ngrams
from megads.errors import DataError

NGRAMS = ["a b c d e f g h", "\u00fc b c d e f g h i"]


def test_saved_ngrams_are_loaded(tmp_path):
    path = tmp_path / "ngrams"
    save_ngrams(path, set(NGRAMS))
    assert path.read_text(encoding="utf-8") == json.dumps({"ngrams": sorted(NGRAMS)}, ensure_ascii=False) + "\n"
    assert load_ngrams(str(path), 9) == frozenset(NGRAMS)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickle_of_megatron_is_loaded(tmp_path, protocol):
    (tmp_path / "ngrams").write_bytes(pickle.dumps(dict.fromkeys(NGRAMS, 1), protocol))
    assert load_ngrams(str(tmp_path / "ngrams"), 13) == frozenset(NGRAMS)


class Harmful:
    """Runs a command when it is read by pickle itself."""

    def __reduce__(self):
        return os.mkdir, ("harm",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({"a": Harmful()}), "holds posix.mkdir, not only n-grams; expected a file of --save-dictionary"),
        (pickle.dumps([1, 2]), "has no list of n-grams"),
        (pickle.dumps({1: 2}), "has no list of n-grams"),
        (pickle.dumps(dict.fromkeys(NGRAMS, 1))[:-9], ""),
        (b"\x80", ""),
        (b"", "is not JSON"),
        (b"[]", "has no list of n-grams"),
        (b'{"ngrams": {}}', "has no list of n-grams"),
        (b'{"ngrams": ["a", 1]}', "has no list of n-grams"),
        (b'{"ngrams": ["a b c d e f g h i j"]}', "has n-grams of 10 words; pass --max-ngram-size 10"),
    ],
)
def test_what_is_no_dictionary_is_refused(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ngrams").write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_ngrams("ngrams", 9)
    assert str(caught.value).startswith(f"--load-dictionary ngrams: {message}")
    assert not (tmp_path / "harm").exists()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="cannot be read: no such file"):
        load_ngrams(str(tmp_path / "none"), 13)
