"""A user's own DeepSpeed JSON (``DS_CONFIG_OVERRIDES=file.json``), without DeepSpeed.

DeepSpeed ignores a key it does not know, and two places that say different things about one
number train something that nobody asked for. So a key that is a setting of ours becomes
that setting, a key that follows from settings must agree with them, an unknown one is
refused, and only what is left is merged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from megads.config.deepspeed.json_file import OVERRIDES
from megads.config.deepspeed.keys import FOLLOWS, KEYS_OF, OURS, SETTING_OF, TOP_LEVEL, get, put, read_json
from megads.config.schema import RunConfig
from megads.config.setting import Origin
from megads.config.sources.parse import did_you_mean
from megads.config.sources.resolve import Resolved, rank_of
from megads.config.tree import env_name, fields, nested, read_value, value_of
from megads.errors import ConfigError

FLAG = "--deepspeed"
"""How options begin that name such a file."""


def adopt(resolved: Resolved) -> Resolved:
    """Return derived settings that hold what ``DS_CONFIG_OVERRIDES`` says.

    A key that is a setting becomes its value, unless the user gave the setting another one.
    What is left stands in ``deepspeed.config_overrides`` as JSON in place of the file's
    name, so that the ranks need no file and cannot see another one.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, or it contradicts a setting.
    """
    given = resolved.run.deepspeed.config_overrides
    if not given:
        return resolved
    source = resolved.origins[OVERRIDES]
    file = "" if given.lstrip().startswith("{") else f"={given}"
    shown = source.detail if source.detail.startswith(FLAG) else f"DS_CONFIG_OVERRIDES{file}"
    content = read_json(given, shown)
    rest: dict[str, Any] = {}
    values = {name: value_of(resolved.run, name) for name in fields()}
    origins = dict(resolved.origins)
    adopted: dict[str, str] = {}
    for key, value in _leaves(content, shown):
        if key not in SETTING_OF:
            put(rest, key, value)
            continue
        name = SETTING_OF[key]
        wanted = _as_setting(key, value, name, shown)
        explicit = rank_of(resolved.origins[name]) >= rank_of(Origin("env"))
        if (explicit or name in adopted) and values[name] != wanted:
            other = f"{env_name(name)}={values[name]} ({origins[name]})" if explicit else f"its {adopted[name]}"
            raise ConfigError(f"{shown}: {key} is {json.dumps(value)}, but {other}; drop one of them")
        if not explicit:
            values[name], adopted[name] = wanted, key
            origins[name] = Origin(source.layer, f"{source.detail} {key}")
    values[OVERRIDES] = json.dumps(rest) if rest else ""
    return Resolved(RunConfig.model_validate(nested(values)), origins, resolved.notes)


OVERLAP = "zero_optimization.overlap_comm"
"""Follows from settings; under ZeRO 3 it may be switched off, where a fabric or driver needs that."""


def merge(config: dict[str, Any], text: str) -> None:
    """Merge the overrides ``text`` (JSON, or the name of a file) into DeepSpeed's dictionary.

    Raises:
        ConfigError: a key is unknown, or has another value than the settings give it.
    """
    if not text:
        return
    shown = "DS_CONFIG_OVERRIDES"
    sections = {key.rpartition(".")[0] for key in SETTING_OF}
    for key, value in _leaves(read_json(text, shown), shown):
        ours = key.replace("bfloat16.", "bf16.")  # DeepSpeed reads the old name only where the new one is not
        if key in sections:
            raise ConfigError(f"{shown}: {key} is {json.dumps(value)}, not an object; use {{...}}")
        for place in (at for at, letter in enumerate(ours) if letter == "."):
            if ours[:place] in SETTING_OF or not isinstance(get(config, ours[:place]), (dict, type(None))):
                raise ConfigError(f"{shown}: {ours[:place]} is an object, not one value")
        if key == OVERLAP and isinstance(value, bool) and get(config, "zero_optimization.stage") == 3:
            put(config, key, value)
            continue
        if key in FOLLOWS and get(config, ours) != value:
            now = get(config, ours)
            raise ConfigError(f"{shown}: {key} is {json.dumps(value)}, but the settings give {now}; use {FOLLOWS[key]}")
        if key in SETTING_OF and get(config, key) != value:
            raise ConfigError(f"{shown}: {key} is {json.dumps(value)}; use {env_name(SETTING_OF[key])}")
        if key not in FOLLOWS:
            put(config, ours, value)


def _leaves(content: Mapping[str, Any], shown: str) -> Iterator[tuple[str, Any]]:
    """Yield every dotted key that is no section, and check that DeepSpeed knows it."""
    for top, value in content.items():
        if top not in TOP_LEVEL:
            raise ConfigError(f"{shown}: DeepSpeed has no key {top!r}{did_you_mean(top, TOP_LEVEL)}")
        if top in OURS:
            raise ConfigError(f"{shown}: {top} is not DeepSpeed's to decide; use {OURS[top]}")
        yield from _flat(top, value, shown)


def _flat(key: str, value: Any, shown: str) -> Iterator[tuple[str, Any]]:
    known = KEYS_OF.get(key.replace("bfloat16", "bf16"), ())
    if known and not isinstance(value, dict):
        raise ConfigError(f"{shown}: {key} is {json.dumps(value)}, not an object; use {{...}}")
    for inner in value if known else ():
        if inner not in known:
            raise ConfigError(f"{shown}: {key} has no key {inner!r}{did_you_mean(inner, known)}")
    if isinstance(value, dict):
        # An empty section says nothing; passed on, it would take the place of ours.
        for inner, each in value.items():
            yield from _flat(f"{key}.{inner}", each, shown)
    else:
        yield key, value


def _as_setting(key: str, value: Any, name: str, shown: str) -> Any:
    if value is not None:
        return read_value(name, value, f"{shown}: {key}")
    default = fields()[name].default
    none = "" if isinstance(default, str) and default != "none" else {int: 0, bool: False}.get(type(default), default)
    try:
        return read_value(name, none, key)
    except ConfigError:
        raise ConfigError(f"{shown}: {key}: null is not a value for it; drop it") from None
