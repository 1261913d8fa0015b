"""BertWordPieceLowerCase and BertWordPieceCase: ``vocab.txt`` and the rules of the BERT release.

As in Megatron a word has at most 200 characters (100 in transformers), special tokens in a text are ordinary text,
``[BOS]``, ``[EOS]`` and ``<extra_id_N>`` are added behind the vocabulary unless it has them, and there is no token at
the end of a document. The tables of letters, marks and punctuation are those of the running Python.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import NoReturn

from megads.data.tokenizers.base import Specials, TokenizerSpec
from megads.data.tokenizers.types.files import find_file, fingerprint, read_text
from megads.errors import ConfigError, DataError

LONGEST_WORD = 200
"""Characters; a longer word is unknown."""

IDEOGRAPHS = (
    range(0x3400, 0x4DC0),
    range(0x4E00, 0xA000),
    range(0xF900, 0xFB00),
    range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2CEB0),
    range(0x2F800, 0x2FA20),
)
"""Characters that are words of their own."""

ADDED = ("[BOS]", "[EOS]")
"""Tokens behind every vocabulary, before those that VOCAB_EXTRA_IDS counts."""

_NEEDED = ("[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]")
_WHAT = "a vocab.txt of BERT: one token per line"


class _Table(dict[int, str]):
    """What a pass makes of each character, for ``str.translate``; filled as characters occur."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> str:
        self[code] = self._rule(chr(code))
        return self[code]


def _clean(char: str) -> str:
    """The first pass: nothing of a control character, blanks around an ideograph."""
    if char in " \t\n\r" or unicodedata.category(char) == "Zs":
        return " "
    if char in "\0\ufffd" or unicodedata.category(char) in ("Cc", "Cf"):
        return ""
    return f" {char} " if any(ord(char) in each for each in IDEOGRAPHS) else char


def _split(char: str, *, strip_accents: bool) -> str:
    """The second pass: blanks around punctuation and, in lower case, nothing of accents."""
    if strip_accents and unicodedata.category(char) == "Mn":
        return ""
    return f" {char} " if is_punctuation(char) else char


def is_punctuation(char: str) -> bool:
    """Return whether a character is a word of its own that is no letter, digit or ideograph."""
    return ("!" <= char <= "~" and not char.isalnum()) or unicodedata.category(char).startswith("P")


@dataclass(frozen=True)
class WordPieceTokenizer:
    """Splits text into words, and words into the longest pieces from the left."""

    vocab: Mapping[str, int]
    lower_case: bool
    specials: Specials
    spec: TokenizerSpec

    @functools.cached_property
    def vocab_size(self) -> int:
        """Largest id + 1."""
        return max(self.vocab.values()) + 1

    @property
    def eod(self) -> NoReturn:
        """There is none: raises ConfigError."""
        raise ConfigError(
            f"TOKENIZER_TYPE={self.spec.type} has no end-of-document token; "
            "drop --append-eod, EOD_MASK_LOSS, RESET_POSITION_IDS and RESET_ATTENTION_MASK"
        )

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the vocabulary, added tokens included, and of the treatment of case."""
        return fingerprint("BertWordPiece", self.lower_case, sorted(self.vocab.items()))

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``."""
        ids: list[int] = []
        for word in self._words(text):
            ids += pieces(word, self.vocab, self.vocab["[UNK]"], LONGEST_WORD)
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of ``text``; nothing is put around it."""
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``: blanks between words, none before a piece that continues a word."""
        return " ".join(map(self._tokens.__getitem__, ids)).replace(" ##", "").strip()

    def _words(self, text: str) -> Iterator[str]:
        """Yield the words of ``text``, cleaned, and in lower case without accents if that is asked for."""
        cleaned, split = self._tables
        for token in text.translate(cleaned).split():
            if self.lower_case:
                token = unicodedata.normalize("NFD", token.lower())
            yield from token.translate(split).split()

    @functools.cached_property
    def _tables(self) -> tuple[_Table, _Table]:
        return _Table(_clean), _Table(functools.partial(_split, strip_accents=self.lower_case))

    @functools.cached_property
    def _tokens(self) -> dict[int, str]:
        return {number: token for token, number in self.vocab.items()}


def pieces(word: str, vocab: Mapping[str, int], unknown: int, longest: int) -> list[int]:
    """Return the ids of the longest pieces of a cleaned ``word`` from the left.

    Pieces of ``vocab`` that continue a word begin with ``##``. A word that cannot be put together, or has more than
    ``longest`` characters, is ``[unknown]``.
    """
    if len(word) > longest:
        return [unknown]
    ids: list[int] = []
    start, mark = 0, ""
    while start < len(word):
        for end in range(len(word), start, -1):
            found = vocab.get(mark + word[start:end])
            if found is not None:
                break
        else:
            return [unknown]
        ids.append(found)
        start, mark = end, "##"
    return ids


def make(spec: TokenizerSpec) -> WordPieceTokenizer:
    """Return the tokenizer of ``spec.vocab_file``, or of ``spec.model`` where that is empty."""
    path = find_file(spec.vocab_file or spec.model, "VOCAB_FILE", _WHAT)
    vocab: dict[str, int] = {}
    for number, line in enumerate(StringIO(read_text(path), newline=None)):
        vocab[line.strip()] = number
    if absent := [token for token in _NEEDED if token not in vocab]:
        raise DataError(f"{path}: has no {', '.join(absent)}; expected {_WHAT}")
    for token in (*ADDED, *(f"<extra_id_{number}>" for number in range(spec.extra_ids))):
        vocab.setdefault(token, len(vocab))
    roles = {name: vocab[f"[{name.upper()}]"] for name in ("bos", "eos", "cls", "sep", "pad", "mask")}
    extra = tuple(vocab[f"<extra_id_{number}>"] for number in range(spec.extra_ids))
    return WordPieceTokenizer(vocab, spec.type == "BertWordPieceLowerCase", Specials(**roles, extra=extra), spec)
