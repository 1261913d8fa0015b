"""The file of sentences on which Megatron's own code was run, and its vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from megads.data.formats.writer import IndexedWriter
from megads.data.samples.masked.masking import WordPieces

LENGTHS = [5, 6, 7, 30, 4, 4, 9, 3, 8, 8]
DOCUMENTS = [0, 3, 4, 8, 10]
VOCAB = 200
PIECES = WordPieces(
    np.arange(VOCAB),
    np.array([i >= 50 and i % 7 == 0 for i in range(VOCAB)]),
    cls=1,
    sep=2,
    mask=3,
    pad=0,
    bos=4,
    eos=5,
    sentinels=tuple(range(190, 200)),
)


def write_sentences(
    folder: Path, lengths: list[int] = LENGTHS, documents: list[int] = DOCUMENTS, tokens: np.ndarray | None = None
) -> str:
    """Write documents of several sentences each; tokens count up from 20 if they are not given."""
    tokens = np.arange(20, 20 + sum(lengths)) if tokens is None else tokens
    with IndexedWriter(str(folder / "sentences"), "u2") as writer:
        writer.add_batch(tokens, np.array(lengths, np.int32), np.diff(documents).astype(np.int64))
        writer.finalize()
    return str(folder / "sentences")
