from __future__ import annotations

from pathlib import Path

import pytest

from megads.data.file_list import Shard, read_file_list
from megads.errors import DataError


def test_reads_comments_blank_lines_suffixes_and_two_columns(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("# head\n\n0.5 a/x.bin wiki # tail\n  1e-1\t/abs/y.idx\tbooks\n2 z\n")
    assert read_file_list(path) == [
        Shard(0.5, str(tmp_path / "a/x"), "wiki"),
        Shard(0.1, "/abs/y", "books"),
        Shard(2.0, str(tmp_path / "z"), "z"),
    ]


def test_relative_prefix_starts_at_the_list_not_at_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "l.txt").write_text("1 ../d/x c\n")
    monkeypatch.chdir(tmp_path)
    assert read_file_list(Path("lists/l.txt"))[0].prefix == str(tmp_path / "lists" / "../d/x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 a b\n0.5\n", "list.txt:2: expected 'WEIGHT PREFIX CORPUS', got '0.5'"),
        ("1 a b c\n", "list.txt:1: expected 'WEIGHT PREFIX CORPUS', got '1 a b c'"),
        ("\nx a b\n", "list.txt:2: expected 'WEIGHT PREFIX CORPUS', but 'x' is not a number"),
        ("-1 a b\n", "list.txt:1: weight -1 must be"),
        ("nan a b\n", "list.txt:1: weight nan must be"),
        ("inf a b\n", "list.txt:1: weight inf must be"),
        ("0 a b\n0 c d\n", "list.txt: all weights are 0"),
        ("", "list.txt: lists no data"),
        ("# only this\n", "list.txt: lists no data"),
    ],
)
def test_wrong_lists_are_refused_with_path_and_line(tmp_path, text, expected):
    path = tmp_path / "list.txt"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        read_file_list(path)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_unreadable_lists_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_file_list(tmp_path / "none.txt")
    with pytest.raises(DataError, match="is a folder"):
        read_file_list(tmp_path)
    (tmp_path / "binary").write_bytes(b"1 a b\n\xff\xfe")
    with pytest.raises(DataError, match=r"not UTF-8 text \(byte 6\)"):
        read_file_list(tmp_path / "binary")
