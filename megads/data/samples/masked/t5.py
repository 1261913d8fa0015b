"""Samples of T5: a text with spans cut out, and the spans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from megads.data.formats.base import TokenFile
from megads.data.samples.masked.bert import Sample
from megads.data.samples.masked.masking import Masked, WordPieces, mask_tokens
from megads.data.samples.recipe import Columns
from megads.errors import DataError

SPECIAL_TOKENS = 2
"""A sample's text is at most the encoder's length less these."""

LONGEST_NGRAM = 10


class T5Samples:
    """Samples for an encoder and a decoder, a function of the seed and their number.

    Args:
        dataset: a file that is split into sentences.
        columns: of a :class:`SentenceRecipe` of that file, with ``max_length = encoder_length - 2`` and
            ``min_sentences = 1``.
        pieces: the vocabulary, with bos, eos and sentinels.
        encoder_length: tokens of the encoder.
        decoder_length: tokens of the decoder.
        seed: of the recipe.
        probability: share of tokens to cut out.
    """

    def __init__(
        self,
        dataset: TokenFile,
        columns: Columns,
        pieces: WordPieces,
        *,
        encoder_length: int,
        decoder_length: int,
        seed: int,
        probability: float = 0.15,
    ):
        self.dataset = dataset
        self._samples = columns["samples"]
        self.pieces = pieces
        self.encoder_length = encoder_length
        self.decoder_length = decoder_length
        self.seed = seed
        self.probability = probability

    def __len__(self) -> int:
        return len(self._samples) // 3

    def __getitem__(self, i: int) -> Sample:
        """Return sample ``i``; E and D are the lengths of encoder and decoder.

        ``text_enc`` int64 [E]; ``text_dec``, ``labels`` (-1 behind the end) and ``loss_mask`` int64 [D];
        ``enc_mask`` [E, E], ``dec_mask`` [D, D] and ``enc_dec_mask`` [D, E], int64, 1 where a row may look at
        a column; ``truncated`` 0 or 1.

        Raises:
            DataError: a token is not in the vocabulary, there are too few sentinels, or the
                spans do not fit the decoder.
        """
        if not 0 <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        start, stop, target = self._samples.read(3 * i, 3 * i + 3).tolist()
        tokens = [token for number in range(start, stop) for token in self.dataset.get(number).tolist()]
        masked = mask_tokens(
            tokens[:target],
            target,
            self.pieces,
            np.random.RandomState((self.seed + i) % 2**32),
            replace=lambda token: self.pieces.mask,
            longest=LONGEST_NGRAM,
            probability=self.probability,
            geometric=True,
        )
        encoder, spans = self._cut(masked)
        return {**self._rows(encoder, spans), "truncated": int(len(tokens) > target)}

    def _cut(self, masked: Masked) -> tuple[list[int], list[int]]:
        """Return the text with a sentinel for each span, and the spans, each behind its sentinel."""
        sentinels = self.pieces.sentinels
        if len(masked.spans) > len(sentinels):
            raise DataError(
                f"a sample has {len(masked.spans)} spans, but the vocabulary has {len(sentinels)} tokens <extra_id_N>; "
                "raise VOCAB_EXTRA_IDS"
            )
        encoder: list[int] = []
        spans: list[int] = []
        done = 0
        for sentinel, (places, labels) in zip(sentinels, masked.spans, strict=False):
            encoder += [*masked.tokens[done : places[0]], sentinel]
            spans += [sentinel, *labels]
            done = places[-1] + 1
        return encoder + masked.tokens[done:], spans

    def _rows(self, encoder: Sequence[int], spans: Sequence[int]) -> dict[str, npt.NDArray[np.int64]]:
        pad, count = self.pieces.pad, len(spans) + 1
        if len(encoder) > self.encoder_length or count > self.decoder_length:
            raise DataError(
                f"a sample of {len(encoder)} and {count} tokens does not fit an encoder of {self.encoder_length} and a "
                f"decoder of {self.decoder_length}; use longer ones"
            )
        text_enc = _row(encoder, self.encoder_length, pad)
        text_dec = _row([self.pieces.bos, *spans], self.decoder_length, pad)
        is_enc, is_dec = _row([1] * len(encoder), self.encoder_length, 0), _row([1] * count, self.decoder_length, 0)
        return {
            "text_enc": text_enc,
            "text_dec": text_dec,
            "labels": _row([*spans, self.pieces.eos], self.decoder_length, -1),
            "loss_mask": is_dec,
            "enc_mask": np.outer(is_enc, is_enc),
            "dec_mask": np.tril(np.outer(is_dec, is_dec)),
            "enc_dec_mask": np.outer(is_dec, is_enc),
        }


def _row(values: Sequence[int], length: int, fill: int) -> npt.NDArray[np.int64]:
    row = np.full(length, fill, np.int64)
    row[: len(values)] = values
    return row
