"""How the samples of BERT and T5 are drawn from a file: what a mix of files needs to know, and nothing of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from megads.config.schema import RunConfig
from megads.config.spans import SPECIALS
from megads.data.formats.token_file import TokenFile
from megads.data.samples.gpt import Stamp
from megads.data.samples.masked.masking import WordPieces
from megads.data.samples.masked.rows import BertRow, RowParts, T5Row, bert_row, t5_row
from megads.data.samples.masked.samples import BertSamples, T5Samples
from megads.data.samples.masked.sentence_map import SentenceRecipe
from megads.data.samples.recipe import Columns
from megads.errors import DataError
from megads.families.table import FAMILIES

_ROW_BYTES = 12  # of the sample map
_SPECIALS = {"bert": 3, "t5": SPECIALS}  # tokens of a sample that are not text


@dataclass(frozen=True)
class MaskedOptions:
    """The samples of BERT or T5; small, and the same on every rank."""

    kind: Literal["bert", "t5"]
    seq_length: int  # of T5, of its encoder
    decoder_length: int = 0  # T5
    binary_head: bool = False  # BERT: whether a text is cut in two
    mask_prob: float = 0.15
    short_share: float = 0.1

    @staticmethod
    def of(run: RunConfig) -> MaskedOptions | None:
        """Return the options of a derived run; None if its family reads plain tokens."""
        model, data = run.model, run.data
        kind = FAMILIES[model.family].samples
        if kind != "bert" and kind != "t5":
            return None
        head = kind == "bert" and model.binary_head
        return MaskedOptions(
            kind, model.seq_length, model.decoder_seq_length, head, data.mask_prob, data.short_seq_prob
        )

    @property
    def max_length(self) -> int:
        """Tokens of text in a sample, at most."""
        return self.seq_length - _SPECIALS[self.kind]

    @property
    def min_sentences(self) -> int:
        """Sentences of a sample, at least."""
        return 2 if self.binary_head else 1

    @property
    def parts(self) -> RowParts:
        """Where what is in a row."""
        return BertRow(self.seq_length) if self.kind == "bert" else T5Row(self.seq_length, self.decoder_length)

    def recipe(
        self, prefix: str, stamp: Stamp, documents: range, tokens: int, num_samples: int | None, seed: int
    ) -> SentenceRecipe:
        """Return the samples of some ``documents`` of a file, which hold about ``tokens`` tokens."""
        epoch = max(len(documents), tokens // self.max_length)
        return SentenceRecipe(
            prefix,
            stamp,
            documents.start,
            documents.stop,
            self.max_length,
            self.min_sentences,
            num_samples,
            seed,
            self.short_share,
            nbytes=_ROW_BYTES * ((num_samples or 0) + epoch),
        )

    def rows(self, dataset: TokenFile, columns: Columns, pieces: WordPieces, seed: int) -> MaskedRows:
        """Return the samples of a file; ``columns`` are those of its recipe."""
        if self.kind == "bert":
            return MaskedRows(
                BertSamples(
                    dataset,
                    columns,
                    pieces,
                    seed=seed,
                    probability=self.mask_prob,
                    seq_length=self.seq_length,
                    binary_head=self.binary_head,
                )
            )
        return MaskedRows(
            T5Samples(
                dataset,
                columns,
                pieces,
                seed=seed,
                probability=self.mask_prob,
                encoder_length=self.seq_length,
                decoder_length=self.decoder_length,
            )
        )


@dataclass
class MaskedRows:
    """The samples of a file, as rows; see :mod:`megads.data.samples.masked.rows`."""

    samples: BertSamples | T5Samples

    @property
    def dataset(self) -> TokenFile:
        """The file."""
        return self.samples.dataset

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> npt.NDArray[np.int64]:
        """Return sample ``i``, int64 [width].

        Raises:
            DataError: it does not fit the vocabulary or the decoder, or the file is broken.
        """
        try:
            sample = self.samples[i]
        except DataError as error:
            text = str(error)
            raise DataError(
                text if text.startswith(self.dataset.prefix) else f"{self.dataset.prefix}: {text}"
            ) from None
        return bert_row(sample) if isinstance(self.samples, BertSamples) else t5_row(sample)
