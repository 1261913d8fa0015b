"""Drawn damage to files of every task: read rightly, or refused in one line that says where; never anything else."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from megads.data.tasks.examples import MOST_LINE, TaskFile
from megads.data.tasks.glue import MNLI_CLASSES, read_mnli, read_qqp
from megads.data.tasks.json_rows import read_json_rows
from megads.data.tasks.race import read_race
from megads.errors import DataError
from tests.data.tasks.files import MNLI_HEAD, mnli_line, race_object

ROWS = 6
DRAWS = 40
QQP_HEAD = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"


def _text(name: str) -> str:
    """Return a good file; the texts of every example say its label."""
    labels = [MNLI_CLASSES[number % 3] for number in range(ROWS)]
    if name == "mnli":
        return "\n".join([MNLI_HEAD, *(mnli_line(n, f"p {each}", "h", each) for n, each in enumerate(labels))]) + "\n"
    if name == "qqp":
        lines = [f"{n}\t1\t2\twho {n % 2}\twhat\t{n % 2}" for n in range(ROWS)]
        return "\n".join([QQP_HEAD, *lines]) + "\n"
    if name == "race":
        objects = [race_object(f"A {'BD'[n % 2]}", ("Who?",), "BD"[n % 2]) for n in range(ROWS)]
        return "".join(f"{json.dumps(each)}\n" for each in objects)
    return "".join(json.dumps({"text": f"t {each}", "label": each}) + "\n" for each in labels)


def _read(name: str, path: Path) -> list[tuple[str, str]]:
    """Return of every example its texts and the name of its label."""
    files: dict[str, Callable[[str], TaskFile]] = {"mnli": read_mnli, "qqp": read_qqp, "race": read_race}
    names: tuple[str, ...]
    if name == "jsonl":
        rows = read_json_rows([str(path)], [])
        (file,), names = rows.files, rows.classes
    else:
        file = files[name](str(path.parent if name == "race" else path))
        names = {"mnli": MNLI_CLASSES, "qqp": ("0", "1"), "race": tuple("ABCD")}[name]
    return [(" ".join(text or "" for text in each.pairs[0]), names[each.label]) for each in file.examples]


def _damage(kind: str, content: bytes, drawn: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    at, line = drawn.randrange(len(content)), drawn.randrange(len(lines))
    if kind == "cut":
        return content[:at]
    if kind in ("tab", "quote", "no utf-8", "zero", "line end"):
        added = {"tab": b"\t", "quote": b'"', "no utf-8": b"\xc3\x28", "zero": b"\0", "line end": b"\n"}[kind]
        return content[:at] + added + content[at:]
    if kind == "no tab":
        tabs = [place for place, byte in enumerate(content) if byte == 9] or [at]
        place = drawn.choice(tabs)
        return content[:place] + content[place + 1 :]
    if kind == "two heads":
        return content + lines[0]
    if kind == "no head":
        return b"".join(lines[1:])
    if kind == "twice":
        return b"".join([*lines[:line], lines[line].rstrip(b"\n"), *lines[line:]])
    return content[:at] + bytes([drawn.randrange(256)]) + content[at + 1 :]


KEEP_TEXTS = ("cut", "tab", "no tab", "two heads", "no head")
"""Damage that changes no text, so that a label that differs from it was taken from a wrong place."""


@pytest.mark.parametrize(
    "kind", ["cut", "tab", "no tab", "quote", "no utf-8", "zero", "line end", "two heads", "no head", "twice", "byte"]
)
@pytest.mark.parametrize("name", ["mnli", "qqp", "race", "jsonl"])
def test_damage_is_refused_in_a_line_or_changes_nothing_else(tmp_path, name, kind):
    drawn, whole = random.Random(f"{name} {kind}"), _text(name)
    path = tmp_path / "file.txt"
    path.write_text(whole)
    good = _read(name, path)
    assert len(good) == ROWS
    refused, is_table = 0, name in ("mnli", "qqp")
    for _ in range(DRAWS):
        path.write_bytes(_damage(kind, whole.encode(), drawn))
        try:
            found = _read(name, path)
        except DataError as error:
            refused += 1
            text = str(error)
            assert "\n" not in text
            assert len(text) < 400 + len(str(path))
            assert text.startswith((f"{path}:", f"{path.parent}:"))
            continue
        assert len(found) <= ROWS + 1
        if kind in KEEP_TEXTS and (is_table or kind == "cut"):
            for texts, label in found:
                assert label in texts.split(), (texts, label)
    assert refused or (not is_table and kind in ("tab", "no tab", "two heads", "no head"))


@pytest.mark.parametrize("name", ["mnli", "qqp", "race", "jsonl"])
@pytest.mark.parametrize("form", ["crlf", "mark", "gzip", "no end", "blank lines"])
def test_other_forms_of_the_same_file_are_the_same(tmp_path, name, form):
    path = tmp_path / "file.txt"
    text = _text(name)
    path.write_text(text)
    good = _read(name, path)
    forms = {
        "crlf": text.replace("\n", "\r\n").encode(),
        "mark": b"\xef\xbb\xbf" + text.encode(),
        "gzip": gzip.compress(text.encode()),
        "no end": text.rstrip("\n").encode(),
        "blank lines": text.encode() + b"\n \n",
    }
    path.write_bytes(forms[form])
    assert _read(name, path) == good


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", ": has no examples"),
        (b"\n\n", ": has no examples"),
        ("{}".encode("utf-16"), ": is UTF-16 text; expected .*"),
        (gzip.compress(b"{}" * 999, mtime=0)[:-9], ": is truncated: its gzip data is incomplete; .*"),
        (b'{"text": "a", "label": "\\ud800"}', ":1: a text has half of a surrogate pair, which is no character"),
        (b'{"text": "a", "label": 1}{"text": "a", "label": 2}', r":1: is not JSON \(line 1, .*"),
        (b"[" * 100_000, ":1: is nested deeper than 64 levels"),
        (b'{"text": "a", "premise": "b", "label": 1}', ":1: has premise besides text or choices; expected text; .*"),
        (b'{"text": "a", "label": " "}', ":1: label is ' '; expected a text, .*"),
    ],
    ids=["empty", "blank", "utf-16", "cut gzip", "surrogate", "two objects", "deep", "two kinds", "no label"],
)
def test_what_is_no_json_lines_is_refused_in_one_line(tmp_path, content, why):
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"^{path}{why}$"):
        read_json_rows([str(path)], [])


def test_an_endless_line_is_refused_before_it_fills_the_memory(tmp_path):
    path = tmp_path / "x.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "a", "label": 1}\n')
        file.truncate(100 * MOST_LINE)
    with pytest.raises(DataError, match=f"^{path}:2: a line of more than 64 MiB; expected one example per line$"):
        read_json_rows([str(path)], [])


def test_labels_that_are_equal_numbers_keep_an_order_on_every_rank(tmp_path):
    path = tmp_path / "x.jsonl"
    labels = ["1", "01", "10", "2", "9" * 5000, " 2 "]
    path.write_text("".join(json.dumps({"text": "a", "label": label}) + "\n" for label in labels))
    assert read_json_rows([str(path)], []).classes == ("01", "1", "2", "10", "9" * 5000)
