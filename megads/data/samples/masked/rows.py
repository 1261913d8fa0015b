"""A sample of BERT or T5 as one row of integers, so that its batch is one int64 tensor [micro_batch, width].

What a sample consists of lies end to end. :class:`BertRow` and :class:`T5Row` say where each part is, for numpy
arrays and tensors: ``batch[:, row.labels]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class BertRow:
    """The parts of a row of BERT, of ``seq_length`` tokens S: text, types and labels of S each, and two numbers."""

    seq_length: int

    @property
    def text(self) -> slice:
        """Tokens, some of them hidden; pad behind the end."""
        return slice(0, self.seq_length)

    @property
    def types(self) -> slice:
        """Which half of the text a token belongs to, 0 or 1; 0 behind the end."""
        return slice(self.seq_length, 2 * self.seq_length)

    @property
    def labels(self) -> slice:
        """What was there; -1 where nothing is hidden."""
        return slice(2 * self.seq_length, 3 * self.seq_length)

    @property
    def length(self) -> int:
        """Column of the number of tokens before the padding."""
        return 3 * self.seq_length

    @property
    def is_random(self) -> int:
        """Column of whether the halves are exchanged, 0 or 1; 0 without the sentence head."""
        return 3 * self.seq_length + 1

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return 3 * self.seq_length + 2


@dataclass(frozen=True)
class T5Row:
    """The parts of a row of T5: E tokens of the encoder, twice D of the decoder, and two numbers."""

    encoder_length: int  # E
    decoder_length: int  # D

    @property
    def text_enc(self) -> slice:
        """Tokens of the encoder; pad behind the end."""
        return slice(0, self.encoder_length)

    @property
    def text_dec(self) -> slice:
        """Tokens that the decoder reads; pad behind the end."""
        return slice(self.encoder_length, self.encoder_length + self.decoder_length)

    @property
    def labels(self) -> slice:
        """Tokens that the decoder is to say; -1 behind the end."""
        return slice(self.text_dec.stop, self.text_dec.stop + self.decoder_length)

    @property
    def length_enc(self) -> int:
        """Column of the number of the encoder's tokens before the padding."""
        return self.encoder_length + 2 * self.decoder_length

    @property
    def length_dec(self) -> int:
        """Column of the number of the decoder's tokens before the padding."""
        return self.length_enc + 1

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self.length_enc + 2


RowParts = BertRow | T5Row


def bert_row(sample: Mapping[str, Any]) -> npt.NDArray[np.int64]:
    """Return a sample of :class:`BertSamples` as a row, int64 [width of :class:`BertRow`]."""
    parts = BertRow(len(sample["text"]))
    row = np.empty(parts.width, np.int64)
    row[parts.text], row[parts.types], row[parts.labels] = sample["text"], sample["types"], sample["labels"]
    row[parts.length], row[parts.is_random] = sample["padding_mask"].sum(), sample["is_random"]
    return row


def t5_row(sample: Mapping[str, Any]) -> npt.NDArray[np.int64]:
    """Return a sample of :class:`T5Samples` as a row, int64 [width of :class:`T5Row`]."""
    parts = T5Row(len(sample["text_enc"]), len(sample["text_dec"]))
    row = np.empty(parts.width, np.int64)
    row[parts.text_enc], row[parts.text_dec] = sample["text_enc"], sample["text_dec"]
    row[parts.labels] = sample["labels"]
    row[parts.length_enc], row[parts.length_dec] = sample["length_enc"], sample["length_dec"]
    return row
