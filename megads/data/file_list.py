"""Read the list of data files of a run: ``WEIGHT PREFIX CORPUS`` on each line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from megads.errors import DataError


@dataclass(frozen=True)
class Shard:
    """One pair of data files, ``<prefix>.bin`` and ``<prefix>.idx``."""

    weight: float  # share of the samples, relative to the other shards; not negative
    prefix: str  # path without suffix
    corpus: str  # shards of the same corpus are concatenated, corpora are blended


def read_file_list(path: Path) -> list[Shard]:
    """Return the list's shards in order; their weights have a positive sum.

    Blank lines and everything behind a ``#`` are skipped; a ``.bin`` or ``.idx`` suffix is
    removed; without a third column the corpus is the prefix's last part. A relative prefix
    starts at the folder of the list, wherever the run is started.

    Raises:
        DataError: the list can not be read, is empty, or has a line that is not understood.
    """
    shards = []
    for number, line in enumerate(_read_text(path).splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if words:
            shards.append(_parse(words, line.strip(), path.absolute().parent, f"{path}:{number}"))
    if not shards:
        raise DataError(f"{path}: lists no data; write 'WEIGHT PREFIX CORPUS' on each line")
    if not sum(shard.weight for shard in shards) > 0:
        raise DataError(f"{path}: all weights are 0; at least one must be positive")
    return shards


def strip_suffix(prefix: str) -> str:
    """Return ``prefix`` without a ``.bin`` or ``.idx`` at its end."""
    for suffix in (".bin", ".idx"):
        if prefix.endswith(suffix) and prefix != suffix:
            return prefix[: -len(suffix)]
    return prefix


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = "is a folder" if isinstance(error, IsADirectoryError) else str(error.strerror).lower()
        raise DataError(
            f"DATA_FILE_LIST {path}: {reason}; give a text file with 'WEIGHT PREFIX CORPUS' on each line"
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"DATA_FILE_LIST {path}: not UTF-8 text (byte {error.start}); "
            "give a text file with 'WEIGHT PREFIX CORPUS' on each line"
        ) from None


def _parse(words: list[str], line: str, folder: Path, where: str) -> Shard:
    if not 2 <= len(words) <= 3:
        raise DataError(f"{where}: expected 'WEIGHT PREFIX CORPUS', got {line!r}")
    try:
        weight = float(words[0])
    except ValueError:
        raise DataError(f"{where}: expected 'WEIGHT PREFIX CORPUS', but {words[0]!r} is not a number") from None
    if not (math.isfinite(weight) and weight >= 0):
        raise DataError(f"{where}: weight {words[0]} must be a finite number, 0 or larger")
    prefix = str(folder / strip_suffix(words[1]))
    return Shard(weight, prefix, words[2] if len(words) == 3 else Path(prefix).name)
