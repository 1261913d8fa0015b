"""Plain text files become JSON lines: each file a document, in order, byte for byte; what is not text is one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from megads.data.preprocess.plain_text import find_texts, write_documents
from megads.errors import ConfigError, DataError


def _rows(path: Path) -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]
    return [(row["text"], Path(row["source"]).name) for row in rows]


def test_each_file_is_a_document_as_it_is(tmp_path):
    (tmp_path / "notes/deep").mkdir(parents=True)
    texts = {"b.txt": "second\r\n\n  lines \n", "a.txt": "Zo\u00eb\u2028line", "deep/c.txt": "third", "d.md": "no"}
    for name, text in texts.items():
        (tmp_path / "notes" / name).write_bytes(text.encode())
    (tmp_path / "notes/empty.txt").write_text(" \n")
    (tmp_path / "notes/mark.txt").write_bytes(b"\xef\xbb\xbfmarked")
    output = tmp_path / "corpus.jsonl"
    made = write_documents([f"{tmp_path}/notes/**/*.txt", f"{tmp_path}/notes/d.md"], output)
    assert _rows(output) == [
        (texts["a.txt"], "a.txt"),
        (texts["b.txt"], "b.txt"),
        ("third", "c.txt"),
        ("marked", "mark.txt"),
        ("no", "d.md"),
    ]
    assert (made.documents, made.empty) == (5, (f"{tmp_path}/notes/empty.txt",))
    assert made.size == sum(len(text.encode()) for text, _ in _rows(output))


def test_another_encoding(tmp_path):
    (tmp_path / "old.txt").write_bytes("Zo\u00eb".encode("latin-1"))
    (tmp_path / "wide.txt").write_bytes("Zo\u00eb".encode("utf-16"))
    for name, encoding in (("old", "latin-1"), ("wide", "utf-16")):
        write_documents([f"{tmp_path}/{name}.txt"], tmp_path / name, encoding=encoding)
        assert _rows(tmp_path / name) == [("Zo\u00eb", f"{name}.txt")]


def test_names_of_any_bytes_and_halves_of_pairs(tmp_path):
    """JSON lines are UTF-8: a name that is not is shown escaped, and text that cannot be is one line."""
    (tmp_path / os.fsdecode(b"\xff.txt")).write_text("text")
    write_documents([f"{tmp_path}/*.txt"], tmp_path / "made")
    assert _rows(tmp_path / "made") == [("text", "\\xff.txt")]
    (tmp_path / "half").write_text("a \\ud800 b")
    with pytest.raises(DataError, match=r"half: has half a surrogate pair \(U\+D800\) in unicode_escape"):
        write_documents([f"{tmp_path}/half"], tmp_path / "none", encoding="unicode_escape")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        ("missing.txt", {}, "missing.txt: no such file or directory"),
        ("*.md", {}, "no file fits this pattern"),
        ("folder", {}, "folder: is a folder; pass its files, as in '.*folder/\\*\\*/\\*.txt'"),
        ("old.txt", {}, r"old.txt: is not utf-8 text \(byte 2 is 0xeb\); pass its encoding, e.g. --encoding latin-1"),
        ("binary", {}, r"binary: is not a text file \(it has NUL bytes\)"),
        ("empty.txt", {}, "1 file, and no text in it"),
        ("pipe", {}, "pipe: is a pipe, expected a regular file|pipe: is a pipe; expected a text file"),
        ("fine.txt", {"output": "fine.txt"}, "fine.txt: already exists; pass --overwrite"),
        ("fine.txt", {"output": "fine.txt", "overwrite": True}, "is one of the files to read"),
        (
            "fine.txt",
            {"output": "no/such/folder"},
            "cannot be written: no such file or directory; use another --output",
        ),
        ("fine.txt", {"encoding": "utf8x"}, "--encoding utf8x: Python has no such text encoding"),
        ("fine.txt", {"encoding": "base64"}, "--encoding base64: Python has no such text encoding"),
    ],
)
def test_what_is_refused_leaves_nothing_behind(name, how, message, tmp_path):
    (tmp_path / "old.txt").write_bytes(b"Zo\xeb")
    (tmp_path / "binary").write_bytes(b"PK\x03\x04\0\0")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "fine.txt").write_text("text")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    how = dict(how)
    output = tmp_path / how.pop("output", "out.jsonl")
    with pytest.raises((ConfigError, DataError), match=message):
        write_documents([f"{tmp_path}/{name}"], output, **how)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "fine.txt").read_text() == "text"


def test_files_stay_in_the_order_in_which_they_are_named(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.txt").touch()
    named = [f"{tmp_path}/c.txt", f"{tmp_path}/[ab].txt"]
    assert [Path(path).stem for path in find_texts(named)] == ["c", "a", "b"]
