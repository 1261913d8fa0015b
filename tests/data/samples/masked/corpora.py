"""Files of sentences and a WordPiece vocabulary, for runs of BERT and T5."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from megads.config.schema import RunConfig
from megads.data.formats.writer import IndexedWriter
from tests.data.factory import make_run

TOKENS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *(f"word{i}" for i in range(60)),
    *(f"##piece{i}" for i in range(30)),
)
FIRST = 5  # token of a text


def write_vocab(folder: Path) -> Path:
    """Write a vocab.txt and return its path."""
    path = folder / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in TOKENS))
    return path


def write_sentence_file(folder: Path, documents: int, seed: int = 0, name: str = "data_text_sentence") -> str:
    """Write documents of 1 to 9 sentences of 1 to 12 random tokens; return the prefix."""
    dice = np.random.RandomState(seed)
    counts = dice.randint(1, 10, documents)
    lengths = dice.randint(1, 13, counts.sum()).astype(np.int32)
    tokens = dice.randint(FIRST, len(TOKENS), lengths.sum())
    prefix = str(folder / name)
    with IndexedWriter(prefix, "u2") as writer:
        writer.add_batch(tokens, lengths, counts.astype(np.int64))
        writer.finalize()
    return prefix


def masked_run(
    family: str, path: str, vocab: Path, model: dict[str, object] | None = None, **sections: dict[str, object]
) -> RunConfig:
    """Return a run on ``path``; 24 tokens a sample, of T5 16 in the decoder."""
    shape = {"family": family, "seq_length": 24, "vocab_size": len(TOKENS) + 2 + 20, **(model or {})}
    if family == "t5":
        shape = {"decoder_seq_length": 16, **shape}
    data = {"tokenizer_type": "BertWordPieceLowerCase", "vocab_file": str(vocab), "vocab_extra_ids": 20, "path": path}
    return make_run(model=shape, data={**data, **sections.pop("data", {})}, **sections)
