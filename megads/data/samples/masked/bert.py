"""Samples of BERT: two halves of a text in one order or the other, with hidden words."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.formats.base import TokenFile
from megads.data.samples.masked.masking import Masked, WordPieces, mask_tokens
from megads.data.samples.recipe import Columns

SPECIAL_TOKENS = 3
"""cls and two sep: a sample's text is at most ``seq_length`` less these."""

LONGEST_NGRAM = 3

Sample = dict[str, npt.NDArray[np.int64] | int]


class BertSamples:
    """Samples of ``seq_length`` tokens, a function of the seed and their number.

    Args:
        dataset: a file that is split into sentences.
        columns: of a :class:`SentenceRecipe` of that file, with ``max_length = seq_length - 3`` and
            ``min_sentences`` 2 with ``binary_head``, else 1.
        pieces: the vocabulary.
        seq_length: tokens of a sample.
        seed: of the recipe.
        binary_head: cut each text in two; half of the time the second half comes first.
        probability: share of tokens to hide.
    """

    def __init__(
        self,
        dataset: TokenFile,
        columns: Columns,
        pieces: WordPieces,
        *,
        seq_length: int,
        seed: int,
        binary_head: bool = True,
        probability: float = 0.15,
    ):
        self.dataset = dataset
        self._samples = columns["samples"]
        self.pieces = pieces
        self.seq_length = seq_length
        self.seed = seed
        self.binary_head = binary_head
        self.probability = probability

    def __len__(self) -> int:
        return len(self._samples) // 3

    def __getitem__(self, i: int) -> Sample:
        """Return sample ``i``.

        ``text``, ``types`` (which half), ``labels`` (-1 where nothing is hidden), ``padding_mask`` (1: a
        token) and ``loss_mask`` are int64 [seq_length]; ``is_random`` (halves exchanged) and ``truncated``
        are 0 or 1.

        Raises:
            DataError: a token is not in the vocabulary.
        """
        if not 0 <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        start, stop, target = self._samples.read(3 * i, 3 * i + 3).tolist()
        sentences = [self.dataset.get(number).tolist() for number in range(start, stop)]
        rng = np.random.RandomState((self.seed + i) % 2**32)
        first, second, exchanged = self._halves(sentences, rng)
        truncated = _trim(first, second, target, rng)
        cls, sep = self.pieces.cls, self.pieces.sep
        tokens = [cls, *first, sep] + ([*second, sep] if second else [])
        types = [0] * (len(first) + 2) + ([1] * (len(second) + 1) if second else [])
        masked = mask_tokens(
            tokens,
            target,
            self.pieces,
            rng,
            replace=lambda token: self._replace(token, rng),
            longest=LONGEST_NGRAM,
            probability=self.probability,
        )
        return {**self._rows(masked, types), "is_random": int(exchanged), "truncated": int(truncated)}

    def _halves(self, sentences: list[list[int]], rng: np.random.RandomState) -> tuple[list[int], list[int], bool]:
        pivot, exchanged = len(sentences), False
        if self.binary_head:
            pivot = int(rng.randint(1, len(sentences))) if len(sentences) >= 3 else 1
            exchanged = bool(rng.random_sample() < 0.5)
        first = [token for sentence in sentences[:pivot] for token in sentence]
        second = [token for sentence in sentences[pivot:] for token in sentence]
        return (second, first, exchanged) if exchanged else (first, second, exchanged)

    def _replace(self, token: int, rng: np.random.RandomState) -> int:
        """Return mask for 8 of 10 tokens, any token for one, and the token itself for one."""
        if rng.random_sample() < 0.8:
            return self.pieces.mask
        if rng.random_sample() >= 0.5:
            return int(self.pieces.ids[rng.randint(0, len(self.pieces.ids))])
        return token

    def _rows(self, masked: Masked, types: list[int]) -> dict[str, Any]:
        rows = {name: np.zeros(self.seq_length, np.int64) for name in ("types", "padding_mask", "loss_mask")}
        count = len(masked.tokens)
        text = np.full(self.seq_length, self.pieces.pad, np.int64)
        text[:count], rows["types"][:count], rows["padding_mask"][:count] = masked.tokens, types, 1
        labels = np.full(self.seq_length, -1, np.int64)
        labels[masked.positions], rows["loss_mask"][masked.positions] = masked.labels, 1
        return {"text": text, "labels": labels, **rows}


def _trim(first: list[int], second: list[int], target: int, rng: np.random.RandomState) -> bool:
    """Shorten the longer half, at either end, until both together have ``target`` tokens; return whether it had to."""
    truncated = len(first) + len(second) > target
    while len(first) + len(second) > target:
        longer = first if len(first) > len(second) else second
        if rng.random_sample() < 0.5:
            del longer[0]
        else:
            del longer[-1]
    return truncated
