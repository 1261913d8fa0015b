"""Fingerprints in a file, a JSON line each, and as arrays."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from megads.data.corpus.duplicates.candidates import Floats, Ints
from megads.data.corpus.duplicates.minhash import Signature, packed, unpacked
from megads.data.corpus.duplicates.shingles import LENGTH, Codes, Kind, codes_of, similarity
from megads.data.corpus.frame.step import dump
from megads.data.preprocess.input.json_lines import BadLine

_OFTEN = 1000  # records between two looks whether to stop


@dataclass(frozen=True)
class Fingerprint:
    """A document that takes part in the search."""

    id: str
    text: str
    signature: Signature
    seed: int  # that the signature was made with

    def line(self) -> bytes:
        """Return the fingerprint as a line without its break."""
        return dump({"id": self.id, "text": self.text, "seed": self.seed, "signature": packed(self.signature)})


def fingerprint_of(content: dict[str, Any], num_seeds: int, seed: int) -> Fingerprint:
    """Return the fingerprint of a line's object; BadLine if it is not one, or made with other numbers."""
    name, text, made, signature = (content.get(key) for key in ("id", "text", "seed", "signature"))
    if not (isinstance(name, str) and isinstance(text, str) and isinstance(made, int) and isinstance(signature, str)):
        raise BadLine("is not a fingerprint; --load-fingerprints takes files that --save-fingerprints wrote")
    if made != seed:
        raise BadLine(f"is a fingerprint of --seed {made}, not {seed}; pass the seed of the saved fingerprints")
    try:
        return Fingerprint(name, text, unpacked(signature, num_seeds), made)
    except ValueError as error:
        raise BadLine(f"{error}; pass the --num-seeds of the saved fingerprints") from None


@dataclass(frozen=True)
class Index:
    """The documents of a file of fingerprints that can have near-duplicates: the first of each id.

    In memory: 16 bytes for each document; while it is made, about 100 more.
    """

    path: Path
    starts: Ints  # [n] of each line, in bytes
    sizes: Ints  # [n]
    signatures: npt.NDArray[np.uint32]  # [n, num_seeds], in a file
    repeated: int  # documents whose id came before
    short: int  # documents without a shingle

    def id(self, number: int, file: int) -> str:
        """Return the identifier of a document; ``file`` is a descriptor of the opened file."""
        found: str = self._record(number, file)["id"]
        return found

    def codes(self, number: int, file: int) -> Codes:
        """Return the characters of a document."""
        return codes_of(self._record(number, file)["text"])

    def _record(self, number: int, file: int) -> Any:
        return orjson.loads(os.pread(file, int(self.sizes[number]), int(self.starts[number])))


def index_of(path: Path, folder: Path, num_seeds: int, check: Callable[[], None]) -> Index:
    """Read a file of fingerprints; ``folder`` gets a file of the signatures, ``check`` may raise to stop."""
    starts, sizes, seen = array("q"), array("q"), set()
    repeated = short = at = 0
    signatures = folder / "signatures"
    with open(path, "rb") as file, open(signatures, "wb") as out:
        for number, line in enumerate(file):
            if not number % _OFTEN:
                check()
            start, at = at, at + len(line)
            record = orjson.loads(line)
            name = hashlib.blake2b(record["id"].encode(), digest_size=16).digest()
            if name in seen:
                repeated += 1
            elif len(record["text"]) <= LENGTH:
                short += 1
            else:
                starts.append(start)
                sizes.append(len(line))
                out.write(unpacked(record["signature"], num_seeds).tobytes())
            seen.add(name)
    shape = (len(starts), num_seeds)
    table = np.memmap(signatures, "<u4", "r", shape=shape) if len(starts) else np.empty(shape, np.uint32)
    return Index(path, np.array(starts), np.array(sizes), table, repeated, short)


class Comparer:
    """Computes similarities of pairs of documents, whose texts are read from the file."""

    def __init__(self, index: Index, file: int, kind: Kind):
        self._index, self._file, self._kind = index, file, kind

    def __call__(self, pairs: Ints) -> Floats:
        """Return the similarities of pairs [m, 2]."""
        found, last, first = np.empty(len(pairs)), -1, np.empty(0, np.uint32)
        for at, (one, other) in enumerate(pairs.tolist()):
            if one != last:  # pairs are in ascending order
                last, first = one, self._index.codes(one, self._file)
            found[at] = similarity(first, self._index.codes(other, self._file), self._kind)
        return found
