from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from megads.cli.data.tokenizer import train_tokenizer
from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from megads.data.tokenizers.train import read_texts
from megads.errors import DataError
from tests.data.tokenizers.vocabularies import FOREIGN, PROSE


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> list[str]:
    """Two files, one of them compressed; two keys, one with lists."""
    folder: Path = tmp_path_factory.mktemp("corpus")
    rows = [json.dumps({"text": text[:2000], "title": [f"title {i}", FOREIGN]}) for i, text in enumerate(PROSE)]
    (folder / "a.jsonl").write_text("\n".join([*rows[:20], ""]))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(rows[20:]).encode()))
    return [str(folder / "a.jsonl"), str(folder / "b.jsonl.gz")]


def _train(corpus: list[str], output: Path, *more: str):
    return CliRunner().invoke(
        train_tokenizer, ["--input", *corpus, "--vocab-size", "600", "--output", str(output), *more]
    )


def test_a_tokenizer_that_both_types_can_use(corpus, tmp_path):
    result = _train(
        corpus, tmp_path / "new" / "made", "--special-tokens", "<|user|>", "<|end|>", "--json-keys", "text", "title"
    )
    assert result.exit_code == 0, result.output
    folder = tmp_path / "new" / "made"
    assert f"{folder}: 600 tokens" in result.output
    fast = make_tokenizer(TokenizerSpec("HFTokenizer", str(folder)))
    plain = make_tokenizer(TokenizerSpec("GPT2BPETokenizer", str(folder)))
    for text in (*PROSE[:3], FOREIGN, ""):
        assert fast.encode(text) == plain.encode(text)
        assert fast.decode(fast.encode(text)) == text
    assert (fast.vocab_size, fast.eod, plain.eod) == (600, 0, 0)
    assert fast.encode("<|user|><|end|><|endoftext|>") == [1, 2, 0]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["made"], "nothing else is left"


def test_the_same_input_gives_the_same_files(corpus, tmp_path):
    """Also in another process with another seed of hashes and another number of threads."""
    command = [sys.executable, "-m", "megads", "data", "train-tokenizer", "--input", *corpus]
    for name, threads in (("one", "1"), ("two", "2")):
        subprocess.run(
            [*command, "--vocab-size", "700", "--output", str(tmp_path / name)],
            env={**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads},
            check=True,
            stdout=subprocess.DEVNULL,
        )
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["merges.txt", "tokenizer.json", "tokenizer_config.json", "vocab.json"]
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_small_text_is_told(corpus, tmp_path):
    result = _train(corpus, tmp_path / "made", "--max-bytes", "10")
    assert result.exit_code == 0
    assert "the text yields no more than that of 600" in result.output or " 600 tokens" in result.output
    assert list(read_texts(corpus, ["text"], most_bytes=10)) == [PROSE[0][:2000]]
    assert len(list(read_texts(corpus, ["text", "title"]))) == 3 * len(PROSE)


def test_what_is_wrong_is_told_in_one_line(corpus, tmp_path):
    bad = tmp_path / "bad.jsonl"
    for content, expected in [
        ('{"text": "a"}\n{"text"', r"bad.jsonl: object 2: is not JSON"),
        ('{"txt": "a"}', r"object 1: has no text under 'text'; name the key of the texts with --json-keys"),
        ('{"text": 5}', r"has no text under 'text'"),
        ("[1]", r"has no text under 'text'"),
    ]:
        bad.write_text(content)
        with pytest.raises(DataError, match=expected):
            list(read_texts([str(bad)], ["text"]))
    bad.write_text('{"a": "x"}\n{"b": "y", "a": ["z"]}\n{"c": 1}')
    texts = read_texts([str(bad)], ["a", "b"])
    assert [next(texts) for _ in range(3)] == ["x", "z", "y"]
    with pytest.raises(DataError, match=r"object 3: has no text under 'a' or 'b'"):
        next(texts)
    with pytest.raises(DataError, match=r"second\.jsonl: no such file"):
        read_texts([str(bad), str(tmp_path / "second.jsonl")], ["a"])  # before the first is read
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    result = _train(corpus, tmp_path / "full")
    assert "already exists; remove it or use another folder" in str(result.exception)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["x"]
    result = CliRunner().invoke(
        train_tokenizer,
        ["--input", *corpus, "--vocab-size", "258", "--output", str(tmp_path / "no"), "--special-tokens", "a", "b"],
    )
    assert "--vocab-size 258: 256 bytes and 3 special tokens need 259" in str(result.exception)
    assert not (tmp_path / "no").exists()
    result = _train(corpus, tmp_path / "no", "--vocab-size", str(10**13))
    assert f"--vocab-size {10**13}: at most 10000000 are possible" in str(result.exception)
