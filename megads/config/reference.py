"""What a setting is, in words: for ``megads config NAME`` and docs/settings.md, made from the declarations."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_args

from pydantic.fields import FieldInfo

from megads.config.schema import RunConfig
from megads.config.setting import Weak, takes_word
from megads.config.sources.parse import did_you_mean
from megads.config.tree import extra, fields, names_of
from megads.errors import ConfigError
from megads.release.deprecated import Deprecated, deprecated
from megads.text.markdown import cell

TITLE = """# Settings

Written by `megads config --markdown` from the declarations in `megads/config`; do not edit.
Each setting is a variable of the environment or `--set section.key=value`. `megads config NAME` explains one, with its
value here and where that came from; `megads config WORD` lists those that a word occurs in.
"""
NO_LIMIT = 2**53
"""Limits from here on only keep sums exact."""
_LIMITS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def values_text(field: FieldInfo) -> str:
    """Return the values that a setting can have: ``fp32, bf16, fp16`` or ``int > 0``."""
    choices = get_args(field.annotation)
    if choices:
        return ", ".join(map(str, choices))
    if field.annotation is bool:
        return "0 or 1"
    kind = "int" if field.annotation is int else "number" if field.annotation is float else "text"
    bounds = [
        f"{sign} {bound:g}"
        for limit in field.metadata
        for name, sign in _LIMITS.items()
        if (bound := getattr(limit, name, None)) is not None and bound < NO_LIMIT
    ]
    return " ".join([kind, ", ".join(bounds)]).strip()


def text_of(value: Any) -> str:
    """Return a value as a user types it, ``""`` for an empty text."""
    if isinstance(value, bool):
        return str(int(value))
    return str(value) or '""'


def find_settings(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dotted names of the settings that ``words`` mean.

    Each word is a setting by any of its names (dotted, variable, alias, option), else a part of a name or of the
    meaning; settings that fit all words are returned.

    Raises:
        ConfigError: nothing fits.
    """
    found = list(fields())
    for word in words:
        exact = [name for name in found if word in names_of_setting(name)]
        low = word.lower()
        found = exact or [name for name in found if low in " ".join([*names_of_setting(name), _help(name)]).lower()]
        if not found:
            known = [each for name in fields() for each in names_of_setting(name)]
            raise ConfigError(f"no setting has {word!r} in its name or meaning{did_you_mean(word, known)}")
    return tuple(found)


def names_of_setting(name: str) -> tuple[str, ...]:
    """Return every name of a setting: dotted, variable, aliases, switches, options."""
    field = fields()[name]
    parts = (extra(field, key) for key in ("aliases", "switches", "flags"))
    return (name, str(extra(field, "env")), *(each for part in parts for each in part))


def explanation(name: str, value: Any, origin: str) -> list[str]:
    """Return the lines that explain one setting."""
    field = fields()[name]
    unit = f" {extra(field, 'unit')}" if extra(field, "unit") else ""
    rows = [
        ("", _help(name)),
        ("value", f"{text_of(value)}{unit}  ({origin})"),
        ("values", values_text(field)),
        ("also", ", ".join(f"{word} for {choice}" for word, choice in extra(field, "synonyms").items())),
        ("default", f"{text_of(field.default)}{unit}"),
        ("set by", f"{extra(field, 'env')}=..., --set {name}=..."),
        ("aliases", ", ".join(extra(field, "aliases"))),
        ("switches", ", ".join(f"{key}=1 ({text_of(gives)})" for key, gives in extra(field, "switches").items())),
        ("options", ", ".join(_options(field))),
        *(("note", each.note()) for each in _deprecated_names(name)),
    ]
    return [f"{extra(field, 'env')}  {name}", *(f"  {title:8} {text}".rstrip() for title, text in rows if text)]


def _deprecated_names(name: str) -> Iterator[Deprecated]:
    """Yield what is deprecated about a setting: itself, or old names."""
    variables = (*names_of(name), *extra(fields()[name], "switches"))
    yield from (each for each in deprecated("variable").values() if each.name in variables)
    yield from (each for each in deprecated("key").values() if name in (each.name, each.use))


def _options(field: FieldInfo) -> Iterator[str]:
    for flag, value in extra(field, "flags").items():
        given = value.value if isinstance(value, Weak) else value
        yield f"{flag} V" if takes_word(given) else f"{flag} ({text_of(given)})"


def _help(name: str) -> str:
    return str(fields()[name].description)


def settings_page() -> str:
    """Return docs/settings.md."""
    lines = [TITLE]
    section = None
    for name, field in fields().items():
        head = name.rpartition(".")[0]
        if head != section:
            section = head
            kind = RunConfig.model_fields[head].annotation if head else RunConfig
            doc = inspect.getdoc(kind) or ""
            lines += [f"\n## {head or 'run'}\n", doc.splitlines()[0], ""]
            lines += ["| variable | key | values | default | meaning |", "|---|---|---|---|---|"]
        unit = f" {extra(field, 'unit')}" if extra(field, "unit") else ""
        others = [*extra(field, "aliases"), *(f"{key}=1" for key in extra(field, "switches"))]
        also = f" Also: {', '.join(f'`{each}`' for each in others)}." if others else ""
        cells = [
            f"`{extra(field, 'env')}`",
            f"`{name}`",
            cell(values_text(field)),
            f"`{text_of(field.default)}`{unit}",
            cell(f"{_help(name)}.{also}"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
