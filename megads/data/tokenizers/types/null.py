"""No tokenizer: text is ids with blanks between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megads.data.tokenizers.base import Specials, TokenizerSpec
from megads.data.tokenizers.types.files import MOST_TOKENS, fingerprint
from megads.errors import ConfigError, DataError


@dataclass(frozen=True)
class NullTokenizer:
    """Text is ids with blanks between them; the last id of the vocabulary is the end of a document.

    ``vocab_size`` counts every id. Megatron's NullTokenizer counts all but the last: its ``--vocab-size N``
    has the ids 0..N with N at the end of documents, which is ``VOCAB_SIZE=N+1`` here.
    """

    vocab_size: int

    @property
    def eod(self) -> int:
        """``vocab_size - 1``."""
        return self.vocab_size - 1

    @property
    def specials(self) -> Specials:
        """None."""
        return Specials()

    @property
    def fingerprint(self) -> str:
        """One for each vocabulary size."""
        return fingerprint("null", self.vocab_size)

    def encode(self, text: str) -> list[int]:
        """Return the ids written in ``text``."""
        try:
            ids = [int(word) for word in text.split()]
        except ValueError:
            raise DataError(f"NullTokenizer: {text[:40]!r} is not a row of token ids") from None
        if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            raise DataError(f"NullTokenizer: ids must be 0..{self.vocab_size - 1}, got {min(ids)}..{max(ids)}")
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of ``text``; nothing is put around it."""
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return ``ids`` with blanks between them."""
        return " ".join(map(str, ids))


def make(spec: TokenizerSpec) -> NullTokenizer:
    """Return the tokenizer; ConfigError where no size is given, or one that token files cannot hold."""
    if spec.vocab_size <= 0:
        raise ConfigError("TOKENIZER_TYPE=NullTokenizer has no vocabulary of its own; set VOCAB_SIZE")
    if spec.vocab_size > MOST_TOKENS:
        raise ConfigError(
            f"TOKENIZER_TYPE=NullTokenizer: a vocabulary of {spec.vocab_size}; token files hold ids below {MOST_TOKENS}"
        )
    return NullTokenizer(spec.vocab_size)
