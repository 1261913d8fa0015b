"""What wikipedia refuses: one line, exit code 2, nothing written."""

from __future__ import annotations

import bz2
import os

import pytest

from tests.data.corpus.conftest import Corpus, megads, zygote
from tests.data.corpus.wikipedia.made import dump, page
from tests.data.preprocess.conftest import tree

__all__ = ["megads", "zygote"]

CASES = {
    "no output": (("w.xml",), "Missing argument 'OUTPUT'"),
    "a missing dump": (("none", "out"), "--input none: no such file or directory"),
    "a folder": (("folder", "out"), "--input folder: is a folder"),
    "an empty file": (("empty", "out"), "empty: line 1, byte 0: is not well-formed XML (no element found)"),
    "JSON lines": (("a.jsonl", "out"), "a.jsonl: line 1, byte 0: is not well-formed XML"),
    "another XML": (("html", "out"), "html: line 1, byte 0: begins with <html>; expected <mediawiki>"),
    "a bomb": (("bomb", "out"), "bomb: line 1, byte "),
    "a dump that is cut off": (("cut.xml", "out"), "cut.xml: line "),
    "compressed data that is cut off": (("cut.bz2", "out"), "cut.bz2: "),
    "compressed data that is broken": (("broken.bz2", "out"), "broken.bz2: broken bzip2 data"),
    "several dumps": (("cut*", "out"), "cut*: fits 2 files; pass one dump at a time"),
    "an output that exists": (("w.xml", "html"), "html: already exists; use another output, or --overwrite"),
    "an output that is a folder": (("w.xml", "folder"), "OUTPUT 'folder': is a folder; pass a file name"),
    "an output that is packed": (("w.xml", "out.gz"), "OUTPUT out.gz: the output is plain text"),
    "an output that is the dump": (("w.xml", "w.xml", "--overwrite"), "OUTPUT w.xml: is the dump"),
    "lines": (("w.xml", "out", "--max-bad-lines", 3), "--max-bad-lines 3: a dump has pages, not lines"),
    "too many processes": (("w.xml", "out", "--workers", 10**6), "--workers 1000000: at most"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(megads: Corpus, name):
    words, told = CASES[name]
    data = dump([page(number, f"t{number}", "text " * 50) for number in range(1, 40)])
    packed = bz2.compress(data)
    broken = bytearray(packed)
    broken[len(packed) // 2] ^= 0xFF
    files = {
        "w.xml": data,
        "empty": b"",
        "html": b"<html></html>",
        "bomb": b'<!DOCTYPE m [<!ENTITY a "b">]><mediawiki>&a;</mediawiki>',
        "cut.xml": data[: len(data) // 2],
        "cut.bz2": packed[: len(packed) // 2],
        "broken.bz2": bytes(broken),
    }
    for file, content in files.items():
        (megads.folder / file).write_bytes(content)
    megads.write("a.jsonl", [{"text": "a"}])
    (megads.folder / "folder").mkdir()
    before = tree(megads.folder)
    done = megads("wikipedia", *words)
    assert (done.code, done.out) == (2, "")
    assert done.error.startswith(f"megads: {told}"), done.err
    assert tree(megads.folder) == before


def test_ranks_are_refused(megads: Corpus):
    env = {**os.environ, "MEGADS_RANK": "0", "MEGADS_WORLD_SIZE": "2", "MEGADS_LOCAL_RANK": "0"}
    done = megads("wikipedia", "w.xml", "out", env=env)
    assert done.code == 2
    assert done.error == "megads: megads corpus wikipedia reads a dump in one process, not in 2 ranks; use --workers"
