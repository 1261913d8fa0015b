"""From what a user names to the numbers of a run: folder, metrics file, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from megads.config.run_files import CONFIG, METRICS
from megads.errors import ConfigError
from megads.monitor.columns import Column, Wanted, cores, read_columns
from megads.monitor.run_state.branches import BranchPoint, read_branch
from megads.storage.checksums import has_changed
from megads.storage.reading import SMALL, parse_yaml, read_text

UP = 3  # from a checkpoint's tag to the run's folder
OWN = {"name", "dir", "run.name"}  # differ between any two runs


@dataclass(frozen=True)
class Run:
    """One run to draw: its name in the legend, numbers and settings (dotted names, empty when not known)."""

    name: str
    path: Path
    columns: Mapping[str, Column]
    settings: Mapping[str, Any] = field(default_factory=dict)
    branch: BranchPoint | None = None  # where it branched off another run


def metrics_of(given: Path) -> Path:
    """Return the metrics file of a run folder, of a checkpoint in it, or the file itself.

    Raises:
        ConfigError: there is none.
    """
    if given.is_file():
        return given
    if not given.exists():
        raise ConfigError(f"{given}: not found; `megads runs` lists what is in runs/")
    absolute = given.absolute()
    for folder in [absolute, *absolute.parents][: UP + 1]:
        if (folder / METRICS).is_file():
            return folder / METRICS if folder != absolute else given / METRICS
        if (folder / CONFIG).is_file():
            raise ConfigError(f"{given}: its run has no {METRICS} yet; it is written with the first step")
    raise ConfigError(f"{given}: no run here (no {METRICS}); pass a run's folder, its {METRICS}, or a checkpoint of it")


def read_run(given: Path, wanted: Wanted, name: str = "") -> Run:
    """Return a run with the columns for which ``wanted`` is true.

    Raises:
        ConfigError: there is no run, its file cannot be read, or has no step in it.
    """
    path = metrics_of(given)
    try:
        columns = read_columns(path, wanted, processes=cores())
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or "a process that read it was killed"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    if not columns:
        raise ConfigError(f"{path}: no values yet; a run writes its first row after its first step")
    return Run(name or path.absolute().parent.name, path, columns, settings_of(path.parent), read_branch(path.parent))


def names_of(given: Sequence[Path]) -> list[str]:
    """Return a short name for each run: its folder's, with as many parents as make all different."""
    folders = [metrics_of(each).absolute() for each in given]
    return _short([path.parent.parts if path.name == METRICS else path.parts for path in folders])


def names_of_folders(folders: Sequence[Path]) -> list[str]:
    """Return the same for run folders, which may have no rows yet."""
    return _short([folder.absolute().parts for folder in folders])


def _short(parts: Sequence[tuple[str, ...]]) -> list[str]:
    for depth in range(1, max(map(len, parts), default=1)):
        names = ["/".join(each[-depth:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return ["/".join(each) for each in parts]


def settings_of(folder: Path) -> dict[str, Any]:
    """Return the settings in a run's ``config.yaml`` by dotted name, nothing when it cannot be read."""
    try:
        return read_settings(folder)
    except (OSError, ValueError):
        return {}


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings in a run's ``config.yaml`` by dotted name.

    Raises:
        OSError, ValueError: it is missing, cannot be read, or holds something else.
    """
    try:
        text = read_text(folder / CONFIG, SMALL)
        content = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ValueError(f"is not YAML ({str(error).splitlines()[0]:.80})") from None
    if not isinstance(content, dict):
        raise ValueError("holds no settings")
    if has_changed(text):
        raise ValueError("changed since it was written, its CRC-32 differs")
    flat: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(name, str):
            flat |= {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def differing(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Return the settings that are not the same in all runs: name, and each run's value as text."""
    names = sorted({name for run in runs for name in run.settings} - OWN)
    rows = [(name, [_text(run.settings.get(name)) for run in runs]) for name in names]
    return [row for row in rows if len(set(row[1])) > 1]


def _text(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
