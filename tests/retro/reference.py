"""Retro's preprocessing in plain loops, written from Megatron's layout: what the project must equal, bit by bit.

Nothing of ``megads`` is called.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections.abc import Sequence

import numpy as np

from tests.retro.corpus import BATCH, BLOCK, CHUNK, DOC_BLOCK, EOD, EVAL, SEQ, Corpus

Files = dict[str, dict[str, np.ndarray]]
"""Path of a file, and its datasets."""


class Reference:
    """What a project of a corpus holds.

    ``settings``: those of ``Corpus.options``.
    """

    def __init__(self, corpus: Corpus, settings: dict):
        self.corpus, self.settings = corpus, settings
        self.names = corpus.names
        self.stored = [
            [list(text.encode()) + ([] if number % 6 == 2 else [EOD]) for number, text in enumerate(texts)]
            for texts in corpus.texts
        ]
        self.shares = [float(each) for each in settings["split"].split(",")]

    def documents_to_train_on(self, file: int) -> int:
        """Documents of a file whose chunks may be retrieved."""
        return int(self.shares[0] / sum(self.shares) * len(self.stored[file]))

    def chunks(self, file: int) -> list[tuple[int, int, int, int]]:
        """Document, begin, end and length for BERT of a file's chunks."""
        rows = []
        for number, tokens in enumerate(self.stored[file]):
            tokens = [token for token in tokens if token != EOD]
            for begin in range(0, len(tokens), CHUNK):
                end = min(begin + CHUNK, len(tokens))
                # Every letter is a piece of its own, and there is nothing but letters and blanks.
                pieces = sum(1 for token in tokens[begin:end] if token != 32)
                rows.append((number, begin, end, pieces))
        return rows

    def database(self) -> Files:
        """All files of db/."""
        files: Files = {}
        merged = {"train": [], "valid": [], "sampled": []}
        ends = []
        weights = self.corpus.weights[: len(self.names)]
        for file, name in enumerate(self.names):
            rows = self.chunks(file)
            files |= self._individual(f"db/individual/{name}", rows, len(self.stored[file]))
            valid = [(file, *row) for row in rows if row[3]]
            limit = self.documents_to_train_on(file)
            train = [row for row in valid if row[1] < limit]
            ntrain = self.settings.get("ntrain")
            sampled = len(train) if ntrain is None else int(ntrain * weights[file] / sum(weights))
            before = len(merged["train"])
            ends += [(file, d, before + sum(1 for row in train if row[1] <= d)) for d in range(limit)]
            merged["train"] += train
            merged["valid"] += valid[len(train) :]
            merged["sampled"] += train[:sampled]
        for table, rows in merged.items():
            files[f"db/merged/{table}.hdf5"] = {
                "chunks": np.array(rows, "uint32").reshape(-1, 5),
                "n_written": np.array([len(rows)], "uint64"),
            }
        files["db/merged/train.hdf5"]["doc_offsets"] = np.array(ends, "uint64").reshape(-1, 3)
        return files

    def _individual(self, folder: str, rows: list, documents: int) -> Files:
        files: Files = {}
        for start, stop, name in blocks(documents, DOC_BLOCK):
            mine = [row for row in rows if start <= row[0] < stop]
            valid = [row for row in mine if row[3]]
            files[f"{folder}/{name}"] = {
                "chunks_valid": np.array(valid, "uint32"),
                "chunks_invalid": np.array([row for row in mine if not row[3]], "uint32"),
                "doc_offsets": np.array(
                    [(d, sum(1 for row in valid if row[0] <= d)) for d in range(start, stop)], "uint64"
                ),
            }
        return files

    def vectors(self) -> np.ndarray:
        """Vectors of the chunks to retrieve, by hashed words."""
        rows = self.database()["db/merged/train.hdf5"]["chunks"].tolist()
        return np.stack([embed(self.stored[file][document][begin:end]) for file, document, begin, end, _ in rows])

    def neighbors(self, split: str) -> np.ndarray:
        """Neighbours of the chunks of a split's samples."""
        table = self.database()["db/merged/train.hdf5"]["chunks"][:, :2].tolist()
        vectors = self.vectors()
        out = []
        for file, tokens, documents in self.samples(split):
            for begin in range(0, SEQ, CHUNK):
                query = embed(tokens[begin : begin + CHUNK])
                near = sorted((float(((query.astype("f8") - row) ** 2).sum()), i) for i, row in enumerate(vectors))
                ids = [i for _, i in near[: self.settings["num_neighbors_query"]]]
                kept = [i for i in ids if not (table[i][0] == file and table[i][1] in documents)]
                kept = kept[: self.settings["num_neighbors"]]
                out.append(kept + [-1] * (self.settings["num_neighbors"] - len(kept)))
        return np.array(out, "int64")

    def neighbor_blocks(self, split: str) -> dict[str, np.ndarray]:
        """The same, by the name of the file."""
        rows = self.neighbors(split)
        return {name: rows[start:stop] for start, stop, name in blocks(len(rows), BLOCK)}

    def samples(self, split: str) -> list[tuple[int, list[int], set[int]]]:
        """File, tokens and documents of each sample of a split, in Megatron's order."""
        place = ("train", "valid", "test").index(split)
        size = self.settings["train_samples"] if split == "train" else EVAL * BATCH
        weights = np.array(self.corpus.weights[: len(self.names)])
        weights = weights / weights.sum()
        each = [
            self._of_file(file, place, math.ceil(math.ceil(size * weight) * 1.005))
            for file, weight in enumerate(weights)
        ]
        taken = [0] * len(self.names)
        out = []
        for number in range(size):
            lacks = [weight * max(number, 1) - count for weight, count in zip(weights, taken, strict=True)]
            file = int(np.argmax(lacks))
            tokens, documents = each[file][taken[file]]
            out.append((file, tokens, documents))
            taken[file] += 1
        return out

    def _of_file(self, file: int, place: int, size: int) -> list[tuple[list[int], set[int]]]:
        count = len(self.stored[file])
        borders = [round(border / sum(self.shares) * count) for border in itertools.accumulate(self.shares, initial=0)]
        documents = list(range(borders[place], borders[place + 1]))
        epoch = sum(len(self.stored[file][document]) for document in documents)
        epochs = 1
        while (epochs * epoch - 1) // SEQ < size:
            epochs += 1
        total, apart = (epochs * epoch - 1) // SEQ, (epochs * epoch - 1) // SEQ
        if epochs > 1:
            before = ((epochs - 1) * epoch - 1) // SEQ
            if size - before < int(0.8 * ((epoch - 1) // SEQ)):
                apart = before
        rng = np.random.RandomState(self.settings.get("seed", 1234))
        order = np.tile(np.array(documents, "int32"), epochs)
        whole = len(order) if apart == total else len(documents) * (epochs - 1)
        rng.shuffle(order[:whole])
        rng.shuffle(order[whole:])
        stream = [(document, token) for document in order.tolist() for token in self.stored[file][document]]
        shuffled = np.arange(total, dtype="uint32")
        rng.shuffle(shuffled[:apart])
        rng.shuffle(shuffled[apart:])
        parts = [stream[int(i) * SEQ : int(i) * SEQ + SEQ + 1] for i in shuffled]
        return [([token for _, token in part], {document for document, _ in part}) for part in parts]


def blocks(rows: int, size: int) -> list[tuple[int, int, str]]:
    """Begin, end and name of blocks of rows."""
    digits = int(np.ceil(np.log(rows) / np.log(10)) + 1)
    found = [(start, min(start + size, rows)) for start in range(0, rows, size)]
    return [(start, stop, f"{str(start).zfill(digits)}-{str(stop).zfill(digits)}.hdf5") for start, stop in found]


def embed(tokens: Sequence[int]) -> np.ndarray:
    """The vector of hashed words of a chunk of bytes."""
    text = bytes(token for token in tokens if token != EOD).decode()
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    counts = [0.0] * 256
    for feature in [*words, *(f"{words[i]} {words[i + 1]}" for i in range(len(words) - 1))]:
        code = zlib.crc32(feature.encode())
        counts[code % 256] += -1.0 if code >= 2**31 else 1.0
    length = math.sqrt(sum(count * count for count in counts)) or 1.0
    return np.array([count / length for count in counts]).astype("float32")
