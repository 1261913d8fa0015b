"""What remove-duplicates refuses: one line, exit code 2, nothing written."""

from __future__ import annotations

import pytest

from tests.data.corpus.conftest import Corpus, megads, zygote
from tests.data.preprocess.conftest import tree

__all__ = ["megads", "zygote"]

CASES = {
    "no groups": (("none", "a.jsonl", "out"), "none: cannot be read: no such file or directory"),
    "a folder": (("folder", "a.jsonl", "out"), "folder: cannot be read: is a folder"),
    "no data": (("groups", "none", "out"), "--input none: no such file or directory"),
    "pairs as groups": (("pairs", "a.jsonl", "out"), "pairs:1: is not of the form {number: [id, ...]}"),
    "another key": (("groups", "a.jsonl", "out", "--key", "id"), "a.jsonl:1: has no key 'id'; it has 'url', 'text'"),
    "dropped into the output": (("groups", "a.jsonl", "out", "--dropped", "out"), "--dropped out: is the name of"),
    "too few words": (("groups", "a.jsonl"), "Missing argument 'OUTPUT'"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(megads: Corpus, name):
    words, told = CASES[name]
    megads.write("a.jsonl", [{"url": "u", "text": "some text"}])
    megads.write("groups", [{"0": ["a", "b"]}])
    megads.write("pairs", [{"a": [{"b": 0.9}, {"c": 0.8}]}])
    (megads.folder / "folder").mkdir()
    before = tree(megads.folder)
    done = megads("remove-duplicates", *words)
    assert (done.code, done.out) == (2, "")
    assert done.error.startswith(f"megads: {told}"), done.err
    assert tree(megads.folder) == before
