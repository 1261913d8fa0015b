"""``megads corpus find-duplicates``: pairs of documents with similar texts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from megads.data.corpus.duplicates.candidates import SIMILAR, Floats, Ints, Pairs, buckets_of, compare_buckets
from megads.data.corpus.duplicates.minhash import Signer
from megads.data.corpus.duplicates.records import Comparer, Fingerprint, Index, fingerprint_of, index_of
from megads.data.corpus.duplicates.shingles import Kind
from megads.data.corpus.frame.step import DROPPED, KEPT, Document, Finished, Joined, Lines, Result, Step, dump
from megads.data.corpus.ordered import ordered_map
from megads.data.preprocess.input.json_lines import BadLine
from megads.errors import ConfigError
from megads.text.plural import plural

_PAIRS = 256  # that a worker compares at once


@dataclass(frozen=True)
class Search:
    """What counts as similar, and how thoroughly pairs are looked for.

    20 bands of 5 numbers find 97 % of the pairs with a similarity of 0.7 and more of those above it; Megatron-LM's
    10 bands of 10 find 25 % of them.
    """

    num_bands: int = 20
    num_seeds: int = 100
    seed: int = 1234
    kind: Kind = "union"
    rounds: int = 1  # comparisons in a bucket; -1: until it is empty

    def __post_init__(self) -> None:
        if self.num_seeds % self.num_bands:
            raise ConfigError(
                f"--num-seeds {self.num_seeds} is not a multiple of --num-bands {self.num_bands}; pass one that is"
            )
        if self.rounds < 1 and self.rounds != -1:
            raise ConfigError(f"--heuristic-iter {self.rounds}: pass a positive number, or -1 for all pairs")


class FindDuplicates(Step):
    """Fingerprints of all documents, then the pairs.

    Args:
        keys: for each input, the key of the identifier; "" for a file of fingerprints.
        search: what is looked for.
        saved: file that gets the fingerprints, "" for none.
        has_pairs: whether pairs are computed; without, the fingerprints are the output.
        workers: processes that compare pairs.
    """

    name = "find-duplicates"

    def __init__(
        self, keys: Sequence[str], search: Search, *, saved: str = "", has_pairs: bool = True, workers: int = 1
    ):
        self._keys, self._search, self._has_pairs, self._workers = tuple(keys), search, has_pairs, workers
        self._source = 0
        self.extra_outputs = {"--save-fingerprints": saved} if saved and has_pairs else {}

    def options(self) -> dict[str, Any]:
        """Return everything that decides the output."""
        return {"keys": list(self._keys), "pairs": self._has_pairs, **asdict(self._search)}

    def load(self) -> None:
        """Import the library once for all workers."""
        self._signer = Signer(self._search.num_seeds, self._search.seed)

    def block(self, lines: Lines) -> Result:
        """Return the fingerprints of a block."""
        self._source = lines.source
        return super().block(lines)

    def judge(self, document: Document, result: Result) -> list[bytes]:
        """Return the fingerprint of a document."""
        search, key = self._search, self._keys[self._source]
        if not key:
            return [fingerprint_of(document.content, search.num_seeds, search.seed).line()]
        signature = self._signer.sign(document.text)
        return [Fingerprint(id_of(document.content, key), document.text, signature, search.seed).line()]

    def finish(self, joined: Joined) -> Finished:
        """Compare all documents of the same bucket, and write the similar pairs."""
        records = joined.streams[KEPT]
        joined.counts.pop("changed", None)
        if not self._has_pairs:
            return Finished(records, joined.streams[DROPPED])
        output = joined.folder / "pairs"
        index = index_of(records, joined.folder, self._search.num_seeds, joined.check)
        file = os.open(records, os.O_RDONLY)
        try:
            pairs = self._compare(index, file, joined)
            similar = pairs.similarities > SIMILAR
            self._write(output, Pairs(pairs.documents[similar], pairs.similarities[similar]), index, file)
        finally:
            os.close(file)
        joined.counts["compared_pairs"] = len(similar)
        joined.counts["similar_pairs"] = int(similar.sum())
        joined.counts["repeated_ids"], joined.counts["short_texts"] = index.repeated, index.short
        return Finished(output, joined.streams[DROPPED], (records,) if self.extra_outputs else ())

    def line(self, report: dict[str, Any]) -> str:
        """Return what was made in one line; first the path of the output."""
        counts, documents = report["counts"], plural(report["documents"]["kept"], "document", ",")
        if not self._has_pairs:
            return f"{report['output']}  # fingerprints of {documents}"
        line = f"{report['output']}  # {plural(counts['similar_pairs'], 'similar pair', ',')} of {documents}"
        if counts["repeated_ids"]:
            line += f"; ignored {counts['repeated_ids']:,} whose identifier came before"
        return line

    def _compare(self, index: Index, file: int, joined: Joined) -> Pairs:
        compare_some = Comparer(index, file, self._search.kind)

        def compare(pairs: Ints) -> Floats:
            joined.report(
                f"comparing {plural(len(pairs), 'pair', ',')} of {plural(len(index.starts), 'document', ',')}"
            )
            parts = [pairs[at : at + _PAIRS] for at in range(0, len(pairs), _PAIRS)]
            workers = min(self._workers, len(parts))
            return np.concatenate(list(ordered_map(compare_some, parts, workers, joined.check)))

        buckets = buckets_of(index.signatures, self._search.num_bands)
        return compare_buckets(buckets, len(index.starts), self._search.rounds, self._search.seed, compare)

    def _write(self, output: Path, pairs: Pairs, index: Index, file: int) -> None:
        """Write a line for each document with similar ones behind it: ``{id: [{other id: similarity}, ...]}``."""
        rows: Iterator[tuple[int, int, float]] = (
            (one, other, value)
            for (one, other), value in zip(pairs.documents.tolist(), pairs.similarities.tolist(), strict=True)
        )
        with open(output, "wb") as out:
            for one, group in groupby(rows, key=lambda row: row[0]):
                others = [{index.id(other, file): value} for _, other, value in group]
                out.write(dump({index.id(one, file): others}) + b"\n")


def id_of(content: dict[str, Any], key: str) -> str:
    """Return the identifier of a document; BadLine where it has none."""
    if key not in content:
        known = ", ".join(map(repr, list(content)[:8]))
        raise BadLine(f"has no key {key!r}; it has {known or 'none'}")
    value = content[key]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadLine(f"{key!r} is not a text or a whole number, which an identifier is")
    try:
        str(value).encode()
    except UnicodeEncodeError:
        raise BadLine(f"{key!r} holds half of a surrogate pair, which is not a character") from None
    return str(value)
