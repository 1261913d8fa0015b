"""Cut documents into chunks, and find those that are empty for BERT."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.formats.token_file import TokenFile
from megads.data.tokenizers.base import Tokenizer, TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer

WORDS = "Words"
"""Instead of a type of tokenizer: BERT's length is the number of words between blanks. For trials without a BERT."""

_EVERY = 256  # documents between two calls of ``tick``


@dataclass(frozen=True)
class Cutter:
    """Cuts documents.

    Attributes:
        chunk_length: tokens of a chunk; the last one of a document has 1 to ``chunk_length``.
        eod: token at the end of a document, which is in no chunk.
        text: of token ids.
        bert_length: of a text, in BERT's tokens; 0: the chunk is not valid.
    """

    chunk_length: int
    eod: int
    text: Callable[[Sequence[int]], str]
    bert_length: Callable[[str], int]

    def cut(
        self, file: TokenFile, start: int, stop: int, tick: Callable[[int], None] = lambda documents: None
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the chunks of documents ``start..stop``, as a block of the database holds them.

        ``chunks_valid`` and ``chunks_invalid``, uint32 [chunks, 4]: document, first token, behind the last token,
        length for BERT; without rows [0], as upstream. ``doc_offsets``, uint64 [documents, 2]: document, valid chunks
        of the block up to its end.
        """
        valid: list[tuple[int, ...]] = []
        invalid: list[tuple[int, ...]] = []
        offsets = np.empty((stop - start, 2), np.uint64)
        for document in range(start, stop):
            for row in self._rows(file, document):
                (valid if row[3] else invalid).append(row)
            offsets[document - start] = document, len(valid)
            if (document - start) % _EVERY == _EVERY - 1:
                tick(_EVERY)
        tick((stop - start) % _EVERY)
        return {
            "chunks_valid": np.array(valid, np.uint32),
            "chunks_invalid": np.array(invalid, np.uint32),
            "doc_offsets": offsets,
        }

    def _rows(self, file: TokenFile, document: int) -> Iterator[tuple[int, ...]]:
        tokens = file.get(document).tolist()
        if tokens and tokens[-1] == self.eod:
            tokens.pop()
        for first in range(0, len(tokens), self.chunk_length):
            chunk = tokens[first : first + self.chunk_length]
            yield document, first, first + len(chunk), self.bert_length(self.text(chunk))


def make_cutter(chunk_length: int, eod: int, tokenizer: Tokenizer, bert: TokenizerSpec) -> Cutter:
    """Return what cuts documents; ``bert`` may be of type :data:`WORDS`.

    Raises:
        MegadsError: as :func:`make_tokenizer`.
    """
    return Cutter(chunk_length, eod, tokenizer.decode, bert_lengths(bert))


def bert_lengths(bert: TokenizerSpec) -> Callable[[str], int]:
    """Return what counts BERT's tokens of a text, without [CLS] and [SEP]; errors as :func:`make_tokenizer`."""
    if bert.type == WORDS:
        return lambda text: len(text.split())
    pieces = make_tokenizer(bert)
    return lambda text: len(pieces.encode_plain(text))
