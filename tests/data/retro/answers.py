"""A project in which only neighbours know what comes next: every chunk repeats one token, drawn at random.

A document has four chunks of four tokens. The neighbour of a chunk is this chunk, and what continues it is the next
one. So of the 16 tokens that a model predicts it knows 12 without neighbours, and 15 with them; the first token of
the next document nothing can know.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np

from tests.data.retro.made import EOD, _write_neighbors, make_project

SEQ, CHUNK, WORDS = 16, 4, 12
WITHOUT_NEIGHBORS = 4 * math.log(WORDS) / SEQ
"""The loss that no model of the tokens alone is below, on documents that it has not seen."""


def make_answers(folder: Path, samples: int) -> None:
    """Write the project, of as many documents as samples: each sample is one."""
    lengths = [[SEQ - 1] * samples]
    make_project(
        folder,
        lengths=lengths,
        samples={"train": samples},
        seq_length=SEQ,
        chunk_length=CHUNK,
        kept=2,
        block_size=1000,
        megads={"eod": EOD, "vocab_size": EOD + 1, "num_neighbors": 2},
    )
    path = folder / "data" / "file0.bin"
    kind = np.dtype(np.uint8 if path.stat().st_size == samples * SEQ else np.uint16)
    tokens = np.fromfile(path, kind).reshape(samples, SEQ)
    words = np.repeat(tokens[:, ::CHUNK] % WORDS, CHUNK, axis=1)
    words[:, -1] = EOD
    words.astype(kind).tofile(path)
    neighbors = [
        [document * (SEQ // CHUNK) + chunk, (document * 31 + chunk * 7) % (samples * SEQ // CHUNK)]
        for document in document_order(samples)
        for chunk in range(SEQ // CHUNK)
    ]
    shutil.rmtree(folder / "query")
    _write_neighbors(folder / "query" / "train_0123", np.array(neighbors, np.int64), 1000)


def document_order(samples: int) -> list[int]:
    """Return the document of each sample, of one epoch or two, as Megatron-core orders a file with a weight."""
    needed = math.ceil(samples * 1.005)
    epochs = 1
    while (epochs * samples * SEQ - 1) // SEQ < needed:
        epochs += 1
    total = (epochs * samples * SEQ - 1) // SEQ
    whole, per_epoch = ((epochs - 1) * samples * SEQ - 1) // SEQ, (samples * SEQ - 1) // SEQ
    apart = epochs > 1 and needed - whole < int(0.8 * per_epoch)
    rng = np.random.RandomState(1234)
    documents = np.tile(np.arange(samples, dtype=np.int32), epochs)
    border = (epochs - apart) * samples
    rng.shuffle(documents[:border])
    rng.shuffle(documents[border:])
    order = np.arange(total, dtype=np.uint32)
    whole = whole if apart else total
    rng.shuffle(order[:whole])
    rng.shuffle(order[whole:])
    return [int(documents[number]) for number in order[:samples]]
