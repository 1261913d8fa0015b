"""The tasks of Megatron-LM's cleanup_fix_dataset.py, against a plain reading of its rules."""

from __future__ import annotations

import itertools
import json
import re

import ftfy
import py3langid
import pytest

from megads.data.corpus.cleaning.tasks import TASKS, Tasks
from megads.data.corpus.frame.step import Lines
from megads.errors import ConfigError
from tests.data.corpus.cleaning.test_language import TEXTS

TEXT = TEXTS["en"]
GOLDEN = [
    TEXT * 6,
    TEXT,
    "Enable JavaScript to read this page. " + TEXT,
    "Enable JavaScript to read this page. " + TEXT * 4,
    "x" * 511,
    "x" * 512,
    "javascript" + "x" * 245,
    "javascript" + "x" * 246,
    TEXTS["de"],
    TEXTS["de"] * 9,
    "It\u00e2\u20ac\u2122s  \u201cfine\u201d &amp; true.\n\n Next\nline \n\n end.  " + TEXT * 6,
    "It\u2019s fine.\nNext  word\n\n and\n more \n" + TEXT,
    "",
]


def expected(text: str, tasks: tuple[str, ...]) -> tuple[str, str]:
    """Return (the task that drops a text, "") or ("", the text that is kept)."""
    if "remove_512" in tasks and len(text) < 512:
        return "remove_512", ""
    if "remove_256_javascript" in tasks and len(text) < 256 and "javascript" in text.lower():
        return "remove_256_javascript", ""
    if "remove_512_non_english" in tasks and len(text) < 512 and (not text or py3langid.classify(text)[0] != "en"):
        return "remove_512_non_english", ""
    if "ftfy_fix_text" in tasks:
        return "", ftfy.fix_text(text)
    if "general_cleaning" in tasks:
        return "", re.sub(r"  +|\b\n+ |\b\n+", " ", text)
    return "", text


@pytest.mark.parametrize("tasks", [each for count in range(1, 6) for each in itertools.combinations(TASKS, count)])
def test_golden_lines(tasks):
    lines = [json.dumps({"text": text, "n": number}, ensure_ascii=False) for number, text in enumerate(GOLDEN)]
    step = Tasks(tasks[::-1])
    result = step.block(Lines("\n".join(lines).encode(), 0, 0))
    verdicts = [expected(text, tasks) for text in GOLDEN]
    outputs = [b"".join(pieces).decode().splitlines() for pieces in result.outputs]
    assert outputs[0] == [
        json.dumps({"text": text, "n": number}, ensure_ascii=False)
        for number, (task, text) in enumerate(verdicts)
        if not task
    ]
    found = [json.loads(line) for line in outputs[1]]
    assert [(each["n"], each["text"], each["dropped"]["reason"]) for each in found] == [
        (number, GOLDEN[number], task) for number, (task, _) in enumerate(verdicts) if task
    ]
    assert bool(step.note) == ({"ftfy_fix_text", "general_cleaning"} <= set(tasks))


def test_refused():
    with pytest.raises(ConfigError, match="--tasks remove_1: unknown; some of remove_512 "):
        Tasks(("remove_512", "remove_1"))
    with pytest.raises(ConfigError, match="--tasks: names no task"):
        Tasks(())


def test_command(megads):
    """As Megatron's tool is called: names of the files in a folder."""
    for name in ("a.jsonl", "b.json"):
        megads.write(name, [{"text": text} for text in GOLDEN])
    words = ["--input-files", "a.jsonl", "b.json", "--output-path", "new/dir", "--tasks", "remove_512", "ftfy_fix_text"]
    done = megads.made("clean", *words, "--log-interval", 100)
    kept = sum(len(text) >= 512 for text in GOLDEN)
    assert [line.partition(",")[0] for line in done.out.splitlines()] == [
        f"new/dir/{name}  # kept {kept} of 13 documents" for name in ("a_cleaned.jsonl", "b_cleaned.json")
    ]
    assert len(megads.read("new/dir/b_filtered.json")) == 13 - kept
