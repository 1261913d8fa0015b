"""What the rest of the program needs of a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class TokenizerSpec:
    """Everything that decides which ids a text becomes; small, and picklable for worker processes."""

    type: str  # as TOKENIZER_TYPE
    model: str = ""  # file or folder
    vocab_file: str = ""
    merge_file: str = ""
    vocab_size: int = 0  # NullTokenizer only
    extra_ids: int = 0  # tokens <extra_id_N>


@dataclass(frozen=True)
class Specials:
    """Ids of tokens with a meaning of their own; None where the vocabulary has no such token."""

    bos: int | None = None
    eos: int | None = None
    cls: int | None = None
    sep: int | None = None
    pad: int | None = None
    mask: int | None = None
    extra: tuple[int, ...] = ()  # the sentinels of T5, <extra_id_0> first


class Tokenizer(Protocol):
    """Text to ids and back. Nothing is downloaded."""

    @property
    def vocab_size(self) -> int:
        """Largest id + 1, added tokens included."""

    @property
    def eod(self) -> int:
        """Id of the token that ends a document.

        Raises:
            ConfigError: the vocabulary has none (WordPiece).
        """

    @property
    def specials(self) -> Specials:
        """The tokens with a meaning of their own."""

    @property
    def fingerprint(self) -> str:
        """Equal for two tokenizers if and only if they were made from the same content: a short hex digest."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text`` as Megatron's tokenizer of this type gives them to preprocessing."""

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of ``text`` as :meth:`encode`, without the tokens that it puts around a text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, special tokens included."""


Encoded = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]
"""Ids of several texts end to end (any unsigned or int32 type), and [texts + 1] where each begins and the last ends."""
