"""The language of a text: py3langid, asked about the beginning of it."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from megads.errors import ConfigError, DependencyError

PREFIX = 1000
"""Characters of a text by which its language is found, from its first letter on. docs/corpus.md has the figures."""
NONE = "none"
"""The language of a text without letters."""
_LETTER = re.compile(r"[^\W\d_]")


class Language:
    """Finds languages. Made before workers are forked, which then share its tables.

    Raises:
        DependencyError: py3langid is missing.
    """

    def __init__(self) -> None:
        self._model = _model()

    @property
    def names(self) -> list[str]:
        """Codes of the languages that are known (ISO 639-1)."""
        return sorted(self._model.labels)

    def __call__(self, text: str) -> str:
        """Return the code of the language of ``text``; ``none`` where it has no letters."""
        letter = _LETTER.search(text)
        if letter is None:
            return NONE
        name: str = self._model.classify(text[letter.start() : letter.start() + PREFIX])[0]
        return name

    def check(self, names: tuple[str, ...]) -> None:
        """Raise ConfigError where one of ``names`` is not known."""
        for name in names:
            if name not in self._model.labels:
                raise ConfigError(f"--languages {name}: is not a known language; one of {' '.join(self.names)}")


@cache
def _model() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise DependencyError("languages need py3langid; pip install -e '.[corpus]' in the checkout") from None
    return LanguageIdentifier.from_model_file(MODEL_FILE)
