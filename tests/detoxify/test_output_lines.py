"""Lines that are written in order, and what a killed command leaves."""

from __future__ import annotations

import errno
import json
import os

import pytest

from megads.detoxify.output_lines import OutputLines, report_of
from megads.errors import DataError

ABOUT = {"seed": 1, "pair": (1, 2)}


def _lines(count, first=0):
    return [{"id": number, "text": "\ud800\u00e9"} for number in range(first, first + count)]


@pytest.fixture
def target(tmp_path):
    return tmp_path / "out.jsonl"


def _texts(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_complete_file_has_its_name_and_the_same_command_has_nothing_to_do(target):
    with OutputLines(target, ABOUT) as lines:
        lines.write(_lines(3))
        assert not target.exists()
        lines.publish(empty=1)
    assert _texts(target) == _lines(3)
    report = json.loads(report_of(target).read_text())
    assert report == {"about": {"seed": 1, "pair": [1, 2]}, "lines": 3, "bytes": target.stat().st_size, "empty": 1}
    assert sorted(path.name for path in target.parent.iterdir()) == ["out.jsonl", "out.jsonl.report.json"]
    with OutputLines(target, ABOUT) as lines:
        assert lines.is_complete
        assert lines.done == 3


@pytest.mark.parametrize(
    "damage", [b"", b'{"id": 9', b'{"id": 9}', b"\0" * 40, b"\0" * 40 + b'\n{"id": 9}\n', b"[1]\n"]
)
@pytest.mark.parametrize(("unit", "kept"), [(1, 5), (2, 4), (7, 0)])
def test_what_a_crash_leaves_is_cut_to_whole_units(target, damage, unit, kept):
    with OutputLines(target, ABOUT, unit=unit) as lines:
        lines.write(_lines(5))
    part = target.with_name("out.jsonl.part")
    part.write_bytes(part.read_bytes() + damage)
    with OutputLines(target, ABOUT, unit=99) as lines:
        assert lines.done == kept
        assert lines.unit == unit  # of the call that began it
        lines.write(_lines(8 - kept, kept))
        lines.publish()
    assert _texts(target) == _lines(8)


def test_what_another_command_made_is_kept_unless_overwritten(target):
    target.write_text("mine\n")
    with pytest.raises(DataError, match=r"out.jsonl: already exists; pass another file, or --overwrite"):
        OutputLines(target, ABOUT)
    with OutputLines(target, ABOUT, overwrite=True) as lines:
        lines.write(_lines(1))
        lines.publish()
    with pytest.raises(DataError, match=r"already exists, made with seed 1, not 2; pass another file, or --overwrite"):
        OutputLines(target, {**ABOUT, "seed": 2})
    target.write_text("changed\n")
    with pytest.raises(DataError, match=r"already exists; pass"):
        OutputLines(target, ABOUT)


def test_a_part_of_another_command_is_kept_unless_overwritten(target):
    with OutputLines(target, ABOUT) as lines:
        lines.write(_lines(2))
    with pytest.raises(DataError, match=r"out.jsonl.part: begun with seed 1, not 2"):
        OutputLines(target, {**ABOUT, "seed": 2})
    with OutputLines(target, {**ABOUT, "seed": 2}, overwrite=True) as lines:
        assert lines.done == 0
    # The same command resumes, also with --overwrite.
    with OutputLines(target, {**ABOUT, "seed": 2}, overwrite=True) as lines:
        lines.write(_lines(1))
    with OutputLines(target, {**ABOUT, "seed": 2}, overwrite=True) as lines:
        assert lines.done == 1


def test_one_process_writes_a_file(target):
    with (
        OutputLines(target, ABOUT),
        pytest.raises(DataError, match="another process writes it"),
    ):
        OutputLines(target, ABOUT)
    OutputLines(target, ABOUT).close()


def test_places_that_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("pipe", "is a pipe"), ("", "is a folder"), ("no/x", "its folder does not exist")):
        with pytest.raises(DataError, match=words):
            OutputLines(tmp_path / name, ABOUT)


def test_a_full_disk_is_one_line_and_what_is_written_stays(target, monkeypatch):
    def full(handle, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with OutputLines(target, ABOUT) as lines:
        lines.write(_lines(2))
        monkeypatch.setattr("megads.detoxify.output_lines.os.write", full)
        with pytest.raises(
            DataError, match=r"out.jsonl: cannot be written: No space left on device; free some space or"
        ):
            lines.write(_lines(1, 2))
        monkeypatch.undo()
    with OutputLines(target, ABOUT) as lines:
        assert lines.done == 2


def test_lines_are_flushed_now_and_then(target, monkeypatch):
    flushed, now = [], [0.0]
    monkeypatch.setattr("megads.detoxify.output_lines.os.fsync", flushed.append)
    with OutputLines(target, ABOUT, now=lambda: now[0]) as lines:
        before = len(flushed)
        for now[0] in (1.0, 4.0, 6.0, 8.0, 12.0):
            lines.write(_lines(1))
        assert len(flushed) - before == 2
