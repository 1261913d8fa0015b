"""From the pieces of a chat's text to tokens, and which of them are learnt."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.chat.templates import Ends, Piece
from megads.data.tokenizers.base import Tokenizer
from megads.data.tokenizers.types.huggingface import HFTokenizer
from megads.data.tokenizers.types.null import NullTokenizer
from megads.errors import ConfigError

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class ChatEncoder:
    """Makes tokens of pieces.

    A ``tokenizer.json`` gets the text as one, as transformers' ``apply_chat_template`` does, and a token is an
    answer's if it holds a character of it. Of other tokenizers every piece is encoded by itself, and names of special
    tokens in it are these tokens.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.names = _names(tokenizer)
        self._cut = re.compile("(" + "|".join(map(re.escape, self.names)) + ")") if self.names else None
        self._inner = _untrimmed(tokenizer.inner) if isinstance(tokenizer, HFTokenizer) else None

    @property
    def ends(self) -> Ends:
        """The names of the tokens around texts."""
        return Ends(self._name(self.tokenizer.specials.bos), self._name(self._eod()))

    def id_of(self, name: str) -> int | None:
        """Return the id of the token with a name; None where the vocabulary has none."""
        if name in self.names:
            return self.names[name]
        if isinstance(self.tokenizer, HFTokenizer):
            found = self.tokenizer.inner.token_to_id(name)
            return None if found is None else int(found)
        return None

    def __call__(self, pieces: Sequence[Piece]) -> tuple[Ids, Flags]:
        """Return the tokens of a chat, and which of them are part of an answer that counts."""
        if isinstance(self.tokenizer, HFTokenizer):
            return self._whole(pieces)
        ids: list[int] = []
        counts: list[bool] = []
        for piece in pieces:
            found = self._part(piece.text)
            ids += found
            counts += [piece.counts] * len(found)
        return np.array(ids, np.int64), np.array(counts, np.bool_)

    def _whole(self, pieces: Sequence[Piece]) -> tuple[Ids, Flags]:
        assert self._inner is not None
        found = self._inner.encode("".join(each.text for each in pieces), add_special_tokens=False)
        begins = [0, *accumulate(len(each.text) for each in pieces)]
        counted = [each.counts for each in pieces] + [False]

        def of_answer(place: int) -> bool:
            return counted[bisect_right(begins, place) - 1]

        counts = [begin < end and (of_answer(begin) or of_answer(end - 1)) for begin, end in found.offsets]
        return np.array(found.ids, np.int64), np.array(counts, np.bool_)

    def _part(self, text: str) -> list[int]:
        parts = self._cut.split(text) if self._cut else [text]
        ids: list[int] = []
        for part in parts:
            if part:
                ids += [self.names[part]] if part in self.names else self.tokenizer.encode_plain(part)
        return ids

    def _name(self, token: int | None) -> str:
        return next((name for name, number in self.names.items() if number == token), "")

    def _eod(self) -> int | None:
        try:
            return self.tokenizer.eod
        except ConfigError:
            return None


def _untrimmed(inner: Any) -> Any:
    """Return a ``tokenizers.Tokenizer`` whose tokens have the places of all their characters.

    A post-processor may leave the blanks of a token out of its place (``trim_offsets``: GPT-NeoX, RoBERTa), and a token
    of blanks alone then has none: the indentation of an answer would not be learnt. Ids are the same without one.
    """
    processor = inner.post_processor
    if processor is None or b'"trim_offsets":true' not in processor.__getstate__():
        return inner
    found = type(inner).from_str(inner.to_str())
    found.post_processor = None
    return found


def _names(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the special tokens that a chat's text may name."""
    named = tokenizer.specials
    ids = [each for each in (named.bos, named.eos) if each is not None]
    try:
        ids.append(tokenizer.eod)
    except ConfigError:
        if not ids:
            return {}
    if isinstance(tokenizer, NullTokenizer):
        return {"<eod>": tokenizer.eod}
    inner, processor = getattr(tokenizer, "inner", None), getattr(tokenizer, "processor", None)
    if inner is not None:
        return {str(inner.id_to_token(number)): number for number in ids}
    if processor is not None:
        return {str(processor.id_to_piece(number)): number for number in ids if number < len(processor)}
    return {tokenizer.decode([number]): number for number in ids}
