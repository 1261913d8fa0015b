"""Which files a run learns from, in which shares, and which examples each epoch has."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from megads.errors import ConfigError
from megads.text.quoting import split_words

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shared:
    """A file, and its share; None: as many examples as it has."""

    path: str
    weight: float | None = None


def parse_files(text: str, name: str) -> tuple[Shared, ...]:
    """Return the files of a setting called ``name``: paths, or ``WEIGHT PATH WEIGHT PATH ...``.

    Raises:
        ConfigError: a weight is missing or no share, or a file is named twice.
    """
    words = [part for word in _words(text, name) for part in ([word] if _is_file(word) else word.split())]
    has_weights = bool(words) and _weight(words[0]) is not None and not Path(words[0]).exists()
    if not has_weights:
        files = tuple(Shared(word) for word in words)
    else:
        if len(words) % 2:
            raise ConfigError(f"{name}={text}: {words[-1]} has no weight; pass 'WEIGHT FILE WEIGHT FILE ...'")
        files = tuple(_shared(*pair, name) for pair in zip(words[::2], words[1::2], strict=True))
    paths = [each.path for each in files]
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise ConfigError(f"{name}: {twice[0]} is named twice; name every file once")
    return files


def _words(text: str, name: str) -> list[str]:
    try:
        return split_words(text)
    except ValueError as error:
        raise ConfigError(f"{name}={text}: {str(error).lower()}; quote a path with blanks") from None


def _is_file(word: str) -> bool:
    return Path(word).exists()


def _weight(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _shared(weight: str, path: str, name: str) -> Shared:
    share = _weight(weight)
    if share is None or not (0 < share < math.inf):
        raise ConfigError(f"{name}: {weight!r} is not a weight of {path}; pass 'WEIGHT FILE WEIGHT FILE ...'")
    return Shared(path, share)


class Blend:
    """Draws the examples of every epoch of some files.

    Without weights an epoch is every example once. With weights it has as many examples as all files, of each file
    its share: a file that is small for its share is read several times, of one that is large for it an epoch takes up
    where the epoch before has ended.

    Args:
        sizes: examples of each file.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float] | None, seed: int):
        self.sizes, self.seed = list(sizes), seed
        self.firsts = np.concatenate([[0], np.cumsum(self.sizes)])[:-1].astype(np.int64)
        self.shares = self.sizes if weights is None else _shares(sum(self.sizes), weights)
        self._passes = functools.lru_cache(maxsize=2 * len(self.sizes))(self._order)

    @property
    def is_constant(self) -> bool:
        """Whether every epoch has the same examples."""
        return self.shares == self.sizes

    def draw(self, epoch: int) -> Numbers:
        """Return the examples of an epoch: numbers that count through all files, sorted by file."""
        return np.concatenate([self._of_file(i, epoch) for i in range(len(self.sizes))])

    def _of_file(self, file: int, epoch: int) -> Numbers:
        size, share = self.sizes[file], self.shares[file]
        parts, at, left = [np.empty(0, np.int64)], epoch * share, share
        while left:
            number, place = divmod(at, size)
            part = self._passes(file, number)[place : place + left]
            parts.append(self.firsts[file] + part)
            at, left = at + len(part), left - len(part)
        return np.concatenate(parts)

    def _order(self, file: int, number: int) -> Numbers:
        """Return the examples of a file in the order of one pass over it."""
        generator = np.random.Generator(np.random.PCG64([self.seed, 1, file, number]))
        return generator.permutation(self.sizes[file]).astype(np.int64)


def _shares(total: int, weights: Sequence[float]) -> list[int]:
    """Return whole numbers in proportion to the weights whose sum is ``total``: the largest remainders round up."""
    exact = [total * weight / math.fsum(weights) for weight in weights]
    found = [int(each) for each in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: (found[i] - exact[i], i))
    for i in by_rest[: total - sum(found)]:
        found[i] += 1
    return found
