"""The runs of an ensemble: from a YAML file and lists of values to a name, settings and a size for each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from megads.config.sources.env_names import setting_names
from megads.config.sources.parse import did_you_mean
from megads.config.sources.presets import read_yaml
from megads.errors import ConfigError
from megads.text.quoting import split_words

KEYS = ("settings", "words", "hosts", "ranks", "vary", "members")
OF_MEMBER = ("name", "settings", "hosts", "ranks")
OWN = ("RUN_DIR", "RUN_NAME", "HOSTFILE", "NHOSTS", "NGPU_PER_HOST")
"""Settings that the ensemble decides for each run."""
TAKEN = ("log", "stop", "ensemble.json", "ensemble.lock", "report.html")
"""What the folder of an ensemble holds besides its runs."""
MOST = 10_000  # runs
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,+-]{0,119}")


@dataclass(frozen=True)
class Member:
    """One run: ``settings`` are variables, ``hosts`` whole hosts; or ``ranks``, a part of one host (0: whole hosts)."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    hosts: int = 1
    ranks: int = 0


@dataclass(frozen=True)
class Ensemble:
    """The runs, and the words of ``megads train`` that all of them have."""

    members: tuple[Member, ...]
    words: tuple[str, ...] = ()


def read_ensemble(path: Path) -> Ensemble:
    """Return what a file asks for.

    Raises:
        ConfigError: one line that names the file and what is wrong in it.
    """
    where = str(path)
    content = read_yaml(path, where)
    _refuse_others(content, KEYS, where)
    shared = _settings(content.get("settings", {}), f"{where}: settings")
    size = _size(content, where, {"hosts": 1, "ranks": 0})
    varied = vary(_lists(content.get("vary", {}), f"{where}: vary"), f"{where}: vary")
    listed = content.get("members", [{}])
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"{where}: members must be a list of runs, each with a name or settings")
    members = []
    for number, given in enumerate(listed):
        place = f"{where}: member {number + 1}"
        if not isinstance(given, dict):
            raise ConfigError(f"{place}: must hold 'key: value' lines ({', '.join(OF_MEMBER)}), not {given!r:.40}")
        _refuse_others(given, OF_MEMBER, place)
        own = _settings(given.get("settings", {}), place)
        name = str(given.get("name") or title_of(own))
        sizes = _size(given, place, size)
        members += [
            Member("_".join(filter(None, (name, title_of(each)))), {**shared, **own, **each}, **sizes)
            for each in varied
        ]
    return Ensemble(tuple(checked(members, where)), _words(content.get("words", ""), where))


def checked(members: Sequence[Member], where: str) -> Sequence[Member]:
    """Return the members.

    Raises:
        ConfigError: a name is none, or two have the same.
    """
    seen: set[str] = set()
    for member in members:
        if not NAME.fullmatch(member.name):
            said = f"name {member.name!r:.60}" if member.name else "a run has neither a name nor settings"
            raise ConfigError(f"{where}: {said}; a name is a folder's: letters, digits and . _ = , + -")
        if member.name in TAKEN:
            raise ConfigError(f"{where}: name {member.name}: the ensemble keeps its own files there; use another name")
        if member.name in seen:
            raise ConfigError(f"{where}: two runs are called {member.name}; give each a name of its own")
        seen.add(member.name)
    return members


def vary(lists: Mapping[str, Sequence[str]], where: str) -> list[dict[str, str]]:
    """Return every combination of values, the last name fastest; one without settings where nothing varies.

    Raises:
        ConfigError: a name is no setting, or there are too many.
    """
    for name, values in lists.items():
        refuse_name(name, where)
        if len(set(values)) < len(values):
            raise ConfigError(f"{where}: {name}={','.join(values)} has a value twice")
    number = 1
    for values in lists.values():
        number *= len(values)
    if number > MOST:
        raise ConfigError(f"{where}: {number} combinations; at most {MOST}")
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def lists_of(options: Sequence[str]) -> dict[str, list[str]]:
    """Return the lists of ``--vary NAME=A,B,C`` options.

    Raises:
        ConfigError: there is no ``=`` or no value, or a name is given twice.
    """
    found: dict[str, list[str]] = {}
    for option in options:
        name, equals, text = option.partition("=")
        values = [value.strip() for value in text.split(",")]
        if not equals or not name or not all(values):
            raise ConfigError(f"--vary {option}: expected NAME=VALUE,VALUE, for example --vary LR=1e-4,3e-4")
        if name in found:
            raise ConfigError(f"--vary {name}: given twice; write all values in one list")
        found[name] = values
    return found


def varied(ensemble: Ensemble, lists: Mapping[str, Sequence[str]], where: str = "--vary") -> Ensemble:
    """Return every member with every combination of values.

    Raises:
        ConfigError: as :func:`vary`, or two runs then have one name.
    """
    members = [
        replace(
            member, name="_".join(filter(None, (member.name, title_of(each)))), settings={**member.settings, **each}
        )
        for member in ensemble.members
        for each in vary(lists, where)
    ]
    return replace(ensemble, members=tuple(checked(members, where)))


def title_of(settings: Mapping[str, str]) -> str:
    """Return a name for the values that a run has: ``LR=1e-4,SEED=1``; of a path its last part."""
    return ",".join(
        f"{name}={re.sub('[^A-Za-z0-9.+-]', '-', value.rpartition('/')[2])}" for name, value in settings.items()
    )


def refuse_name(name: object, where: str) -> None:
    """Refuse what is no variable of a setting, or one that the ensemble decides.

    Raises:
        ConfigError: with the name that is meant, if one is alike.
    """
    if name in OWN:
        raise ConfigError(f"{where}: {name} is the ensemble's: each run has a folder, hosts and ranks of its own")
    if name not in setting_names():
        hint = did_you_mean(str(name), sorted(setting_names())) or "; `megads config` lists them"
        raise ConfigError(f"{where}: {name} is not a setting{hint}")


def _settings(given: Any, where: str) -> dict[str, str]:
    if not isinstance(given, dict):
        raise ConfigError(f"{where}: must hold 'NAME: value' lines, not {given!r:.40}")
    for name in given:
        refuse_name(name, where)
    return {name: _text(value, f"{where}: {name}") for name, value in given.items()}


def _lists(given: Any, where: str) -> dict[str, list[str]]:
    if not isinstance(given, dict) or not all(isinstance(values, list) and values for values in given.values()):
        raise ConfigError(f"{where}: must hold 'NAME: [value, value]' lines")
    return {name: [_text(value, f"{where}: {name}") for value in values] for name, values in given.items()}


def _text(value: Any, where: str) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, str | int | float):
        raise ConfigError(f"{where}: {value!r:.40} is not one value")
    return str(value)


def _size(given: Mapping[str, Any], where: str, usual: Mapping[str, int]) -> dict[str, int]:
    if "hosts" in given and "ranks" in given:
        raise ConfigError(f"{where}: hosts and ranks are both given; hosts takes whole hosts, ranks a part of one")
    for name in ("hosts", "ranks"):
        value = given.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**6:
            raise ConfigError(f"{where}: {name}: {value!r:.40} is not a number of {name}; use 1 or more")
    if "hosts" in given:
        return {"hosts": given["hosts"], "ranks": 0}
    return {"hosts": 1, "ranks": given["ranks"]} if "ranks" in given else dict(usual)


def _words(given: Any, where: str) -> tuple[str, ...]:
    if isinstance(given, str):
        try:
            return tuple(split_words(given))
        except ValueError as error:
            raise ConfigError(f"{where}: words: {error}") from None
    if isinstance(given, list):
        return tuple(_text(word, f"{where}: words") for word in given)
    raise ConfigError(f"{where}: words are those of `megads train`, e.g. --preset 7B, not {given!r:.40}")


def _refuse_others(given: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for name in given:
        if name not in known:
            raise ConfigError(
                f"{where}: no entry named {name}{did_you_mean(str(name), list(known))}; use {', '.join(known)}"
            )
