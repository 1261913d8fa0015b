"""Options of the command line that Megatron-LM, its forks and DeepSpeed have.

Those that are settings are declared with them (``setting(flags=...)``); those that are not
are rows of ``megads.config.sources.other_options``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from megads.config.deepspeed.json_file import FLAGS as DEEPSPEED_FLAGS
from megads.config.deepspeed.json_file import read_deepspeed_file
from megads.config.setting import Origin, Weak, takes_word
from megads.config.sources.other_options import NEEDS, OPTIONAL_WORDS, OPTIONS
from megads.config.tree import extra, fields, read_value
from megads.errors import ConfigError
from megads.release.deprecated import deprecated
from megads.text.plural import listed
from megads.text.quoting import quoted

Given = dict[str, tuple[Any, Origin]]
"""Values by dotted name, and where each came from."""

BACKEND = "--distributed-backend"
"""What it says is compared with the device's backend where that is known, at the launch."""

_NEGATIVE = re.compile(r"-\.?\d")


@dataclass(frozen=True)
class Flag:
    """One option, such as ``--sequence-parallel``."""

    name: str  # with its dashes
    gives: Mapping[str, Any]  # dotted name of a setting -> its value, as ``setting(flags=...)`` has it
    takes_words: bool = False  # whether all words up to the next option are its value

    @property
    def takes_value(self) -> bool:
        """Whether a word follows the option."""
        return any(map(takes_word, self.gives.values()))


@functools.cache
def flags() -> Mapping[str, Flag]:
    """Return every option that gives a setting a value, by name, in the order of the settings."""
    found: dict[str, dict[str, Any]] = {}
    many = set()
    for name, field in fields().items():
        for flag, value in extra(field, "flags").items():
            found.setdefault(flag, {})[name] = value
            if extra(field, "words"):
                many.add(flag)
    for old in deprecated("option").values():
        if old.use:
            found[old.name] = found[old.use]
            many |= {old.name} if old.use in many else set()
    return {flag: Flag(flag, gives, flag in many) for flag, gives in found.items()}


@dataclass(frozen=True)
class FlagsRead:
    """What the options of a command line say."""

    given: Given  # values of settings
    notes: tuple[str, ...] = ()  # lines worth showing to the user


def split_flags(args: Sequence[str], own: Mapping[str, bool]) -> tuple[list[tuple[str, str]], list[str]]:
    """Split a command line into the options of other toolkits and the rest.

    Args:
        own: options of the command itself, which are left to it, and whether a word follows each.

    Returns:
        Options with the words that follow them, as one text; and the other words in their order.

    Raises:
        ConfigError: an option has no value, or one too many.
    """
    found: list[tuple[str, str]] = []
    rest: list[str] = []
    words = list(args)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("--") or name in own or (name not in flags() and name not in OPTIONS):
            rest.append(word)
            if word == "--":
                return found, rest + words
            if own.get(word) and words:
                rest.append(words.pop(0))
            continue
        takes = takes_of(name)
        following = [value] if equals else _following(words, takes)
        if takes == "" and following:
            raise ConfigError(f"{name} takes no value, not {value!r}")
        if takes == "value" and not following:
            found_instead = f", and the next word is {words[0]!r}" if words else ""
            raise ConfigError(f"{name} needs a value{_choices_of(name)}{found_instead}")
        if not equals and name in OPTIONAL_WORDS and words and words[0] in OPTIONAL_WORDS[name]:
            words.pop(0)
        # One word may be a whole text; of several, each is a word of it, also with blanks inside.
        found.append((name, " ".join(map(quoted, following) if len(following) > 1 else following)))
    return found, rest


def _choices_of(name: str) -> str:
    """Return the values that an option takes as ``: 0, 1 or 2``, or nothing where they cannot be listed."""
    gives = [setting for setting, value in flags()[name].gives.items() if takes_word(value)] if name in flags() else []
    choices = [str(choice) for choice in get_args(fields()[gives[0]].annotation)] if gives else []
    return f": {listed(choices, 'or')}" if len(choices) > 1 else ""


def takes_of(name: str) -> str:
    """Return how many words follow an option: "" for none, "value" for one, "values" for any number."""
    if name in OPTIONS:
        return OPTIONS[name].takes
    flag = flags()[name]
    return "values" if flag.takes_words and flag.takes_value else "value" if flag.takes_value else ""


def _following(words: list[str], takes: str) -> list[str]:
    """Take the words of an option's value from the front of ``words``."""
    taken: list[str] = []
    while words and takes and (not words[0].startswith("-") or _NEGATIVE.match(words[0])):
        taken.append(words.pop(0))
        if takes == "value":
            break
    return taken


def read_flags(words: Iterable[tuple[str, str]]) -> FlagsRead:
    """Return what options give.

    An option that is given twice means what it says the second time, as in argparse; that is reported.

    Args:
        words: options with the words that follow them (empty for those that take none).

    Raises:
        ConfigError: a value that the setting cannot have, an option that cannot be honored, or two options that differ.
    """
    last: dict[str, str] = {}
    notes: list[str] = []
    for flag, text in words:
        if last.get(flag, text) != text:
            notes.append(f"{flag} {last[flag]} is overridden by {flag} {text}")
        last[flag] = text
    refuse_rejected(last)
    result: Given = {}
    weak: Given = {}
    for flag, text in last.items():
        if flag in OPTIONS or flag in DEEPSPEED_FLAGS:
            continue
        for name, value in flags()[flag].gives.items():
            origin = Origin("cli", flag)
            if isinstance(value, Weak):
                weak[name] = (value.value, origin)
            else:
                add_given(result, name, _value(flag, text, name, value), origin)
    for flag in DEEPSPEED_FLAGS:
        if flag in last:
            values, more = read_deepspeed_file(last[flag], flag, _value_of(result, "train.dtype"))
            notes += more
            for name, value, origin in values:
                add_given(result, name, value, origin)
    notes += [each.note() for flag, each in deprecated("option").items() if flag in last]
    notes += ignored(last)
    return FlagsRead({**weak, **result}, tuple(notes))


def _value_of(given: Given, name: str) -> Any:
    return given[name][0] if name in given else None


def _value(flag: str, text: str, name: str, value: Any) -> Any:
    if not takes_word(value):
        return value
    try:
        word = value.text(text) if value else text
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from None
    return read_value(name, word, flag)


def refuse_rejected(last: Mapping[str, str]) -> None:
    """Refuse options that would change the result and that cannot be honored.

    Raises:
        ConfigError: naming the option and what to use instead.
    """
    for flag, text in last.items():
        option = OPTIONS.get(flag)
        if option is not None and option.is_rejected and text not in option.so_here:
            raise ConfigError(f"{' '.join([flag, *text.split()])} is not supported: {option.why}")
        need = NEEDS.get(flag)
        if need and not need.is_met_by(last):
            raise ConfigError(f"{flag} {need.why}")


def ignored(last: Mapping[str, str]) -> list[str]:
    """Return a line for every reason why options have no effect, naming these; none for ``BACKEND``."""
    names: dict[str, list[str]] = {}
    for flag, text in last.items():
        option = OPTIONS.get(flag)
        if option is not None and not option.is_rejected and text not in option.so_here and flag != BACKEND:
            names.setdefault(option.why, []).append(flag)
    return [f"{listed(each)} {'have' if len(each) > 1 else 'has'} no effect: {why}" for why, each in names.items()]


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
