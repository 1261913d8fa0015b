from __future__ import annotations

import os
from pathlib import Path

import pytest

from megads.data.sources.file_list import Shard, has_weights, parse_data_path, read_file_list, repeated, variables_of
from megads.errors import DataError
from tests.data.factory import write_dataset


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
        ("1_0x a b\n", "list.txt:1: expected 'WEIGHT PREFIX CORPUS', but '1_0x' is not a number"),
        ("1e999 a b\n", "list.txt:1: weight 1e999 must be"),
        ("1e308 a b\n1e308 a c\n", "list.txt: the weights add up to more than a float holds"),
        ("1 $MISSING/a b\n", "list.txt:1: $MISSING/a: MISSING is not set; export MISSING=FOLDER"),
        ("1 x/${EMPTY}/a b\n", "list.txt:1: x/${EMPTY}/a: EMPTY is not set"),
        ("1 ~nobody-of-this-name/a b\n", "list.txt:1: ~nobody-of-this-name/a: no such user"),
        ("0 a b\n0 c d\n", "list.txt: all weights are 0"),
        ("", "list.txt: lists no data"),
        ("# only this\n", "list.txt: lists no data"),
    ],
)
def test_wrong_lists_are_refused_with_path_and_line(tmp_path, text, expected):
    path = tmp_path / "list.txt"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        read_file_list(path, {"EMPTY": ""})
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_paths_with_blanks_stand_in_quotes(tmp_path, monkeypatch):
    path = tmp_path / "list.txt"
    path.write_text(
        """1 "my books/a b.bin" 'two words' # tail\n2 '$D/#x "y"'\n"""
        r"""3 it's\ o'k # "not closed"""
    )
    assert read_file_list(path, {"D": "/d e"}) == [
        Shard(1.0, str(tmp_path / "my books/a b"), "two words"),
        Shard(2.0, '/d e/#x "y"', '#x "y"'),
        Shard(3.0, str(tmp_path / "it's\\"), "o'k"),
    ]
    assert variables_of(["1 '$A b' 2 \"$B c\""], [path]) == {"A", "B", "D"}
    monkeypatch.chdir(tmp_path)
    pair = parse_data_path("0.3 'my books/a' 0.7 \"c d\"")
    assert [shard.prefix for shard in pair] == [str(tmp_path / "my books/a"), str(tmp_path / "c d")]
    assert has_weights("1 'a b'")
    assert not has_weights("'a b'")
    assert parse_data_path("'a b'")[0].prefix == str(tmp_path / "a b")


@pytest.mark.parametrize("line", ['1 "a b c', "1 'a b\" c", '1 "a"b c', "1 a 'b"])
def test_quotes_that_do_not_end(tmp_path, line):
    (tmp_path / "list.txt").write_text(f"1 x y\n{line}\n")
    for read in (read_file_list, lambda path: variables_of([], [path])):
        with pytest.raises(DataError, match=r"list\.txt:2: .* begins with a quote that does not end before a blank"):
            read(tmp_path / "list.txt")


def test_unreadable_lists_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_file_list(tmp_path / "none.txt")
    with pytest.raises(DataError, match="is a folder"):
        read_file_list(tmp_path)
    (tmp_path / "binary").write_bytes(b"1 a b\n\xff\xfe")
    with pytest.raises(DataError, match=r"not UTF-8 text \(byte 6\)"):
        read_file_list(tmp_path / "binary")


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path)]
)
@pytest.mark.timeout(120)
def test_what_is_no_text_file_is_refused_at_once(tmp_path, make):
    make(tmp_path / "list.txt")
    with pytest.raises(DataError, match=r"list\.txt: (is a pipe|is a device|cannot be read: too many levels)"):
        read_file_list(tmp_path / "list.txt")


def test_tokens_given_for_a_list_are_not_read_whole(tmp_path):
    with (tmp_path / "x.bin").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match=r"x\.bin: has 1048576 MiB, too much for a list"):
        read_file_list(tmp_path / "x.bin")


def test_variables_and_homes_in_paths(tmp_path, monkeypatch):
    path = tmp_path / "list.txt"
    path.write_text("1 $ROOT/a x\n1 ${ROOT}_2/$NAME.bin y\n1 ~/b z\n1 c$ w\n1 d#1 v # tail\n1 $ROOT v\n")
    env = {"ROOT": "/data", "NAME": "n", "HOME": "/home/me"}
    prefixes = ["/data/a", "/data_2/n", "/home/me/b", f"{tmp_path}/c$", f"{tmp_path}/d#1", "/data"]
    assert [shard.prefix for shard in read_file_list(path, env)] == prefixes
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert [shard.prefix for shard in read_file_list(path)] == prefixes


def test_the_variables_of_lists_are_found(tmp_path):
    (tmp_path / "list").write_text("1 $ROOT/a\n# 1 $OLD/b\n2 ${OTHER}/c x  # $COMMENT\n")
    assert variables_of(["0.3 $HERE/a 0.7 b", ""], [tmp_path / "list"]) == {"ROOT", "OTHER", "HERE"}
    assert variables_of([], []) == set()


def test_a_value_may_hold_blanks_and_dollars(tmp_path):
    (tmp_path / "l").write_text("1 $ROOT/a\n")
    assert read_file_list(tmp_path / "l", {"ROOT": "/my data/$x"})[0].prefix == "/my data/$x/a"


def test_files_without_a_corpus_are_corpora_of_their_own(tmp_path):
    """Files of preprocessing often share their last part; their weights must not be thrown together."""
    (tmp_path / "l").write_text("3 /w/en/text\n1 /w/de/text\n2 /v/de/text\n1 /w/de/text\n1 /w/code\n1 /w/x text\n")
    names = [shard.corpus for shard in read_file_list(tmp_path / "l")]
    assert names == ["en/text", "w/de/text", "v/de/text", "w/de/text", "code", "text"]


def test_repeated_files_are_found_under_any_name(tmp_path):
    write_dataset(tmp_path, [3], name="a")
    write_dataset(tmp_path, [3], name="b")
    for suffix in (".bin", ".idx"):
        (tmp_path / f"soft{suffix}").symlink_to(tmp_path / f"a{suffix}")
        os.link(tmp_path / f"b{suffix}", tmp_path / f"hard{suffix}")
    shards = [Shard(1, str(tmp_path / name), "c") for name in ("a", "gone", "b", "soft", "hard", "./a", "gone")]
    assert repeated(shards) == [(shards[k], shards[first]) for k, first in ((3, 0), (4, 2), (5, 0), (6, 1))]


def test_data_path_of_one_prefix_and_of_pairs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_data_path(" x/a.bin ") == [Shard(1.0, str(tmp_path / "x/a"), "a")]
    assert parse_data_path("0.3 x/a 7e-1 $D/a", {"D": "/d"}) == [
        Shard(0.3, str(tmp_path / "x/a"), "x/a"),
        Shard(0.7, "/d/a", "d/a"),
    ]
    # Two prefixes, of which one looks like a number.
    write_dataset(tmp_path, [3], name="1")
    write_dataset(tmp_path, [3], name="2")
    assert [shard.prefix for shard in parse_data_path("1 2")] == [str(tmp_path / "2")]
    assert [shard.corpus for shard in parse_data_path("./2 1 1")] == ["2", "1", "1"]


def test_prefixes_without_weights_weigh_what_they_hold(tmp_path):
    names = [
        write_dataset(tmp_path, lengths, name=name) for name, lengths in (("a", [3, 4]), ("b", [30]), ("c", [0, 1]))
    ]
    shards = parse_data_path(" ".join(names))
    assert [(shard.weight, shard.corpus) for shard in shards] == [(7, "a"), (30, "b"), (1, "c")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" ", "DATA_PATH: names no data"),
        ("-1 a 1 b", "DATA_PATH: weight -1 must be a finite number"),
        ("nan a 1 b", "DATA_PATH: weight nan must be"),
        ("0 a 0 b", "DATA_PATH: all weights are 0"),
        ("0.5 a 0.5", "DATA_PATH: 0.5 is a weight without a prefix"),
        ("0.5 a b", "DATA_PATH: 0.5 is a weight without a prefix"),
        ("a b", "a.idx: no such file"),
        ("$NOT_THERE/a", "DATA_PATH: $NOT_THERE/a: NOT_THERE is not set"),
    ],
)
def test_wrong_data_paths_are_refused(tmp_path, monkeypatch, text, expected):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as error:
        parse_data_path(text)
    assert expected in str(error.value)
