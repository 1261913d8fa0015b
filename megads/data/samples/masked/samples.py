"""Samples of BERT (two halves of a text, with hidden words) and T5 (a text with spans cut out, and the spans)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.config.spans import SPAN_WORDS
from megads.data.formats.token_file import TokenFile
from megads.data.samples.masked.masking import Masked, WordPieces, mask_tokens
from megads.data.samples.recipe import Columns
from megads.errors import DataError

BERT_LONGEST_NGRAM = 3

Sample = dict[str, npt.NDArray[np.int64] | int]


@dataclass
class _MaskedSamples:
    """Samples that are a function of the seed and their number.

    Attributes:
        dataset: a file that is split into sentences.
        columns: of a :class:`SentenceRecipe` of that file.
        pieces: the vocabulary.
        seed: of the recipe.
        probability: share of tokens to hide.
    """

    dataset: TokenFile
    columns: Columns
    pieces: WordPieces
    _: KW_ONLY
    seed: int
    probability: float = 0.15

    def __len__(self) -> int:
        return len(self.columns["samples"]) // 3

    def _read(self, i: int) -> tuple[list[list[int]], int, np.random.RandomState]:
        """Return the sentences of sample ``i``, its target length and its random numbers."""
        if not 0 <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        start, stop, target = self.columns["samples"].read(3 * i, 3 * i + 3).tolist()
        sentences = [self.dataset.get(number).tolist() for number in range(start, stop)]
        return sentences, target, np.random.RandomState((self.seed + i) % 2**32)


@dataclass
class BertSamples(_MaskedSamples):
    """Samples of ``seq_length`` tokens. Text: at most ``seq_length`` less cls and two sep.

    The recipe has ``max_length = seq_length - 3`` and ``min_sentences`` 2 with ``binary_head``, else 1.

    Attributes:
        seq_length: tokens of a sample.
        binary_head: cut each text in two; half of the time the second half comes first.
    """

    _: KW_ONLY
    seq_length: int
    binary_head: bool = True

    def __getitem__(self, i: int) -> Sample:
        """Return sample ``i``.

        ``text``, ``types`` (which half), ``labels`` (-1 where nothing is hidden), ``padding_mask`` (1: a
        token) and ``loss_mask`` are int64 [seq_length]; ``is_random`` (halves exchanged) and ``truncated``
        are 0 or 1.

        Raises:
            DataError: a token is not in the vocabulary.
        """
        sentences, target, rng = self._read(i)
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
            longest=BERT_LONGEST_NGRAM,
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


@dataclass
class T5Samples(_MaskedSamples):
    """Samples for an encoder and a decoder. Text: at most ``encoder_length`` less two special tokens.

    The recipe has ``max_length = encoder_length - 2`` and ``min_sentences = 1``; the vocabulary has bos, eos and
    sentinels.

    Attributes:
        encoder_length: tokens of the encoder.
        decoder_length: tokens of the decoder.
    """

    _: KW_ONLY
    encoder_length: int
    decoder_length: int

    def __getitem__(self, i: int) -> Sample:
        """Return sample ``i``; E and D are the lengths of encoder and decoder.

        ``text_enc`` int64 [E]; ``text_dec``, ``labels`` (-1 behind the end) and ``loss_mask`` int64 [D];
        ``length_enc`` and ``length_dec``, tokens before the padding: each token sees those of the encoder, and of the
        decoder those not behind it; ``truncated`` 0 or 1.

        Raises:
            DataError: a token is not in the vocabulary, there are too few sentinels, or the
                spans do not fit the decoder.
        """
        sentences, target, rng = self._read(i)
        tokens = [token for sentence in sentences for token in sentence]
        masked = mask_tokens(
            tokens[:target],
            target,
            self.pieces,
            rng,
            replace=lambda token: self.pieces.mask,
            longest=SPAN_WORDS,
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

    def _rows(self, encoder: Sequence[int], spans: Sequence[int]) -> Sample:
        pad, count = self.pieces.pad, len(spans) + 1
        if len(encoder) > self.encoder_length or count > self.decoder_length:
            raise DataError(
                f"a sample of {len(encoder)} and {count} tokens does not fit an encoder of {self.encoder_length} and a "
                f"decoder of {self.decoder_length}; use longer ones"
            )
        return {
            "text_enc": _row(encoder, self.encoder_length, pad),
            "text_dec": _row([self.pieces.bos, *spans], self.decoder_length, pad),
            "labels": _row([*spans, self.pieces.eos], self.decoder_length, -1),
            "loss_mask": _row([1] * count, self.decoder_length, 0),
            "length_enc": len(encoder),
            "length_dec": count,
        }


def _row(values: Sequence[int], length: int, fill: int) -> npt.NDArray[np.int64]:
    row = np.full(length, fill, np.int64)
    row[: len(values)] = values
    return row
