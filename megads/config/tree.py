"""Walk the schema: every setting by its dotted name."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from megads.config.schema import RunConfig
from megads.config.setting import Section
from megads.config.sources.parse import did_you_mean, parse
from megads.errors import ConfigError
from megads.release.deprecated import deprecated


def settings() -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting: dotted name (``model.num_layers``, ``name``) and its field."""
    for name, field in RunConfig.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            for key, inner in kind.model_fields.items():
                yield f"{name}.{key}", inner
        else:
            yield name, field


@functools.cache
def fields() -> Mapping[str, FieldInfo]:
    """Return every setting's field by dotted name, in the order of the schema."""
    return dict(settings())


def extra(field: FieldInfo, key: str) -> Any:
    """Return what ``setting()`` stored: ``env``, ``aliases``, ``switches``, ``flags`` or ``unit``."""
    assert isinstance(field.json_schema_extra, dict)
    return field.json_schema_extra[key]


def env_name(name: str) -> str:
    """Return the environment variable of the setting ``name`` (``model.num_layers`` -> ``NLAYERS``)."""
    return str(extra(fields()[name], "env"))


@functools.cache
def names_of(name: str) -> tuple[str, ...]:
    """Return the variable of the setting ``name`` and its other names in the environment, deprecated ones last."""
    variable = env_name(name)
    old = (each.name for each in deprecated("variable").values() if each.use == variable)
    return (variable, *extra(fields()[name], "aliases"), *old)


def read_value(name: str, value: object, where: str) -> Any:
    """Return ``value``, a text or a value from YAML or JSON, in the type and the limits of the setting ``name``.

    Raises:
        ConfigError: one line that begins with ``where``.
    """
    try:
        return parse(value, fields()[name])
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def known_key(name: object, where: str, notes: list[str]) -> str:
    """Return the dotted name of the setting that ``name`` is: itself, or what has replaced it.

    Args:
        name: a dotted name, which a user may have misspelt.
        where: it is from, as ``--set NAME``.
        notes: takes a line if the name is deprecated.

    Raises:
        ConfigError: one line that begins with ``where`` and names the setting that is meant, if one is alike.
    """
    if found := deprecated("key").get(str(name)):
        notes.append(found.note(where))
        return found.use or found.name
    if name in fields():
        return str(name)
    key = str(name).rpartition(".")[2]
    alike = (each for each in fields() if key.upper() in names_of(each) or key == each.rpartition(".")[2])
    meant = next((f"; did you mean {each}?" for each in alike), "")
    hint = meant or did_you_mean(str(name), list(fields())) or "; `megads config` lists them"
    raise ConfigError(f"{where}: no setting named {name!r}{hint}")


def value_of(run: RunConfig, name: str) -> Any:
    """Return the value of the setting ``name`` in ``run``."""
    value: Any = run
    for part in name.split("."):
        value = getattr(value, part)
    return value


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``{"a.b": 1}`` as ``{"a": {"b": 1}}``."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        if section:
            result.setdefault(section, {})[key] = value
        else:
            result[key] = value
    return result
