"""``megads data train-tokenizer``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from megads.cli.data.tokenizer import train_tokenizer
from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from tests.data.tokenizers.vocabularies import FOREIGN, PROSE


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


def test_a_vocabulary_of_word_pieces(corpus, tmp_path):
    result = _train(corpus, tmp_path / "made", "--tokenizer-type", "BertWordPieceLowerCase")
    assert result.exit_code == 0, result.output
    path = tmp_path / "made" / "vocab.txt"
    assert result.output.endswith(
        f"use it with VOCAB_FILE={path}, or --tokenizer-type BertWordPieceLowerCase --vocab-file {path}\n"
    )
    tokenizer = make_tokenizer(TokenizerSpec("BertWordPieceLowerCase", vocab_file=str(path)))
    assert path.read_text().splitlines()[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.decode(tokenizer.encode("The statement")) == "the statement"
    refused = _train(corpus, tmp_path / "no", "--tokenizer-type", "BertWordPieceCase", "--special-tokens", "<|user|>")
    assert "--special-tokens are for GPT2BPETokenizer; BertWordPieceCase has [PAD]" in str(refused.exception)


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


def test_what_cannot_be_made_is_one_line(corpus, tmp_path):
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
