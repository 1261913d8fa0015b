"""From token ids to what is written: tokens, the length of each sequence, the sequences of each document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.errors import DataError

Numbers = npt.NDArray[Any]

# Above so many tokens a document, copying documents one by one is the faster way.
_LONG = 400


@dataclass(frozen=True)
class Packed:
    """What a block adds to one pair of token files."""

    tokens: Numbers  # of the file's type
    lengths: npt.NDArray[np.int32]  # [n] tokens of each sequence, none 0
    sequences: npt.NDArray[np.int32]  # [d] sequences of each document


def pack(
    ids: Numbers,
    offsets: npt.NDArray[np.int64],
    counts: list[int] | None,
    documents: int,
    *,
    dtype: np.dtype[Any],
    eod: int | None,
    limit: int,
) -> Packed:
    """Return the documents as they are stored.

    Sequences without tokens are dropped; ``eod`` is put behind the last sequence of each document
    that has one. As in Megatron, a document without tokens stays a document, without sequences.

    Args:
        ids: of all texts, end to end.
        offsets: [texts + 1], where each text begins and the last one ends.
        counts: texts of each document; None: 1 each.
        documents: how many there are.
        dtype: of the file.
        eod: id at the end of documents, None for none.
        limit: what every id must be below.

    Raises:
        DataError: an id is out of range.
    """
    if len(ids) and (int(ids.max()) >= limit or int(ids.min()) < 0):
        raise DataError(f"the tokenizer gave id {ids.max()}, but its vocabulary ends at {limit - 1}")
    lengths = np.diff(offsets).astype(np.int32)
    kept = lengths > 0
    owners = np.arange(documents) if counts is None else np.repeat(np.arange(documents), counts)
    if not kept.all():
        lengths, owners = lengths[kept], owners[kept]
    sequences = np.bincount(owners, minlength=documents).astype(np.int32)
    if eod is None or not len(lengths):
        return Packed(ids.astype(dtype), lengths, sequences)
    last = np.flatnonzero(np.append(owners[1:] != owners[:-1], True))
    ends = np.cumsum(lengths, dtype=np.int64)[last]
    lengths[last] += 1
    return Packed(_insert(ids, ends, eod, dtype), lengths, sequences)


def _insert(ids: Numbers, ends: npt.NDArray[np.int64], eod: int, dtype: np.dtype[Any]) -> Numbers:
    """Return ``ids`` as ``dtype`` with ``eod`` behind each of the positions ``ends``; the last one is the end."""
    result = np.empty(len(ids) + len(ends), dtype)
    places = ends + np.arange(len(ends))
    if len(ids) > _LONG * len(ends):
        begin = 0
        for shift, end in enumerate(ends.tolist()):
            result[begin + shift : end + shift] = ids[begin:end]
            begin = end
        result[places] = eod
    else:
        is_token = np.ones(len(result), bool)
        is_token[places] = False
        result[is_token] = ids
        result[places] = eod
    return result
