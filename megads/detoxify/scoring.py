"""Scorers of texts behind one interface; a row for each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from megads.detoxify.classifier import Classifier
from megads.detoxify.perspective import Perspective, ServiceOptions
from megads.detoxify.word_list import WordList

Score = Mapping[str, float]
"""Attribute -> a number from 0 to 1; ``toxicity`` is one of them."""


class Scorer(Protocol):
    """What gives texts scores.

    Attributes:
        batch: texts of one call.
        workers: calls at a time, from threads.
    """

    batch: int
    workers: int

    def about(self) -> Mapping[str, Any]:
        """Return what decides the scores, as JSON; no secrets."""
        ...

    def score(self, texts: Sequence[str]) -> Sequence[Score | None]:
        """Return a score for each text, none of which is empty; None: it gives this text none.

        Raises:
            DataError: it fails, and trying again later may help.
            ConfigError: it fails for good.
            Stopped: see :meth:`stop`; of ``megads.detoxify.stopped``.
        """
        ...

    def stop(self) -> None:
        """Let calls that wait end with ``Stopped``."""
        ...

    def close(self) -> None:
        """Let go of what it holds, after the last call."""
        ...


@dataclass(frozen=True)
class ScorerOptions:
    """What the user says about a scorer; each reads what is its own.

    Attributes:
        service: of ``perspective``.
        model: folder of ``hf``.
        label: the class of ``hf`` that stands for toxicity; empty: found by its name.
        batch: texts that ``hf`` scores at a time.
        words: file of ``stub`` with a word a line; None: its own list.
    """

    service: ServiceOptions = field(default_factory=ServiceOptions)
    model: Path | None = None
    label: str = ""
    batch: int = 32
    words: Path | None = None


@dataclass(frozen=True)
class ScorerRow:
    """A kind of scorer."""

    help: str
    make: Callable[[ScorerOptions], Scorer]


SCORERS = {
    "perspective": ScorerRow("Google's service, over HTTP", lambda options: Perspective(options.service)),
    "hf": ScorerRow(
        "a Hugging Face classifier in a local folder",
        lambda options: Classifier(options.model, options.label, options.batch),
    ),
    "stub": ScorerRow(
        "counts the words of a list: for dry runs, says nothing about toxicity",
        lambda options: WordList(options.words),
    ),
}
"""Scorers by name."""
