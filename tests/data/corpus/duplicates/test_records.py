"""Fingerprints in a file."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from megads.data.corpus.duplicates.minhash import Signer
from megads.data.corpus.duplicates.records import Comparer, Fingerprint, fingerprint_of, index_of
from megads.data.preprocess.input.json_lines import BadLine

TEXTS = {"a": "the first text is here", "b": "five.", "c": "\u20ac and another text", "a2": "the first text is near"}


def line(name: str, text: str) -> bytes:
    return Fingerprint(name, text, Signer(8, 3).sign(text), 3).line()


def test_a_line_is_read_again():
    content = json.loads(line("u", TEXTS["c"]))
    found = fingerprint_of(content, 8, 3)
    assert (found.id, found.text, found.seed) == ("u", TEXTS["c"], 3)
    assert found.signature.tolist() == Signer(8, 3).sign(TEXTS["c"]).tolist()
    assert found.line() == line("u", TEXTS["c"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": 7}, "is not a fingerprint; --load-fingerprints takes files that --save-fingerprints wrote"),
        ({"signature": None}, "is not a fingerprint"),
        ({"seed": "3"}, "is not a fingerprint"),
        ({"seed": 4}, "is a fingerprint of --seed 4, not 3; pass the seed of the saved fingerprints"),
        ({"signature": "AAAA"}, "is not a signature of 8 numbers; pass the --num-seeds of the saved fingerprints"),
    ],
)
def test_what_is_wrong_with_a_line(change, message):
    with pytest.raises(BadLine) as caught:
        fingerprint_of({**json.loads(line("u", "some text")), **change}, 8, 3)
    assert str(caught.value).startswith(message)


def test_an_index_has_the_first_of_each_id_and_no_short_text(tmp_path):
    path = tmp_path / "records"
    rows = [("a", TEXTS["a"]), ("b", TEXTS["b"]), ("c", TEXTS["c"]), ("a", TEXTS["c"]), ("a2", TEXTS["a2"])]
    path.write_bytes(b"".join(line(*row) + b"\n" for row in rows))
    index = index_of(path, tmp_path, 8, lambda: None)
    assert (index.repeated, index.short) == (1, 1)
    file = os.open(path, os.O_RDONLY)
    try:
        assert [index.id(number, file) for number in range(len(index.starts))] == ["a", "c", "a2"]
        found = Comparer(index, file, "min")(np.array([[0, 1], [0, 2], [1, 2]]))
    finally:
        os.close(file)
    wanted = [Signer(8, 3).sign(TEXTS[name]).tolist() for name in ("a", "c", "a2")]
    assert index.signatures.tolist() == wanted
    first, second = ({text[at : at + 5] for at in range(len(text) - 5)} for text in (TEXTS["a"], TEXTS["a2"]))
    assert found[1] == len(first & second) / min(len(first), len(second))


def test_an_empty_file_has_no_documents(tmp_path):
    (tmp_path / "records").write_bytes(b"")
    index = index_of(tmp_path / "records", tmp_path, 8, lambda: None)
    assert (len(index.starts), index.signatures.shape) == (0, (0, 8))
