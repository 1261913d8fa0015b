"""A stub of a scorer: it counts words of a list. Its numbers say nothing about toxicity."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megads.errors import ConfigError
from megads.storage.reading import read_text

WORDS = ("damn", "dumb", "hate", "idiot", "kill", "loser", "moron", "shut", "stupid", "ugly")
_WORD = re.compile(r"\w+")


class WordList:
    """Scores ``1 - 2**-n`` for a text with ``n`` words of the list, in any case: 0, 0.5, 0.75, 0.875, ...

    Args:
        path: a file with a word a line; None: :data:`WORDS`.

    Raises:
        ConfigError: the file cannot be read, or has no word.
    """

    batch, workers = 1000, 1

    def __init__(self, path: Path | None = None):
        words: Sequence[str] = WORDS
        if path is not None:
            try:
                words = read_text(path).split()
            except OSError as error:
                raise ConfigError(f"--words {path}: {error.strerror}") from None
            except ValueError as error:
                raise ConfigError(f"--words {path}: {error}") from None
        self.words = frozenset(word.lower() for word in words)
        if not self.words:
            raise ConfigError(f"--words {path}: has no word; pass a file with a word a line")
        if wrong := next((word for word in sorted(self.words) if not _WORD.fullmatch(word)), ""):
            raise ConfigError(f"--words {path}: {wrong!r} is not a word of letters and digits")

    def about(self) -> Mapping[str, Any]:
        """Return its words."""
        return {"scorer": "stub", "words": sorted(self.words)}

    def score(self, texts: Sequence[str]) -> list[Mapping[str, float]]:
        """Return the scores of texts."""
        return [{"toxicity": 1 - 0.5 ** sum(word in self.words for word in _words(text))} for text in texts]

    def stop(self) -> None:
        """Do nothing: no call waits."""

    def close(self) -> None:
        """Do nothing: it holds nothing that must be closed."""


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
