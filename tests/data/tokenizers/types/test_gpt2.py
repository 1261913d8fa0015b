"""GPT2BPETokenizer gives the ids of GPT-2's release."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from megads.errors import ConfigError, DataError
from tests.data.tokenizers.vocabularies import ODD, PROSE, SPECIAL, noise

TEXTS = (*ODD, *PROSE[:6], *noise(1, 150))

PLAIN = (*ODD, *PROSE[:6])  # without special tokens


class _GPT2:
    """GPT-2's release, as it is documented: expression, bytes as characters, lowest merge first."""

    EXPRESSION = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

    def __init__(self, folder: Path):
        import regex

        self.vocab = json.loads((folder / "vocab.json").read_text())
        lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")[1:-1]
        self.ranks = {tuple(line.split()): rank for rank, line in enumerate(lines)}
        shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = [byte for byte in range(256) if byte not in shown]
        self.letters = {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
        self.split = regex.compile(self.EXPRESSION).findall

    def encode(self, text: str) -> list[int]:
        ids = []
        for word in self.split(text):
            parts = [self.letters[byte] for byte in word.encode()]
            while True:
                pairs = [(self.ranks.get(pair, 1 << 30), i) for i, pair in enumerate(itertools.pairwise(parts))]
                rank, place = min(pairs, default=(1 << 30, 0))
                if rank == 1 << 30:
                    break
                parts[place : place + 2] = ["".join(parts[place : place + 2])]
            ids += [self.vocab.get(part, 0) for part in parts]
        return ids


def test_gpt2_is_the_release(specs):
    tokenizer = make_tokenizer(specs["gpt2"])
    release = _GPT2(Path(specs["gpt2"].vocab_file).parent)
    for text in (*TEXTS, *SPECIAL):
        assert tokenizer.encode(text) == release.encode(text), text
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eod == tokenizer.specials.eos == release.vocab["<|endoftext|>"]
    assert tokenizer.eod not in tokenizer.encode("a <|endoftext|> b"), "a special token in a text is text"


def test_gpt2_is_transformers_where_no_special_token_occurs(specs):
    from transformers import GPT2Tokenizer

    folder = Path(specs["gpt2"].vocab_file).parent
    other = GPT2Tokenizer(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))
    tokenizer = make_tokenizer(specs["gpt2"])
    for text in PLAIN:
        assert tokenizer.encode(text) == other.encode(text), text


def test_gpt2_takes_a_folder_and_refuses_what_does_not_fit(specs, tmp_path):
    folder = Path(specs["gpt2"].vocab_file).parent
    by_folder = TokenizerSpec("GPT2BPETokenizer", str(folder))
    assert make_tokenizer(by_folder).encode("the caf\u00e9") == make_tokenizer(specs["gpt2"]).encode("the caf\u00e9")
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_text("#version\na b\n")
    for spec, expected in [
        (TokenizerSpec("GPT2BPETokenizer"), "VOCAB_FILE is not set"),
        (TokenizerSpec("GPT2BPETokenizer", vocab_file="nowhere.json"), "VOCAB_FILE nowhere.json: no such file"),
        (TokenizerSpec("GPT2BPETokenizer", str(tmp_path)), "does not fit the vocabulary"),
        (TokenizerSpec("GPT2BPETokenizer", str(folder), extra_ids=2), "set VOCAB_EXTRA_IDS=0"),
    ]:
        with pytest.raises((ConfigError, DataError), match=expected):
            make_tokenizer(spec)
    (tmp_path / "merges.txt").write_text("#version\na b c\n")
    with pytest.raises(DataError, match=r"merges.txt:2: expected two symbols"):
        make_tokenizer(TokenizerSpec("GPT2BPETokenizer", str(tmp_path)))
