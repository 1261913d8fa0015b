"""What group-duplicates refuses: one line, exit code 2, nothing written."""

from __future__ import annotations

import pytest

from tests.data.corpus.conftest import Corpus, megads, zygote
from tests.data.preprocess.conftest import tree

__all__ = ["megads", "zygote"]

CASES = {
    "no file": ((), "Missing argument 'PAIRS'"),
    "no output": (("a",), "Missing argument 'OUTPUT'"),
    "a missing file": (("none", "out"), "--input none: no such file or directory"),
    "a threshold above 1": (("a", "out", 1.5), "THRESHOLD 1.5: a similarity is between 0 and 1"),
    "a threshold that is no number": (("a", "out", "nan"), "THRESHOLD nan: a similarity is between 0 and 1"),
    "a word as a threshold": (("a", "out", "high"), "Invalid value for '[THRESHOLD]': 'high' is not a valid float"),
    "documents": (("texts", "out"), "texts:1: is not of the form {id: [{id: similarity}, ...]}"),
    "a similarity that is a text": (("text", "out"), "text:2: is not of the form"),
    "a list": (("list", "out"), "list:1: is a list, not a JSON object"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(megads: Corpus, name):
    words, told = CASES[name]
    megads.write("a", [{"a": [{"b": 0.9}]}])
    megads.write("texts", [{"url": "u", "text": "some text"}])
    megads.write("text", [{"a": []}, {"a": [{"b": "0.9"}]}])
    megads.write("list", ["[]"])
    before = tree(megads.folder)
    done = megads("group-duplicates", *words)
    assert (done.code, done.out) == (2, "")
    assert done.error.startswith(f"megads: {told}"), done.err
    assert tree(megads.folder) == before
