"""Declare a setting once: its type, default, environment names, unit and help."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A group of settings. Frozen: a change makes a new section."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class Origin:
    """Where a resolved value came from, for ``megads config`` and error messages."""

    # "default" | "optimizer" | "family" | "preset" | "machine" | "config" | "env" | "cli" | "checkpoint" | "derived"
    layer: str
    detail: str = ""  # the file, variable, flag or formula

    def __str__(self) -> str:
        return f"{self.layer} {self.detail}".rstrip()


DTYPES = {
    **dict.fromkeys(("bfloat16", "torch.bfloat16", "bf16-mixed"), "bf16"),
    **dict.fromkeys(("float16", "torch.float16", "half", "fp16-mixed"), "fp16"),
    **dict.fromkeys(("float32", "torch.float32", "float", "single"), "fp32"),
}
"""Other names of precisions."""


LARGEST = 2**53
"""A whole number that a setting may have, unless it has a limit of its own; doubles hold all up to here."""


@dataclass(frozen=True)
class Word:
    """The word behind an option of the command line, where it is not the value of the setting itself."""

    # another toolkit's word -> the word here, as ``{"adam": "adamw"}``; others stay as they are
    names: Mapping[str, str] = field(default_factory=dict)
    # what makes the setting's text of the option's; raises ValueError with one line
    convert: Callable[[str], str] | None = None

    def text(self, word: str) -> str:
        """Return the setting's text.

        Raises:
            ValueError: the word cannot be converted.
        """
        found = self.names.get(word, word)
        return self.convert(found) if self.convert else found


def minutes(word: str) -> str:
    """Return minutes as seconds."""
    return repr(60 * _number(word))


def exponent_of_two(word: str) -> str:
    """Return N of 2**N, which Megatron-LM writes out, as 4294967296."""
    number = _number(word)
    if number < 1 or number != int(number) or int(number) & (int(number) - 1):
        raise ValueError(f"{word!r} is not a power of two; use 4294967296 (2**32) or 65536 (2**16)")
    return str(int(number).bit_length() - 1)


def with_end_of_document(word: str) -> str:
    """Return the tokens of a NullTokenizer: its ids, and the end of documents behind them."""
    if not word.isascii() or not word.isdecimal():
        raise ValueError(f"{word!r} is not an int")
    return str(int(word) + 1)


def split_rank(word: str) -> str:
    """Return the stages of a pipeline whose decoder begins at a rank."""
    if not re.fullmatch("0*[1-9][0-9]{0,8}", word):
        raise ValueError(f"{word!r} is not a stage from 1 on")
    return f"rank:{int(word)}"


def _number(word: str) -> float:
    try:
        number = float(word)
        int(number)  # neither NaN nor infinite
    except (ValueError, OverflowError):
        raise ValueError(f"{word!r} is not a number") from None
    return number


@dataclass(frozen=True)
class Weak:
    """What an option gives a setting unless another option gives it a value."""

    value: Any


@dataclass(frozen=True)
class Decides:
    """What a switch gives a setting whatever the setting's own variable says."""

    value: Any


def takes_word(value: Any) -> bool:
    """Return whether a word follows an option that gives ``value``, as ``setting(flags=...)`` has it."""
    return value is None or isinstance(value, Word)


def setting(
    default: Any,
    names: str,
    help: str,
    *,
    switches: Mapping[str, Any] | None = None,
    flags: Mapping[str, Any] | None = None,
    words: bool = False,
    synonyms: Mapping[str, str] | None = None,
    instead: Mapping[str, str] | None = None,
    unit: str = "",
    **limits: Any,
) -> Any:
    """Return a field that environment variables and options of the command line can override.

    The field is the only place its default is written. Shell scripts, presets, machines
    and the command line may override it; none of them may restate it.

    Args:
        default: the value when nobody says otherwise; for sizes 0 means "derive it".
        names: ``"SAVE_INTERVAL SAVE_EVERY --save-interval"``: the environment variable, its other names, and
            options, those of older toolkits. The value follows an option; where the default is a switch none does,
            and the option turns it on, or off if it begins with ``--no-``.
        help: one line, shown by ``megads config``.
        switches: variable -> the value it gives this setting when it is true, as
            ``{"NO_FLASH_ATTN": "sdpa"}``; a false or empty one says nothing. With
            a :class:`Decides` it overrides the setting's variable, else they must agree.
        flags: further options -> the value each gives this setting, ``None`` or a :class:`Word`
            when the value follows it, as ``{"--bf16": "bf16"}``, or :class:`Weak`. An option
            may give several settings a value.
        words: its options take all the words up to the next option, as one text.
        synonyms: other names of choices, for users of older toolkits, as ``{"minus_sqrt": "sqrt"}``.
        instead: words that are not choices -> what to use, in words, as ``{"mpirun": "openmpi or mpich"}``.
        unit: of the value, e.g. ``"tokens"``.
        limits: pydantic limits such as ``gt=0`` or ``le=1``.
    """
    if type(default) is int and not limits.keys() & {"le", "lt"}:
        limits["le"] = LARGEST
    variable, *others = names.split()
    options = [name for name in others if name.startswith("--")]
    is_switch = isinstance(default, bool)
    extra: dict[str, Any] = {
        "env": variable,
        "aliases": tuple(others[: len(others) - len(options)]),
        "switches": dict(switches or {}),
        "flags": {each: not each.startswith("--no-") if is_switch else None for each in options} | dict(flags or {}),
        "words": words,
        "synonyms": dict(synonyms or {}),
        "instead": dict(instead or {}),
        "unit": unit,
    }
    return Field(default=default, description=help, json_schema_extra=extra, **limits)


in_steps = partial(setting, unit="steps", ge=0)
"""A setting that counts steps."""

fraction = partial(setting, ge=0, lt=1)
"""A setting from 0 to below 1."""
