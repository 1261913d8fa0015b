"""The rules of Megatron-LM's cleanup_dataset.py: repair, language, length, in this order."""

from __future__ import annotations

import json

import ftfy
import pytest

from megads.data.corpus.cleaning.clean import Clean
from megads.data.corpus.frame.step import Lines
from megads.data.tokenizers.base import TokenizerSpec
from tests.data.corpus.cleaning.test_language import TEXTS
from tests.data.preprocess.conftest import tokenizer  # noqa: F401

GOLDEN = [
    {"url": "a", "text": TEXTS["en"] * 6},
    {"url": "b", "text": "It\u00e2\u20ac\u2122s \u201cfine\u201d &amp; true. " + TEXTS["en"] * 6, "big": 2**80},
    {"url": "c", "text": TEXTS["de"] * 9},
    {"url": "d", "text": TEXTS["en"]},
    {"url": "e", "text": ""},
    {"url": "f", "text": "1 2 3 " * 200},
    {"url": "g", "text": TEXTS["en"] * 6 + " \ud83d"},
]


def reference(documents, languages, least):
    """Return kept documents and reasons by the plain loop."""
    import py3langid

    kept, dropped = [], []
    for document in documents:
        text = ftfy.fix_text(document["text"])
        letters = text.lstrip("0123456789 ")
        if not letters or py3langid.classify(letters)[0] not in languages:
            dropped.append((document["url"], "language"))
        elif len(text) < least:
            dropped.append((document["url"], "short"))
        else:
            kept.append({**document, "text": text})
    return kept, dropped


@pytest.mark.parametrize(("languages", "least"), [(("en",), 512), (("de", "en"), 100), (("fr",), 0), (("en",), 0)])
def test_golden_lines(languages, least):
    step = Clean(languages, min_chars=least)
    step.begin()
    lines = [json.dumps(document, ensure_ascii="\ud83d" in document["text"]) for document in GOLDEN]
    result = step.block(Lines("\n".join(lines).encode(), 0, 0))
    kept, dropped = reference(GOLDEN, languages, least)
    outputs = [b"".join(pieces).decode().splitlines() for pieces in result.outputs]
    assert outputs[0] == [json.dumps(document, ensure_ascii=False) for document in kept]
    found = [json.loads(line) for line in outputs[1]]
    assert [(each["url"], each["dropped"]["reason"]) for each in found] == dropped
    assert result.bad == []
    assert result.counts.get("changed", 0) == sum(document not in GOLDEN for document in kept)


def test_tokens(tokenizer):  # noqa: F811
    """A text of 8 characters for each token that is needed is not tokenized; others are."""
    from tokenizers import Tokenizer

    count = len(Tokenizer.from_file(str(tokenizer)).encode(TEXTS["en"]).ids)
    line = json.dumps({"text": TEXTS["en"]}).encode()
    for least, is_kept in ((count, True), (count + 1, False), (len(TEXTS["en"]) // 8, True)):
        step = Clean(("en",), TokenizerSpec("HFTokenizer", str(tokenizer)), least, 0)
        step.begin()
        result = step.block(Lines(line, 0, 0))
        assert result.counts.get("kept", 0) == is_kept
        if not is_kept:
            assert f"{count} tokens".encode() in b"".join(result.outputs[1])
        assert step.options()["min_tokens"] == least
        assert step.options()["tokenizer"]


def test_command(megads):
    lines = megads.write("raw.jsonl", GOLDEN[:6])
    done = megads.made(
        "clean", "raw.jsonl", "clean.jsonl", "--dropped", "gone.jsonl", "--workers", 2, "--block-bytes", 900
    )
    assert done.out == "clean.jsonl  # kept 2 of 6 documents, changed 1; dropped 4: language 3, short 1\n"
    assert megads.lines("clean.jsonl")[0] == lines[0]
    assert [each["dropped"] for each in megads.read("gone.jsonl")] == [
        {"reason": "language", "detail": "de"},
        {"reason": "short", "detail": f"{len(TEXTS['en'])} characters"},
        {"reason": "language", "detail": "none"},
        {"reason": "language", "detail": "none"},
    ]
    report = megads.report("clean.jsonl")
    assert report["reasons"]["language"]["documents"] == 3
    assert report["counts"] == {"repaired": 1}
