"""The examples of a file in the cache: as they were made, made again when anything differs, and what has none."""

import json
import os

import pytest

from megads.data.chat.conversations import read_conversations
from megads.data.chat.examples import ExampleMaker, find_template
from megads.data.chat.index import ChatFile, ChatIndex
from megads.data.samples.index_cache.cache import Cache
from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from megads.errors import DataError

NUMBERS = make_tokenizer(TokenizerSpec("NullTokenizer", vocab_size=64))


def maker(seq_length=4):
    return ExampleMaker(NUMBERS, find_template("plain", NUMBERS), seq_length, 64)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


ROWS = [
    {"prompt": "1", "response": "2"},
    {"prompt": "1 2 3", "response": "4 5"},
    {"prompt": "1", "response": ""},
    {"prompt": "1 2 3 4 5", "response": "6"},
]


def read(path, cache, seq_length=4, made=None):
    def make():
        if made is not None:
            made.append(path)
        return maker(seq_length)

    return ChatFile.read(ChatIndex.of(path, ("null", seq_length), make), Cache(cache))


def test_a_file_is_made_once_and_again_when_it_or_what_decides_changes(tmp_path):
    path, made = write(tmp_path / "a.jsonl", ROWS), []
    for _ in range(2):
        file = read(path, tmp_path / "c", made=made)
    assert len(made) == 1
    wanted = [each for each in map(maker(), read_conversations(path)) if each]
    assert len(file) == len(wanted) == 2
    for number, example in enumerate(wanted):
        tokens, labels = file.example(number)
        assert (tokens.tolist(), labels.tolist()) == (example.tokens.tolist(), example.labels.tolist())
    assert file.lengths.tolist() == [len(each) for each in wanted]
    assert file.report.lines("a") == [
        "a: 1 of 4 chats skipped, without an answer",
        "a: 1 of 4 chats skipped, whose answer begins behind SEQ tokens",
        "a: 1 chat longer than SEQ lose their ends",
    ]
    longer = read(path, tmp_path / "c", seq_length=9, made=made)
    assert (len(made), len(longer)) == (2, 3)
    assert longer.digest != file.digest
    before = os.stat(path)
    write(tmp_path / "a.jsonl", [{"prompt": "1", "response": "3"}, *ROWS[1:]])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert read(path, tmp_path / "c", made=made).digest != file.digest
    assert len(made) == 3


def test_a_damaged_index_is_made_again(tmp_path):
    path, made = write(tmp_path / "a.jsonl", ROWS), []
    digest = read(path, tmp_path / "c", made=made).digest
    (index,) = (tmp_path / "c").glob("chat-*.safetensors")
    content = bytearray(index.read_bytes())
    content[20] ^= 1
    index.write_bytes(content)
    assert read(path, tmp_path / "c", made=made).digest == digest
    assert len(made) == 2


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (ROWS[2:3], "no chat has an answer to learn"),
        (ROWS[3:], "no answer begins within SEQ=4 tokens; raise SEQ"),
    ],
)
def test_a_file_with_nothing_to_learn_is_rejected(tmp_path, rows, words):
    path = write(tmp_path / "a.jsonl", rows)
    with pytest.raises(DataError, match=words):
        read(path, tmp_path / "c")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"x\.jsonl: no such file or directory; pass the file of the chats"):
        read(str(tmp_path / "x.jsonl"), tmp_path / "c")
