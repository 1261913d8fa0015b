"""The measurement runs, and the peer keeps what this program keeps."""

from __future__ import annotations

import json

from benchmarks.corpus import PREFIX, children, clean_beginning, clean_whole, head, make_corpus, measure


def test_at_a_small_size(tmp_path, capsys):
    corpus = make_corpus(tmp_path / "corpus.jsonl", 150_000)
    part = head(corpus, tmp_path / "part.jsonl", 60_000)
    before = children()
    measure(tmp_path, corpus, part, 1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:6]] == ["clock"] * 3 + ["processor"] * 3
    assert f"kept documents are those of the loop, language of {PREFIX} characters: yes" in lines
    assert children() > before


def test_peer():
    for clean in (clean_beginning, clean_whole):
        assert clean(json.dumps({"text": "short"}).encode()) is None
        text = "The ducks don\u2019t mind the rain. " * 20
        assert json.loads(clean(json.dumps({"text": text}).encode())) == {"text": text.replace("\u2019", "'")}
