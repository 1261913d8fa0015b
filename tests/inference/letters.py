"""A tokenizer whose vocabulary is that of the small models of transformers: 53 tokens."""

from __future__ import annotations

from collections.abc import Sequence

from megads.data.tokenizers.base import Specials

LETTERS = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Letters:
    """Tokens are letters; the last one, Z, ends a text."""

    eod = 52
    vocab_size = 53
    specials = Specials(eos=52)

    def encode(self, text: str) -> list[int]:
        return [LETTERS.index(letter) for letter in text]

    encode_plain = encode

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(LETTERS[each] for each in ids)
