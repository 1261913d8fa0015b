"""A tiny corpus for Retro: texts, the tokenizers they are read with, and their token files."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megads.data.formats.writer import IndexedWriter

EOD = 256
LETTERS = "abcdef"
CHUNK, SEQ, BATCH, EVAL = 16, 64, 2, 2
BLOCK, DOC_BLOCK = 13, 7


@dataclass(frozen=True)
class Corpus:
    """Texts of the documents of each file, and how they are built into a project.

    Attributes:
        folder: of the token files ``a`` and ``b``, and the tokenizers.
        texts: of each file's documents.
        weights: of the files.
    """

    folder: Path
    texts: tuple[tuple[str, ...], ...]
    weights: tuple[float, ...] = (0.3, 0.7)

    @property
    def names(self) -> tuple[str, ...]:
        """The files' prefixes below data/."""
        return ("a", "b")[: len(self.texts)]

    def options(self, **more: object) -> dict[str, object]:
        """Return what is asked for, as :func:`megads.data.retro.prepare.prepare` takes it."""
        pairs = zip(self.weights, self.names, strict=False)
        return {
            "data_path": " ".join(f"{weight} {self.folder / name}" for weight, name in pairs),
            "tokenizer_type": "GPT2BPETokenizer",
            "vocab_file": str(self.folder / "vocab.json"),
            "merge_file": str(self.folder / "merges.txt"),
            "bert_vocab_file": str(self.folder / "vocab.txt"),
            "seq_length": SEQ,
            "train_samples": 20,
            "global_batch_size": BATCH,
            "eval_iters": EVAL,
            "eval_interval": 10,
            "split": "70,20,10",
            "chunk_length": CHUNK,
            "block_size": BLOCK,
            "doc_block_size": DOC_BLOCK,
            "num_neighbors_query": 5,
            "num_neighbors": 4,
            **more,
        }


def make_corpus(folder: Path, seed: int = 3) -> Corpus:
    """Write the corpus: words of few letters, so that chunks are near each other; and stretches of blanks.

    A token is a byte, so a chunk of 16 blanks is empty for BERT. Some documents are copies.
    """
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    _tokenizers(folder)
    files = []
    for count in (18, 23):
        texts = [_text(rng) for _ in range(count)]
        texts[3] = texts[5] = texts[4]
        texts[7] = "x" + " " * 40
        files.append(tuple(texts))
    for name, texts in zip(("a", "b"), files, strict=True):
        with IndexedWriter(str(folder / name), np.uint16) as writer:
            for number, text in enumerate(texts):
                # Documents without an end of their own exist, too.
                end = [] if number % 6 == 2 else [EOD]
                writer.add_document(np.array([*text.encode(), *end]))
            writer.finalize()
    return Corpus(folder, tuple(files))


def _text(rng: random.Random) -> str:
    words = ["".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 2))) for _ in range(rng.randint(1, 50))]
    if rng.random() < 0.3:
        words.insert(rng.randrange(len(words)), " " * 36)
    return " ".join(words)


def _tokenizers(folder: Path) -> None:
    names = _byte_names()
    (folder / "vocab.json").write_text(json.dumps({**{names[b]: b for b in range(256)}, "<|endoftext|>": EOD}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    rows = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{each}" for each in letters)]
    (folder / "vocab.txt").write_text("\n".join(rows) + "\n")


def _byte_names() -> dict[int, str]:
    """Return the character that stands for each byte in GPT-2's vocabulary."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in shown]
    return {**{byte: chr(byte) for byte in shown}, **{byte: chr(256 + i) for i, byte in enumerate(rest)}}
