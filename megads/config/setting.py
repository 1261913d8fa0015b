"""Declare a setting once: its type, default, environment names, unit and help."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    """The word behind an option of the command line, where it is not the value of the setting itself.

    Attributes:
        names: another toolkit's word -> the word here, as ``{"adam": "adamw"}``; others stay as they are.
        convert: what makes the setting's text of the option's; raises ValueError with one line.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    convert: Callable[[str], str] | None = None

    def text(self, word: str) -> str:
        """Return the setting's text.

        Raises:
            ValueError: the word cannot be converted.
        """
        found = self.names.get(word, word)
        return self.convert(found) if self.convert else found


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
    *,
    env: str = "",
    aliases: tuple[str, ...] = (),
    switches: Mapping[str, Any] | None = None,
    flags: Mapping[str, Any] | None = None,
    words: bool = False,
    synonyms: Mapping[str, str] | None = None,
    instead: Mapping[str, str] | None = None,
    help: str,
    unit: str = "",
    **limits: Any,
) -> Any:
    """Return a field that the environment variable ``env`` (or an alias or a flag) can override.

    The field is the only place its default is written. Shell scripts, presets, machines
    and the command line may override it; none of them may restate it.

    Args:
        default: the value when nobody says otherwise; for sizes 0 means "derive it".
        env: name of the environment variable.
        aliases: other names of the same variable, for users of older toolkits.
        switches: variable -> the value it gives this setting when it is true, as
            ``{"NO_FLASH_ATTN": "sdpa"}``; a false or empty one says nothing. With
            a :class:`Decides` it overrides the setting's variable, else they must agree.
        flags: option of the command line -> the value it gives this setting, ``None`` or a :class:`Word`
            when the value follows it, as ``{"--zero-stage": None}``, or :class:`Weak`. Names of
            older toolkits; an option may give several settings a value.
        words: its options take all the words up to the next option, as one text.
        synonyms: other names of choices, for users of older toolkits, as ``{"minus_sqrt": "sqrt"}``.
        instead: words that are not choices -> what to use, in words, as ``{"mpirun": "openmpi or mpich"}``.
        help: one line, shown by ``megads config``.
        unit: of the value, e.g. ``"tokens"``.
        limits: pydantic limits such as ``gt=0`` or ``le=1``.
    """
    if type(default) is int and not limits.keys() & {"le", "lt"}:
        limits["le"] = LARGEST
    extra: dict[str, Any] = {
        "env": env,
        "aliases": aliases,
        "switches": dict(switches or {}),
        "flags": dict(flags or {}),
        "words": words,
        "synonyms": dict(synonyms or {}),
        "instead": dict(instead or {}),
        "unit": unit,
    }
    return Field(default=default, description=help, json_schema_extra=extra, **limits)
