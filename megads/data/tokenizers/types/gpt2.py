"""GPT2BPETokenizer: ``vocab.json`` and ``merges.txt``, byte-level.

As in Megatron there are no special tokens in texts: ``<|endoftext|>`` in a text is encoded letter by letter, and its
id occurs only where preprocessing appends it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megads.data.tokenizers.base import Specials, TokenizerSpec
from megads.data.tokenizers.types.files import find_file, fingerprint, read_json, read_text
from megads.errors import ConfigError, DataError

EOD = "<|endoftext|>"
WHAT = "a vocab.json of GPT-2: tokens and their ids"


@dataclass(frozen=True)
class GPT2Tokenizer:
    """Runs GPT-2's rules in a ``tokenizers.Tokenizer``."""

    inner: Any  # tokenizers.Tokenizer
    vocab_size: int
    specials: Specials
    spec: TokenizerSpec

    @property
    def eod(self) -> int:
        """Id of ``<|endoftext|>``; ConfigError where the vocabulary has no such token."""
        if self.specials.eos is None:
            raise ConfigError(f"{self.spec.vocab_file or self.spec.model}: has no {EOD} to end a document with")
        return self.specials.eos

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of vocabulary and merges."""
        return identity(self.spec)

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``."""
        return list(self.inner.encode(text, add_special_tokens=False).ids)

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of ``text``; nothing is put around it."""
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``."""
        return str(self.inner.decode(ids, skip_special_tokens=False))


def make(spec: TokenizerSpec) -> GPT2Tokenizer:
    """Return the tokenizer of ``spec.vocab_file`` and ``spec.merge_file``, or of the folder ``spec.model``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab, merges = _read(spec)
    # A symbol that the vocabulary lacks becomes id 0 in the original.
    zero = next((token for token, number in vocab.items() if number == 0), None)
    whole = all(symbol in vocab for symbol in pre_tokenizers.ByteLevel.alphabet())
    try:
        inner = Tokenizer(models.BPE(vocab, merges, unk_token=None if whole else zero))
    except Exception as error:  # the library raises plain Exception
        raise DataError(f"{paths(spec)[1]}: does not fit the vocabulary {paths(spec)[0]}: {error}") from None
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return GPT2Tokenizer(inner, max(vocab.values()) + 1, Specials(eos=vocab.get(EOD)), spec)


def vocab_size(spec: TokenizerSpec) -> int:
    """Return the largest id + 1."""
    return max(_read_vocab(paths(spec)[0]).values()) + 1


def identity(spec: TokenizerSpec) -> str:
    """Return the fingerprint without loading the tokenizer itself."""
    return fingerprint("GPT2BPETokenizer", *_read(spec))


def paths(spec: TokenizerSpec) -> tuple[Path, Path]:
    """Return the files of vocabulary and merges; errors as in :func:`make`."""
    if spec.extra_ids:
        raise ConfigError("TOKENIZER_TYPE=GPT2BPETokenizer has no tokens <extra_id_N>; set VOCAB_EXTRA_IDS=0")
    vocab_file = spec.vocab_file or (str(Path(spec.model) / "vocab.json") if spec.model else "")
    vocab = find_file(vocab_file, "VOCAB_FILE", WHAT)
    merges = find_file(spec.merge_file or str(vocab.parent / "merges.txt"), "MERGE_FILE", "a merges.txt of GPT-2")
    return vocab, merges


def _read_vocab(path: Path) -> dict[str, int]:
    vocab = read_json(path, WHAT)
    if not vocab or not all(type(number) is int and number >= 0 for number in vocab.values()):
        raise DataError(f"{path}: expected {WHAT}")
    return vocab


def _read(spec: TokenizerSpec) -> tuple[dict[str, int], list[tuple[str, str]]]:
    vocab_path, merges_path = paths(spec)
    merges = []
    # The original takes the first line for a heading and what follows the last line feed for nothing.
    for number, line in enumerate(read_text(merges_path).replace("\r\n", "\n").split("\n")[1:-1], start=2):
        pair = tuple(line.split())
        if len(pair) != 2:
            raise DataError(f"{merges_path}:{number}: expected two symbols with a blank between them, got {line!r}")
        merges.append(pair)
    return _read_vocab(vocab_path), merges
