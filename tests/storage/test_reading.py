"""JSON and YAML that anybody may have written: one line for whatever is in the way, and nothing is waited for."""

from __future__ import annotations

import os
import socket
import time

import pytest
import yaml

from megads.storage.reading import DEEPEST, Bounds, parse_json, parse_yaml, read_bytes, read_json, read_yaml

DEEP = DEEPEST + 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nested deeper than 64"),
        ("[" * DEEP + "]" * DEEP, "nested deeper than 64"),
        ('{"a":' * DEEP + "1" + "}" * DEEP, "nested deeper than 64"),
        ("1" * 5000, "is not JSON"),
        ("[1, 2", "line 1, column 6"),
        (b"\xff\xfe\xff", "is not JSON"),
        (b'"\xff"', "byte 1 is not UTF-8"),
        ("", "is not JSON"),
    ],
)
def test_json_out_of_bounds_is_one_reason(text, reason):
    with pytest.raises(Bounds, match=reason):
        parse_json(text)


def test_json_within_bounds_is_read():
    assert parse_json("[" * DEEPEST + "]" * DEEPEST) is not None
    assert parse_json('["' + "[" * 200 + '"]') == ["[" * 200]
    assert parse_json(b'{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nested deeper than 64"),
        ("- " * 100_000, "nested deeper than 64"),
        ("? " * 10_000, "nested deeper than 64"),
        ("{a: " * DEEP + "1" + "}" * DEEP, "nested deeper than 64"),
        ("a: &a [1]\nb: [" + "*a, " * 17 + "]", "more than 16 aliases"),
        ("a: 2001-13-45", "is not YAML"),
        ("a: " + "1" * 5000, "is not YAML"),
    ],
)
def test_yaml_out_of_bounds_is_one_reason(text, reason):
    with pytest.raises(Bounds, match=reason):
        parse_yaml(text)


def test_yaml_within_bounds_is_read_and_its_own_errors_stay():
    assert parse_yaml("a: {b: [1, 2]}\nc: &x 3\nd: *x") == {"a": {"b": [1, 2]}, "c": 3, "d": 3}
    with pytest.raises(yaml.YAMLError):
        parse_yaml("a: b: c")
    with pytest.raises(yaml.YAMLError):
        parse_yaml("!!python/object:os.system x")


def test_what_is_no_file_is_never_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)  # the name of a socket is short
        listening.bind("socket")
        began = time.monotonic()
        for name, kind in {"pipe": "a pipe", "folder": "a folder", "socket": "a socket"}.items():
            with pytest.raises(OSError, match=f"is {kind}, expected a regular file"):
                read_json(tmp_path / name)
        with pytest.raises(OSError, match="is a device"):
            read_yaml("/dev/zero")
        with pytest.raises(OSError, match=r"null (byte|character)"):
            read_bytes("a\0b")
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none")
    assert time.monotonic() - began < 50


def test_a_file_that_is_too_long_is_not_read(tmp_path):
    path = tmp_path / "long"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="more than 64 MiB"):
        read_json(path)
    path.write_bytes(b" " * 1025)
    with pytest.raises(OSError, match="more than 1 KiB"):
        read_bytes(path, 1024)
    assert len(read_bytes(path, 1025)) == 1025
