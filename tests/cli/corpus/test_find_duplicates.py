"""What find-duplicates refuses: one line, exit code 2, nothing written."""

from __future__ import annotations

import json

import pytest

from tests.data.corpus.conftest import Corpus, megads, zygote
from tests.data.preprocess.conftest import tree

__all__ = ["megads", "zygote"]

DATA = ("--inputs", "a.jsonl", "url")
OUT = ("--output", "out")
CASES = {
    "no input": (OUT, "--inputs is missing; pass --inputs FILE KEY, or --load-fingerprints FILE"),
    "no output": (DATA, "--output is missing; pass --output FILE for the pairs, or --save-fingerprints FILE"),
    "no key": (("--inputs", "a.jsonl", *OUT), "--inputs a.jsonl: pass a key behind each file"),
    "an empty key": (("--inputs", "a.jsonl", "", *OUT), "--inputs a.jsonl: its key is empty"),
    "a missing file": (("--inputs", "none", "url", *OUT), "--input none: no such file or directory"),
    "a folder": (("--inputs", "folder", "url", *OUT), "--input folder: is a folder"),
    "another key": (("--inputs", "a.jsonl", "id", *OUT), "a.jsonl:1: has no key 'id'; it has 'url', 'text'"),
    "an id that is a list": (("--inputs", "list.jsonl", "url", *OUT), "list.jsonl:1: 'url' is not a text or a whole"),
    "an id that is true": (("--inputs", "true.jsonl", "url", *OUT), "true.jsonl:1: 'url' is not a text or a whole"),
    "half a character": (("--inputs", "half.jsonl", "url", *OUT), "half.jsonl:1: 'url' holds half of a surrogate pair"),
    "no text": (("--inputs", "notext.jsonl", "url", *OUT), "notext.jsonl:2: has no key 'text'"),
    "broken JSON": (("--inputs", "broken.jsonl", "url", *OUT), "broken.jsonl:1: is not JSON"),
    "bands that do not divide": ((*DATA, *OUT, "--num-bands", 7), "--num-seeds 100 is not a multiple of --num-bands 7"),
    "more bands than seeds": ((*DATA, *OUT, "--num-seeds", 5), "--num-seeds 5 is not a multiple of --num-bands 20"),
    "no bands": ((*DATA, *OUT, "--num-bands", 0), "Invalid value for '--num-bands': 0 is not in the range"),
    "a negative seed": ((*DATA, *OUT, "--seed", -1), "Invalid value for '--seed': -1 is not in the range"),
    "no rounds": ((*DATA, *OUT, "--heuristic-iter", 0), "--heuristic-iter 0: pass a positive number, or -1"),
    "another similarity": ((*DATA, *OUT, "--jaccard", "dice"), "Invalid value for '--jaccard': 'dice' is not one of"),
    "texts as fingerprints": (("--load-fingerprints", "a.jsonl", *OUT), "a.jsonl:1: is not a fingerprint"),
    "fingerprints of another seed": (
        ("--load-fingerprints", "f.jsonl", *OUT),
        "f.jsonl:1: is a fingerprint of --seed 7, not 1234; pass the seed of the saved fingerprints",
    ),
    "fingerprints of other numbers": (
        ("--load-fingerprints", "f.jsonl", *OUT, "--seed", 7),
        "f.jsonl:1: is not a signature of 100 numbers; pass the --num-seeds of the saved fingerprints",
    ),
    "an output that is an input": ((*DATA, "--output", "a.jsonl"), "--output a.jsonl: is an input as well"),
    "fingerprints that are an input": (
        (*DATA, *OUT, "--save-fingerprints", "a.jsonl"),
        "--save-fingerprints a.jsonl: is an input as well",
    ),
    "two outputs of one name": (
        (*DATA, *OUT, "--save-fingerprints", "out"),
        "--save-fingerprints out: is the name of another output",
    ),
    "an output that exists": ((*DATA, "--output", "there"), "there: already exists; use another --output"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(megads: Corpus, name):
    words, told = CASES[name]
    row = {"url": "u", "text": "some text"}
    megads.write("a.jsonl", [row])
    megads.write("list.jsonl", [{**row, "url": ["u"]}])
    megads.write("true.jsonl", [{**row, "url": True}])
    megads.write("half.jsonl", ['{"url": "\\ud800", "text": "some text"}'])
    megads.write("notext.jsonl", [row, {"url": "v"}])
    megads.write("broken.jsonl", ["{"])
    megads.write("f.jsonl", [{"id": "u", "text": "t", "seed": 7, "signature": "AAAA"}])
    megads.write("there", [])
    (megads.folder / "folder").mkdir()
    before = tree(megads.folder)
    done = megads("find-duplicates", *words)
    assert (done.code, done.out) == (2, "")
    assert done.error.startswith(f"megads: {told}"), done.err
    assert tree(megads.folder) == before


def test_bad_lines_may_be_skipped(megads: Corpus):
    megads.write("a.jsonl", [{"url": "u", "text": "a text"}, {"text": "a text"}, {"url": "v", "text": "a text"}])
    done = megads.made("find-duplicates", *DATA, *OUT, "--max-bad-lines", 1)
    assert "skipped 1 bad lines: a.jsonl:2: has no key 'url'" in done.err
    assert megads.read("out") == [{"u": [{"v": 1.0}]}]
    assert json.loads((megads.folder / "out.report.json").read_text())["bad_lines"]["count"] == 1
