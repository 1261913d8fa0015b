"""Options of the command line that older toolkits have; each gives one or more settings a value."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from megads.config.parse import parse
from megads.config.setting import Origin
from megads.config.tree import extra, fields
from megads.errors import ConfigError

Given = dict[str, tuple[Any, Origin]]
"""Values by dotted name, and where each came from."""


@dataclass(frozen=True)
class Flag:
    """One option, such as ``--sequence-parallel``.

    Attributes:
        name: with its dashes.
        gives: dotted name of a setting -> its value; None: the word that follows the option.
        takes_words: whether all words up to the next option are its value.
    """

    name: str
    gives: Mapping[str, Any]
    takes_words: bool = False

    @property
    def takes_value(self) -> bool:
        """Whether a word follows the option."""
        return None in self.gives.values()


@functools.cache
def flags() -> Mapping[str, Flag]:
    """Return every option by name, in the order of the settings."""
    found: dict[str, dict[str, Any]] = {}
    many = set()
    for name, field in fields().items():
        for flag, value in extra(field, "flags").items():
            found.setdefault(flag, {})[name] = value
            if extra(field, "words"):
                many.add(flag)
    return {flag: Flag(flag, gives, flag in many) for flag, gives in found.items()}


def read_flags(words: Iterable[tuple[str, str]]) -> Given:
    """Return what options give.

    Args:
        words: options with the words that follow them (empty for those that take none).

    Raises:
        ConfigError: a value that the setting can not have, or two options that differ.
    """
    result: Given = {}
    for flag, text in words:
        for name, value in flags()[flag].gives.items():
            if value is None:
                try:
                    value = parse(text, fields()[name])
                except ValueError as error:
                    raise ConfigError(f"{flag}: {error}") from None
            add_given(result, name, value, Origin("cli", flag))
    return result


def add_given(result: Given, name: str, value: Any, origin: Origin) -> None:
    """Add a value of the command line to ``result``.

    Raises:
        ConfigError: another word of the command line gives the setting another value.
    """
    before = result.setdefault(name, (value, origin))
    if before[0] != value:
        raise ConfigError(
            f"{before[1].detail} and {origin.detail} give {name} two values, {before[0]} and {value}; drop one of them"
        )
