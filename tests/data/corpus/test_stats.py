"""Counts equal those of a plain loop."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer

from megads.data.corpus.stats import table
from tests.data.corpus.cleaning.test_language import TEXTS
from tests.data.preprocess.conftest import tokenizer  # noqa: F401

DOCUMENTS = [
    {"url": "http://www.a.org/1", "text": TEXTS["en"]},
    {"url": "https://a.org/2", "text": TEXTS["en"] * 3},
    {"url": "https://b.de/", "text": TEXTS["de"]},
    {"url": None, "text": ""},
    {"text": "x"},
]


def test_counts(megads, tokenizer):  # noqa: F811
    megads.write("a", DOCUMENTS)
    words = ["stats", "a", "--json", "--tokenizer-name-or-path", tokenizer, "--workers", 2, "--block-bytes", 100]
    done = megads.made(*words)
    inner = Tokenizer.from_file(str(tokenizer))
    texts = [each["text"] for each in DOCUMENTS]
    found = json.loads(done.out)
    lengths = found.pop("lengths")
    assert found.pop("languages")["en"] >= 2
    assert found == {
        "documents": 5,
        "bytes": sum(len(text.encode()) for text in texts),
        "characters": sum(map(len, texts)),
        "words": sum(len(text.split()) for text in texts),
        "tokens": sum(len(inner.encode(text).ids) for text in texts),
        "num_domains": 2,
        "domains": {"(no URL)": 2, "a.org": 2, "b.de": 1},
    }
    for each in lengths:
        assert each["documents"] == sum(each["from"] <= len(text) < each["below"] for text in texts)
    assert sum(each["documents"] for each in lengths) == 5
    assert megads.names() == ["a"]


@pytest.mark.parametrize("workers", [1, 2])
def test_table_and_file(megads, workers):
    megads.write("a", DOCUMENTS)
    done = megads.made("stats", "a", "--output", "counts.json", "--no-languages", "--top", 1, "--workers", workers)
    lines = done.out.splitlines()
    assert lines[0].split() == ["documents", "5"]
    assert lines[-2].split() == ["domain", "(2", "in", "total)", "documents"]
    assert lines[-1].split() == ["(no", "URL)", "2", "40.0%"]
    assert "language" not in done.out
    assert table(json.loads((megads.folder / "counts.json").read_text()), 0) == lines
    assert megads.names() == ["a", "counts.json"]


def test_nothing(megads):
    (megads.folder / "a").write_text("")
    assert megads.made("stats", "a").out.splitlines()[0].split() == ["documents", "0"]
    assert "bad lines" in table({"documents": 0, "lengths": [], "domains": {}, "num_domains": 0}, 3)[1]
