"""What decontaminate refuses: one line, exit code 2, nothing written."""

from __future__ import annotations

import pytest

from tests.data.corpus.conftest import Corpus, megads, zygote
from tests.data.preprocess.conftest import tree

__all__ = ["megads", "zygote"]

LAMBADA = ("--tasks", "lambada", "--lambada-path", "l.jsonl")
DATA = ("--dedup-dataset", "a.jsonl", "text")
OUT = ("--output", "out")
CASES = {
    "no task": ((*DATA, *OUT), "Missing option '--tasks'"),
    "no corpus": ((*LAMBADA, *OUT), "Missing option '--dedup-dataset'"),
    "no key": ((*LAMBADA, "--dedup-dataset", "a.jsonl", *OUT), "--dedup-dataset a.jsonl: pass a file and the key"),
    "no output": ((*LAMBADA, *DATA), "--output is missing; pass --output FILE, or --save-dictionary FILE"),
    "a task without a file": (("--tasks", "race", *DATA, *OUT), "--tasks race: has no file; pass --task-path race="),
    "a path without a name": (
        ("--tasks", "race", "--task-path", "race.json", *DATA, *OUT),
        "--task-path race.json: expected NAME=VALUE, where NAME is one of --tasks race",
    ),
    "a path of another task": (
        ("--tasks", "race", "--task-path", "squad=s.json", *DATA, *OUT),
        "--task-path squad=s.json: 'squad' is not one of --tasks race",
    ),
    "a missing task file": (
        ("--tasks", "race", "--task-path", "race=none", *DATA, *OUT),
        "none: task race: cannot be read: no such file",
    ),
    "rows without the key": (
        ("--tasks", "race", "--task-path", "race=l.jsonl", *DATA, *OUT),
        "l.jsonl:1: has no key 'question'; it has 'text'; pass --task-key",
    ),
    "an empty task file": (
        ("--tasks", "race", "--task-path", "race=empty", *DATA, *OUT),
        "empty: holds no text of task race",
    ),
    "another key": ((*LAMBADA, "--dedup-dataset", "a.jsonl", "body", *OUT), "a.jsonl:1: has no key 'body'"),
    "a number that is none": ((*LAMBADA, "--dedup-dataset", "n.jsonl", "text", *OUT), "n.jsonl:1: 'split_id' is not a"),
    "sizes the wrong way round": (
        (*LAMBADA, *DATA, *OUT, "--min-ngram-size", 20),
        "--min-ngram-size 20 is above --max-ngram-size 13",
    ),
    "no words": ((*LAMBADA, *DATA, *OUT, "--max-ngram-size", 0), "Invalid value for '--max-ngram-size'"),
    "a negative length": ((*LAMBADA, *DATA, *OUT, "--filter-text-char-len", -1), "Invalid value for '--filter-text"),
    "a missing dictionary": (
        (*LAMBADA, *DATA, *OUT, "--load-dictionary", "none"),
        "--load-dictionary none: cannot be read: no such file",
    ),
    "texts as a dictionary": (
        (*LAMBADA, *DATA, *OUT, "--load-dictionary", "a.jsonl"),
        "--load-dictionary a.jsonl: has no list of n-grams; expected a file of --save-dictionary",
    ),
    "dropped without an output": (
        (*LAMBADA, *DATA, "--save-dictionary", "d", "--dropped", "x"),
        "--dropped x: nothing is dropped without --output",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(megads: Corpus, name):
    words, told = CASES[name]
    megads.write("a.jsonl", [{"url": "u", "text": "some text"}])
    megads.write("n.jsonl", [{"text": "some text", "split_id": 7}])
    megads.write("l.jsonl", [{"text": "a task of more than eight words for each of us"}])
    megads.write("empty", [])
    before = tree(megads.folder)
    done = megads("decontaminate", *words)
    assert (done.code, done.out) == (2, "")
    assert done.error.startswith(f"megads: {told}"), done.err
    assert tree(megads.folder) == before
