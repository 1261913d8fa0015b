"""The files that hold settings: presets and machines.

Both are YAML of one form::

    description: one line       # presets only
    aliases: [AuroraGPT-7B]       # presets only: other names
    fits: [cpu]                   # presets only: machines that need not change this preset
    note: text                    # machines only: how to get a preset's full width
    facts: {device: cpu}          # machines only: see megads.config.machine_facts
    by_hosts:                     # machines only: settings by the number of hosts, where a preset has none
      1-15: {train.grad_acc_steps: 16}
    settings:
      model.num_layers: 32        # section.key: value; only what differs from the default
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from megads.config.machine_facts import Facts, Hosts, parse_facts, parse_hosts_range
from megads.config.setting import Origin
from megads.config.sources.parse import did_you_mean
from megads.config.tree import known_key, read_value
from megads.errors import ConfigError
from megads.storage import reading as storage

PRESETS = Path(__file__).parents[1] / "presets"
_TOP_KEYS = {
    "preset": {"aliases", "description", "fits", "settings"},
    "machine": {"by_hosts", "facts", "note", "settings"},
}


@dataclass(frozen=True)
class Layer:
    """The settings of one preset or machine, parsed, by dotted name."""

    origin: Origin
    settings: dict[str, Any]
    aliases: tuple[str, ...] = ()
    fits: tuple[str, ...] = ()
    facts: Facts = field(default_factory=Facts)
    note: str = ""
    description: str = ""
    by_hosts: tuple[tuple[Hosts, dict[str, Any]], ...] = ()
    notes: tuple[str, ...] = ()  # on deprecated names in the file

    @property
    def given(self) -> dict[str, tuple[Any, Origin]]:
        """The settings with their origin, by dotted name."""
        return {name: (value, self.origin) for name, value in self.settings.items()}

    def for_hosts(self, count: int) -> dict[str, tuple[Any, Origin]]:
        """Return the settings of the range that ``count`` hosts are in, with their origin, by dotted name."""
        return {
            name: (value, Origin(self.origin.layer, f"{self.origin.detail}, {hosts}"))
            for hosts, settings in self.by_hosts
            if count in hosts
            for name, value in settings.items()
        }


def read_preset(name: str, folder: Path = PRESETS) -> Layer:
    """Return the preset called ``name``, by file name or alias, or the one in a file (``mine.yaml``, ``./mine.yaml``).

    Raises:
        ConfigError: no preset has the name, or its file is broken.
    """
    if is_file_name(name):
        path = Path(name).resolve()
        return replace(_read("preset", path.stem, path.parent), origin=Origin("preset", str(path)))
    return _read("preset", _stem_of(name, folder), folder)


def is_file_name(preset: str) -> bool:
    """Return whether ``--preset`` names a file."""
    return preset.endswith(".yaml")


def preset_title(preset: str) -> str:
    """Return what runs of a preset are called: ``mine`` for ``/some/where/mine.yaml``."""
    return Path(preset).stem if is_file_name(preset) else preset


def read_machine(name: str, root: Path) -> Layer:
    """Return the machine ``<root>/envs/<name>.yaml``.

    Raises:
        ConfigError: the file does not exist, or it is broken.
    """
    folder = root / "envs"
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        hint = did_you_mean(name, known)
        raise ConfigError(f"no machine {name!r}; known machines: {', '.join(known) or 'none'} (in {folder}){hint}")
    return _read("machine", name, folder)


def presets(folder: Path = PRESETS) -> dict[str, Layer]:
    """Return every preset by name."""
    return {name: _read("preset", name, folder) for name in _stems(folder)}


def _stem_of(name: str, folder: Path) -> str:
    # The file name is tried first: reading all presets for their aliases takes 20 times longer.
    stems = _stems(folder)
    if name in stems:
        return name
    aliases = {alias: stem for stem, layer in presets(folder).items() for alias in layer.aliases}
    if name in aliases:
        return aliases[name]
    loosely = {_loose(each): stem for each, stem in [*aliases.items(), *((stem, stem) for stem in stems)]}
    if _loose(name) in loosely:
        return loosely[_loose(name)]
    hint = did_you_mean(name, [*stems, *aliases])
    raise ConfigError(f"no preset {name!r}; known presets: {', '.join(stems)}{hint}")


def _loose(name: str) -> str:
    """Return a name without what people spell differently: ``llama_3-8b`` is ``Llama-3-8B``."""
    return name.strip().lower().replace("-", "").replace("_", "")


def _stems(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yaml"))


def _read(kind: str, name: str, folder: Path) -> Layer:
    path = folder / f"{name}.yaml"
    where = f"{kind} {path.name}"
    content = read_yaml(path, where)
    for key in content:
        if key not in _TOP_KEYS[kind]:
            known = sorted(_TOP_KEYS[kind])
            raise ConfigError(f"{where}: {key!r} is not one of {', '.join(known)}{did_you_mean(str(key), known)}")
    origin = Origin(kind, name)
    notes: list[str] = []
    settings = _parsed(_part(content, "settings", dict, where), where, notes)
    return Layer(
        origin=origin,
        settings=settings,
        aliases=tuple(str(alias) for alias in _part(content, "aliases", list, where)),
        fits=tuple(str(machine) for machine in _part(content, "fits", list, where)),
        facts=parse_facts(_part(content, "facts", dict, where), where),
        note=_part(content, "note", str, where),
        description=_part(content, "description", str, where),
        by_hosts=tuple(_by_hosts(_part(content, "by_hosts", dict, where), where, notes)),
        notes=tuple(notes),
    )


def _by_hosts(content: Mapping[str, Any], where: str, notes: list[str]) -> Iterator[tuple[Hosts, dict[str, Any]]]:
    seen: list[Hosts] = []
    for text, settings in content.items():
        here = f"{where}: by_hosts"
        try:
            hosts = parse_hosts_range(text)
        except ValueError as error:
            raise ConfigError(f"{here}: {error}") from None
        if any(hosts.first in other or other.first in hosts for other in seen):
            raise ConfigError(f"{here}: {text} overlaps another range")
        if not isinstance(settings, dict):
            raise ConfigError(f"{here}: {text} must hold 'key: value' lines, not {settings!r}")
        seen.append(hosts)
        yield hosts, _parsed(settings, f"{here}: {text}", notes)


def _part(content: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    value = content.get(key)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        words: dict[type, str] = {dict: "'key: value' lines", list: "a list", str: "text"}
        raise ConfigError(f"{where}: {key} must be {words[kind]}, not {value!r}")
    return value


def _parsed(settings: Mapping[Any, Any], where: str, notes: list[str]) -> dict[str, Any]:
    names = [known_key(name, where, notes) for name in settings]
    for name in names:
        if "." not in name:
            raise ConfigError(f"{where}: {name} cannot be set in this file")
    values = zip(names, settings.values(), strict=True)
    return {name: read_value(name, value, f"{where}: {name}") for name, value in values}


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice; plain YAML keeps the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, where: str) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        ConfigError: one line, beginning with ``where``, if it cannot be read or is no mapping.
    """
    try:
        content = storage.read_yaml(path, loader=_Loader)
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror} ({path})") from None
    except storage.Bounds as error:
        raise ConfigError(f"{where}: {error} ({path})") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise ConfigError(f"{where}:{line}: is not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: is not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{where}: must hold 'key: value' lines, not {content!r:.60}")
    return content
