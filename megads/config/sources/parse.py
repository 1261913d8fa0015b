"""Turn the text of a setting, or a value from YAML, into the setting's type."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, get_args

from pydantic.fields import FieldInfo

TRUE = ("1", "true", "yes", "on")
FALSE = ("0", "false", "no", "off")

_WHOLE = re.compile(r"[+-]?\d+(_\d+)*", re.ASCII)
_SHORT = re.compile(r"(\d+(?:_\d+)*(?:\.\d+)?)([KMBTkmbt])", re.ASCII)
_SHORT_ZEROS = {"m": 6, "b": 9, "t": 12}
SIMILAR = 0.65
"""Least similarity of a suggestion (``difflib``): muonclip and muon have 0.67, mpirun and srun 0.60."""
_SCIENTIFIC = re.compile(r"[+-]?\d+(_\d+)*(\.\d+)?[eE]\+?\d{1,2}", re.ASCII)
LARGEST = 2**63 - 1
# What pydantic keeps for gt=, ge=, lt=, le=; the attribute has the name of the limit.
_LIMITS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "gt": (operator.gt, "greater than"),
    "ge": (operator.ge, "at least"),
    "lt": (operator.lt, "less than"),
    "le": (operator.le, "at most"),
}


def parse(value: object, field: FieldInfo) -> Any:
    """Return ``value`` in the type of ``field``, within its limits.

    Text comes from the environment, ``--set`` or YAML (where ``1e9`` is text); numbers and
    booleans from YAML. ``2_000``, ``1e9`` and ``1.5B`` (10**9) are ints; ``nan`` and ``inf`` are not floats.

    Raises:
        ValueError: one line that quotes the value and says what would work.
    """
    kind = field.annotation
    choices = get_args(kind)
    if choices:
        extra = field.json_schema_extra
        assert isinstance(extra, dict)
        result: Any = _choice(value, choices, extra)
    elif kind is bool:
        result = switch(value)
    elif kind is int:
        result = _whole(value)
    elif kind is float:
        result = _number(value)
    elif isinstance(value, str):
        result = value
    else:
        raise ValueError(f"{_quoted(value)} is not text; put it in quotes")
    _check_limits(result, field)
    return result


def switch(value: object) -> bool:
    """Return the truth of 1/true/yes/on or 0/false/no/off, ignoring case."""
    word = str(value).strip().lower()
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise ValueError(f"{_quoted(value)} is not a switch; use one of {'/'.join(TRUE)} or {'/'.join(FALSE)}")


def did_you_mean(word: str, known: list[str] | tuple[str, ...]) -> str:
    """Return ``; did you mean X?`` for the closest of ``known``, or nothing."""
    lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), list(lower), n=1, cutoff=SIMILAR)
    return f"; did you mean {lower[close[0]]}?" if close else ""


def _choice(value: object, choices: tuple[Any, ...], extra: Mapping[str, Any]) -> Any:
    by_name = {str(choice).lower(): choice for choice in choices} | extra["synonyms"]
    word = str(value).strip()
    if word.lower() in by_name and not isinstance(value, bool):
        return by_name[word.lower()]
    if "on" in by_name and word.lower() in (*TRUE, *FALSE):
        return "on" if switch(word) else "off"
    names = [str(choice) for choice in choices]
    instead = extra["instead"].get(word.lower())
    hint = f"; use {instead}" if instead else did_you_mean(word, names)
    raise ValueError(f"{_quoted(value)} is not one of {', '.join(names)}{hint}")


def _whole(value: object) -> int:
    result: int | None = None
    if isinstance(value, str):
        text = value.strip()
        if _WHOLE.fullmatch(text) and len(text) < 100:
            result = int(text)
        elif _WHOLE.fullmatch(text.removesuffix(".0")) and len(text) < 100:
            result = int(text.removesuffix(".0"))
        elif _SCIENTIFIC.fullmatch(text) and Decimal(text) == Decimal(text).to_integral_value():
            result = int(Decimal(text))
        elif (short := _SHORT.fullmatch(text)) and len(text) < 100:
            result = _short(short[1], short[2].lower(), text)
    elif isinstance(value, int) and not isinstance(value, bool):
        result = value
    elif isinstance(value, float) and value.is_integer():
        result = int(value)
    if result is None:
        raise ValueError(f"{_quoted(value)} is not an int")
    if abs(result) > LARGEST:
        raise ValueError(f"{_quoted(value)} is too large; the largest int is 2**63 - 1")
    return result


def _short(digits: str, letter: str, text: str) -> int | None:
    """Return ``1.5`` and ``b`` as an int; None if it is not whole."""
    if letter == "k":
        # Of a length people mean 1024, of a budget 1000.
        exact = [Decimal(digits) * size for size in (1000, 1024)]
        read = " or ".join(f"{each:.0f}" for each in exact if each == each.to_integral_value())
        raise ValueError(f"{_quoted(text)} may be {read}; write the number")
    value = Decimal(digits).scaleb(_SHORT_ZEROS[letter])
    return int(value) if value == value.to_integral_value() else None


def _number(value: object) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)) or not str(value).isascii():
            raise ValueError
        result = float(value)
    except (ValueError, OverflowError):
        raise ValueError(f"{_quoted(value)} is not a number") from None
    if not math.isfinite(result):
        raise ValueError(f"{_quoted(value)} is not a finite number")
    return result


def _check_limits(value: Any, field: FieldInfo) -> None:
    for limit in field.metadata:
        for name, (holds, words) in _LIMITS.items():
            bound = getattr(limit, name, None)
            if bound is not None and not holds(value, bound):
                raise ValueError(f"{value} must be {words} {bound}")


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
