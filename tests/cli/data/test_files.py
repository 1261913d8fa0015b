"""``megads data merge``, ``info`` and ``check`` through the command: what works, and what is wrong in one line each."""

from __future__ import annotations

import json
import os
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from megads.cli import main
from megads.data.formats.record import Record, write_record
from megads.data.formats.writer import IndexedWriter
from megads.data.tokenizers.train import train_bpe
from tests.data.factory import write_dataset, write_list

pytestmark = pytest.mark.timeout(120)
RECORD = Record("f" * 64, "HFTokenizer", "tokenizer.json", 100, None, 3, 3, 12, sources=("a.jsonl",))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder to work in: ``a`` and ``b`` (mmap, uint16, 3 documents, ids below 100), ``t`` (cached, int32), lists."""
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path, [3, 4, 5], name="a", seed=1)
    write_dataset(tmp_path, [5, 0, 7, 2], name="b", seed=2)
    with IndexedWriter(tmp_path / "t", "i4", "cached") as writer:
        writer.add_batch(np.arange(6), np.array([2, 3, 1]), np.array([2, 0, 1]))
        writer.finalize()
    write_list(tmp_path / "list.txt", "2 a wiki", "1 b # books")
    return tmp_path


def _call(*words: str, **env: str) -> Result:
    return CliRunner().invoke(main, ["data", *words], env=env)


def _tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in sorted(folder.rglob("*"))}


def _change(name: str, start: int, content: bytes) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        with (folder / name).open("r+b") as file:
            file.seek(start)
            file.write(content)

    return apply


def _cut(name: str, size: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def _swap(one: str, other: str) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        (folder / one).rename(folder / "between")
        (folder / other).rename(folder / one)
        (folder / "between").rename(folder / other)

    return apply


def _lines(*lines: str) -> Callable[[Path], object]:
    return lambda folder: write_list(folder / "list.txt", *lines)


def _remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def _instead(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return apply


def _nothing(folder: Path) -> None:
    """Leave everything as it is."""


def _record(**change: object) -> Callable[[Path], object]:
    return lambda folder: write_record(folder / "a", replace(RECORD, **change))


Q = struct.Struct("<q").pack
BROKEN = {
    # the index
    "no index": (_remove("a.idx"), "check a", "a.idx: no such file; a data prefix is the common part"),
    "no tokens": (_remove("a.bin"), "check a", "a.bin: no such file"),
    "empty index": (_cut("a.idx", 0), "check a", "a.idx: is empty, expected token data"),
    "empty tokens": (_cut("a.bin", 0), "check a", "a.bin: has 0 bytes, expected 24 from a.idx"),
    "half a header": (_cut("a.idx", 20), "check a", "a.idx: truncated, 20 bytes, expected at least the 34"),
    "half the index": (_cut("a.idx", 60), "check a", "a.idx: 60 bytes, expected 102 for 3 sequences"),
    "a byte too many": (_change("a.idx", 102, b"x"), "check a", "a.idx: 103 bytes, expected 102"),
    "tokens cut": (_cut("a.bin", 23), "check a", "a.bin: has 23 bytes, expected 24"),
    "tokens too many": (_change("a.bin", 24, b"xx"), "check a", "a.bin: has 26 bytes, expected 24"),
    "swapped": (_swap("a.idx", "a.bin"), "check a", "of Megatron's mmap format"),
    "of another pair": (_swap("a.bin", "b.bin"), "check a", "a.bin: has 28 bytes, expected 24"),
    "magic": (_change("a.idx", 0, b"PK\3\4"), "check a", "expected b'MMIDIDX"),
    "version": (_change("a.idx", 9, b"\2"), "check a", "a.idx: format version 2, expected 1"),
    "dtype 6": (_change("a.idx", 17, b"\6"), "check a", "dtype code 6 is floats, not tokens; expected one of 1, 2, 3"),
    "dtype 7": (_change("a.idx", 17, b"\7"), "check a", "dtype code 7 is floats, not tokens"),
    "dtype 0": (_change("a.idx", 17, b"\0"), "check a", "dtype code 0 is unknown"),
    "another dtype": (_change("a.idx", 17, b"\4"), "check a", "the two files do not belong together"),
    "huge count": (_change("a.idx", 18, b"\xff" * 8), "check a", "18446744073709551615 sequences"),
    "count": (_change("a.idx", 18, b"\4"), "check a", "a.idx: 102 bytes, expected 114 for 4 sequences"),
    "no documents": (_change("a.idx", 26, b"\0"), "check a", "a.idx: 102 bytes, expected 70"),
    "negative length": (_change("a.idx", 34, b"\xff" * 4), "check a", "a.idx: sequence 0 has -1 tokens"),
    "length": (_change("a.idx", 34, b"\4"), "check a", "sequence 1 starts at 6, but the one before it ends at 8"),
    "start": (_change("a.idx", 46, Q(2**60)), "check a", "a.idx: sequence 0 starts at 1152921504606846976"),
    "documents fall": (_change("a.idx", 78, Q(3)), "check a", "a.idx: document 1 runs from sequence 3 to 2"),
    "first document": (_change("a.idx", 70, Q(1)), "check a", "document index: it runs from 1 to 3"),
    "cached: header": (_cut("t.idx", 50), "check t", "t.idx: truncated, 50 bytes, expected at least the 56"),
    "cached: version": (_change("t.idx", 8, b"\5"), "check t", "t.idx: format version 5, expected 1"),
    "cached: dtype 7": (_change("t.idx", 16, b"\7"), "info t", "t.idx: dtype code 7 is floats"),
    "cached: item size": (_change("t.idx", 24, b"\2"), "info t", "tokens of 2 bytes, but int32 has 4"),
    "cached: dimensions": (_change("t.idx", 64, Q(2)), "check t", "sequence 1 has its size at 2, expected 1"),
    "cached: sizes": (_change("t.idx", 40, Q(4)), "check t", "t.idx: 4 sizes for 3 sequences"),
    "cached: start": (
        _change("t.idx", 88, Q(-4)),
        "check t",
        "sequence 0 starts at -4, expected 0",
    ),
    # tokens and records
    "ids beyond the vocabulary": (
        _nothing,
        "check a --vocab-size 20",
        "are not 0..19: the first is 37, at place 0",
    ),
    "negative ids": (_change("t.bin", 4, b"\xff" * 4), "check t", "1 tokens are not 0 or larger: the first is -1"),
    "record of other files": (_record(tokens=13), "check a", "a.info.json: says 13 tokens, the files have 12"),
    "record of no sense": (lambda f: (f / "a.info.json").write_bytes(b"{"), "check a", "a.info.json: is not a valid"),
    "eod": (_record(eod=99), "check a", "ends with token"),
    # what lies under a name
    "a folder": (_instead("a.bin", Path.mkdir), "check a", "a.bin: is a folder; expected a regular file"),
    "a pipe": (_instead("a.idx", os.mkfifo), "check a", "a.idx: is a pipe; expected a regular file"),
    "a device": (_instead("a.bin", lambda p: p.symlink_to("/dev/zero")), "check a", "a.bin: is a device"),
    "a circle of links": (_instead("a.idx", lambda p: p.symlink_to(p)), "check a", "too many levels of symbolic links"),
    "an empty folder": (lambda f: (f / "e").mkdir(), "check e", "e: has no .bin and .idx files"),
    "half a pair in a folder": (_remove("b.bin"), "check .", "b.bin: is missing; remove its partner"),
    # lists
    "no list": (_nothing, "check gone.txt", "gone.txt.idx: no such file"),
    "an empty list": (_lines("# nothing"), "check list.txt", "list.txt: lists no data; write 'WEIGHT PREFIX CORPUS'"),
    "one column": (_lines("a"), "check list.txt", "list.txt:1: expected 'WEIGHT PREFIX CORPUS', got 'a'"),
    "four columns": (_lines("", "1 a b c"), "check list.txt", "list.txt:2: expected 'WEIGHT PREFIX CORPUS', got"),
    "weight: a word": (_lines("much a"), "check list.txt", "list.txt:1: expected 'WEIGHT PREFIX CORPUS', but 'much'"),
    "weight: negative": (_lines("1 a", "-0.1 b"), "check list.txt", "list.txt:2: weight -0.1 must be a finite number"),
    "weight: nan": (_lines("nan a"), "check list.txt", "list.txt:1: weight nan must be a finite number"),
    "weight: inf": (_lines("inf a"), "info list.txt", "list.txt:1: weight inf must be a finite number"),
    "weights: all zero": (_lines("0 a", "0 b"), "check list.txt", "list.txt: all weights are 0"),
    "a variable": (_lines("1 $NOT_SET/a"), "check list.txt", "list.txt:1: $NOT_SET/a: NOT_SET is not set; export NOT"),
    "a file twice": (_lines("1 a", "2 ./a.bin x"), "check list.txt", "a: is listed twice"),
    "a missing file": (_lines("1 a", "2 c"), "check list.txt", "c.idx: no such file"),
    "the name of a folder": (
        lambda f: ((f / "d").mkdir(), _lines("1 d x")(f)),
        "check list.txt",
        "is a folder, name",
    ),
    "a list that is a pipe": (
        _instead("list.txt", os.mkfifo),
        "check list.txt",
        "list.txt: is a pipe; pass a text",
    ),
    "a list of bytes": (lambda f: (f / "list.txt").write_bytes(b"1 \xff"), "check list.txt", "not UTF-8 text (byte 2)"),
    # joining
    "nothing to join": (_nothing, "merge --output-prefix o", "nothing to merge; name prefixes, or --input DIR"),
    "no output": (_nothing, "merge a b", "Missing option '--output-prefix'"),
    "output is an input": (_nothing, "merge a b --output-prefix ./b.idx", "b.bin: is an input, too"),
    "formats": (_nothing, "merge a t --output-prefix o", "t: is a cached file but a is mmap"),
    "types": (lambda f: write_dataset(f, [3], vocab=70000, name="c"), "merge a c --output-prefix o", "c: holds int32"),
    "a broken input": (
        _change("b.idx", 34, b"\4"),
        "merge a b --output-prefix o",
        "b.idx: sequence 1 starts at 10",
    ),
    "a missing input": (_nothing, "merge --datasets a gone --output-prefix o", "gone.idx: no such file"),
    "tokenizers": (
        lambda f: (write_record(f / "a", RECORD), write_record(f / "b", replace(RECORD, tokenizer="e" * 64))),
        "merge --datasets a b --output-prefix o",
        "b: was made with other options than a (tokenizer",
    ),
    "no folder for the output": (_nothing, "merge a --output-prefix no/o", "no/o: cannot be written: no such file or"),
    "no input folder": (_nothing, "merge --input no --output-prefix o", "no: no such file or directory; use a folder"),
}


@pytest.mark.parametrize(("damage", "words", "told"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_inputs_are_one_line_and_nothing_is_written(folder, damage, words, told):
    damage(folder)
    before = _tree(folder)
    done = _call(*words.split())
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("megads: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert told in done.stderr
    assert _tree(folder) == before


def _run(folder: Path, *words: str, size: int | None = None) -> subprocess.CompletedProcess[str]:
    limit = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))) if size else None
    return subprocess.run(
        [sys.executable, "-m", "megads", "data", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=limit,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf8",
        check=False,
    )


@pytest.mark.parametrize("name", ["ids beyond the vocabulary", "a pipe", "weight: negative", "output is an input"])
def test_the_real_command_says_the_same(folder, name):
    damage, words, told = BROKEN[name]
    damage(folder)
    done = _run(folder, *words.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert told in done.stderr


def test_a_full_disk(folder):
    write_dataset(folder, [9000] * 3, name="big")
    before = _tree(folder)
    done = _run(folder, "merge", "a", "big", "--output-prefix", "o", size=20000)
    assert done.returncode == 2
    assert done.stderr == "megads: o: cannot be written: file too large; free some space or use another folder\n"
    assert _tree(folder) == before


@pytest.mark.parametrize(
    "words",
    [
        "merge a b --output-prefix o",
        "merge --datasets a b --output-prefix o --merge serial",
        "merge --output-prefix o --torch-backend gloo --merge distributed --datasets a.bin b.idx",
        "merge --input only --output-prefix o",
        "merge --output-prefix only/o.bin --input only",
    ],
)
def test_spellings_of_merge(folder, words):
    (folder / "only").mkdir()
    for name in ("a.bin", "a.idx", "b.bin", "b.idx"):
        shutil.copy(folder / name, folder / "only" / name)
    for _ in range(2):  # the second time, over what the first has left
        done = _call(*words.split())
        assert done.exit_code == 0, done.output
        assert "7 documents, 6 sequences, 26 tokens of 2 files" in done.stdout
    output = folder / ("only/o" if "only/o" in words else "o")
    assert Path(f"{output}.bin").read_bytes() == (folder / "a.bin").read_bytes() + (folder / "b.bin").read_bytes()
    assert _call("check", str(output)).exit_code == 0


def test_a_list_is_checked_and_shown_whole(folder):
    write_list(folder / "list.txt", "2 a wiki", "1 b # books", "1 $MORE/t")
    done = _call("check", "list.txt", MORE=str(folder))
    assert done.exit_code == 0, done.output
    assert f"{folder}/t: valid, 3 documents, 6 tokens, highest token 5" in done.stdout
    assert "3 of 3 files are valid, 32 tokens" in done.stdout
    shown = _call("info", "list.txt", MORE=str(folder)).stdout
    assert f"{folder}/a   50 % of samples, corpus wiki" in shown
    assert "TNTIDX (cached, lazy), int32, 24 B + 176 B of index" in shown


def test_each_problem_of_a_list_is_a_line(folder):
    _cut("a.bin", 23)(folder)
    _change("t.bin", 0, b"\xff" * 4)(folder)
    write_list(folder / "list.txt", "2 a wiki", "1 b", "1 gone", "1 t", "1 b")
    done = _call("check", "list.txt")
    assert done.exit_code == 2
    assert [line.partition(": ")[2][:40] for line in done.stderr.splitlines()] == [
        each[:40]
        for each in (
            f"{folder}/a.bin: has 23 bytes",
            f"{folder}/gone.idx: no such file",
            f"{folder}/t.bin: 1 tokens are not",
            f"{folder}/b: is listed twice",
        )
    ]
    assert "1 of 4 files are valid" in done.stdout


def test_files_of_two_tokenizers_in_one_list_are_told(folder):
    write_record(folder / "a", RECORD)
    write_record(folder / "b", replace(RECORD, tokenizer="e" * 64, documents=4, tokens=14))
    done = _call("check", "list.txt")
    assert done.exit_code == 2
    assert f"{folder}/b: was made with HFTokenizer tokenizer.json, but {folder}/a with" in done.stderr


def test_info_as_json_and_as_text(folder):
    write_record(folder / "a", RECORD)
    found = [json.loads(line) for line in _call("info", "--json", "a", "b.idx").stdout.splitlines()]
    assert [each["tokens"] for each in found] == [12, 14]
    assert found[0]["record"]["vocab_size"] == 100
    assert found[1]["documents"]["empty"] == 1
    text = _call("info", "a").stdout
    assert "HFTokenizer tokenizer.json, vocabulary 100, no eod, ffffffffffff" in text
    assert "a.jsonl, key text" in text
    assert "3, tokens each: 3 to 5, mean 4.0" in text


def test_quick_leaves_the_tokens_out(folder):
    assert _call("check", "a", "--vocab-size", "2", "--quick").exit_code == 0
    assert _call("check", "a", "--vocab-size", "2").exit_code == 2


def test_text_by_another_tokenizer_than_the_files_is_told(folder, tmp_path):
    name = write_dataset(folder, [3], name="made")
    write_record(name, RECORD)
    train_bpe(["a b c"], 257).save(str(folder / "other.json"))
    done = _call("info", "made", "--tokenizer-model", "other.json")
    assert done.exit_code == 0
    assert done.stderr == "megads: made: was made with a different tokenizer\n"


def test_without_a_command_there_is_help():
    done = CliRunner().invoke(main, ["data"])
    assert done.exit_code == 2
    assert "\nCommands:\n  from-text " in done.stderr
