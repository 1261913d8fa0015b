"""The examples of a file, made once and kept in the cache: other ranks and later runs read them."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from megads.data.chat.conversations import read_conversations
from megads.data.chat.examples import ExampleMaker, Report
from megads.data.formats.files import Row
from megads.data.samples.index_cache.cache import Cache
from megads.data.samples.recipe import ArrayStream, Recipe, Spec
from megads.errors import DataError

FORMAT = 2
"""Of what is made of a chat; raise it when the same text and template make other tokens."""

COUNTS = ("chats", "without_answer", "too_long", "shorter_contexts", "cut")


@dataclass(frozen=True)
class ChatIndex(Recipe):
    """Makes the examples of a file.

    Attributes:
        stamp: size and time of the file.
        about: what decides the examples besides the file: tokenizer, template, lengths.
    """

    path: str
    stamp: tuple[int, int]
    about: tuple[Any, ...]
    maker: Callable[[], ExampleMaker] = field(compare=False)
    kind: ClassVar[str] = "chat"

    @staticmethod
    def of(path: str, about: tuple[Any, ...], maker: Callable[[], ExampleMaker]) -> ChatIndex:
        """Return the recipe of a file; DataError where it cannot be read."""
        try:
            found = os.stat(path)
        except OSError as error:
            raise DataError(f"{path}: {(error.strerror or '').lower()}; pass the file of the chats") from None
        return ChatIndex(os.path.abspath(path), (found.st_size, found.st_mtime_ns), about, maker)

    @property
    def nbytes(self) -> int:
        """Nearly: a token takes about four letters, and is kept twice in four bytes."""
        return 2 * self.stamp[0]

    def description(self) -> dict[str, Any]:
        """Return what decides the arrays."""
        return {"path": self.path, "stamp": list(self.stamp), "about": list(self.about), "chats": FORMAT}

    def make(self) -> ArrayStream:
        """Read the file and make its examples; errors as of reading and of :class:`ExampleMaker`."""
        maker, tokens, labels, bounds = self.maker(), [], [], [0]
        for chat in read_conversations(self.path):
            example = maker(chat)
            if example is not None:
                tokens.append(example.tokens.astype(np.int32))
                labels.append(example.labels.astype(np.int32))
                bounds.append(bounds[-1] + len(example))
        counts = maker.report.counts
        if not tokens:
            raise DataError(f"{self.path}: {_nothing(counts, maker.seq_length)}")
        arrays: dict[str, npt.NDArray[Any]] = {
            "tokens": np.concatenate(tokens),
            "labels": np.concatenate(labels),
            "bounds": np.array(bounds, np.int64),
            "counts": np.array([counts[name] for name in COUNTS], np.int64),
        }
        digest = hashlib.blake2b(digest_size=8)
        for name in ("tokens", "labels", "bounds"):
            digest.update(arrays[name].tobytes())
        arrays["digest"] = np.frombuffer(digest.digest(), np.uint64)
        specs = tuple(Spec(name, array.dtype, array.shape) for name, array in arrays.items())
        return ArrayStream(specs, iter(arrays.values()))


def _nothing(counts: Counter[str], seq_length: int) -> str:
    if counts["too_long"]:
        return f"no answer begins within SEQ={seq_length} tokens; raise SEQ"
    return "no chat has an answer to learn; expected messages of assistant, or response, output or answer"


@dataclass(frozen=True)
class ChatFile:
    """The examples of a file."""

    path: str
    bounds: npt.NDArray[np.int64]  # where each begins, and the end
    tokens: Row
    labels: Row
    report: Report
    digest: str

    @staticmethod
    def read(recipe: ChatIndex, cache: Cache) -> ChatFile:
        """Return the examples of a file, which are made unless the cache has them; errors as of making them."""
        found = cache.get(recipe)
        whole = {name: found[name].read(0, len(found[name])) for name in ("bounds", "counts", "digest")}
        counts = Counter(dict(zip(COUNTS, map(int, whole["counts"]), strict=True)))
        digest = f"{int(whole['digest'][0]):016x}"
        return ChatFile(recipe.path, whole["bounds"], found["tokens"], found["labels"], Report(counts), digest)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each example."""
        return np.diff(self.bounds)

    def example(self, number: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return the tokens and labels of an example."""
        begin, end = int(self.bounds[number]), int(self.bounds[number + 1])
        return self.tokens.read(begin, end), self.labels.read(begin, end)
