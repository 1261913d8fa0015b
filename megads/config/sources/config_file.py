"""Settings from a file: ``--config mine.yaml``, or a run's own ``config.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megads.config.run_folder import WRITTEN, flat
from megads.config.setting import Origin
from megads.config.sources.megatron_defaults import PADDING, PADDING_FLAG
from megads.config.sources.megatron_defaults import SETTING as DEFAULTS
from megads.config.sources.presets import read_yaml
from megads.config.tree import known_key, read_value
from megads.errors import ConfigError
from megads.storage.checksums import has_changed

SETTING = "config_file"
# Of the host, the job and the folder of the run that wrote the file, not of what it trains.
_OF_THE_RUN = (
    *("machine", "name", "dir", SETTING, "launch.launch_with", "launch.ranks_per_host", "launch.num_hosts"),
    *("launch.hostfile", "launch.cpu_bind", "launch.walltime", "checkpoint.dir"),
)
# Derived from what is not in the file, so that they are kept.
_KEPT = (DEFAULTS, "train.evaluate_only")
_PADDED = re.compile(rf"{PADDING_FLAG}(?: (\d+) x TP)?")
_ROW = re.compile(r"( *)(\w+):(.*)$")
_NOT_IN_A_FILE = {
    "machine": "set MACHINE",
    "preset": "pass --preset",
    SETTING: "drop it from the file",
}
SHARES = ("data.train_split", "data.val_split", "data.test_split")
"""What SPLIT says in one."""

_BELOW = ("default", "megatron", "optimizer", "family")


def read_settings(name: str, notes: list[str]) -> dict[str, tuple[Any, Origin]]:
    """Return what a file gives, by dotted name, with its origin.

    A file of your own has sections, or dotted names. From a run's ``config.yaml`` come the settings
    of what it trains: values that were derived are derived again, defaults stay defaults, and its
    host, job and folder are skipped.

    Args:
        name: path of the file.
        notes: takes a line for every deprecated name in a file of your own.

    Raises:
        ConfigError: the file cannot be read, or holds what is not a setting.
    """
    path = Path(name)
    given = f"--config {name}"
    content = read_yaml(path, given)
    if isinstance(content.get("settings"), dict):
        raise ConfigError(
            f"{given}: 'settings:' is the form of a preset; pass --preset {name}, or move its lines to the left and "
            "drop 'settings:'"
        )
    content = flat(content, path)
    text = path.read_text(encoding="utf-8")
    if has_changed(text):  # what a run derived is derived again, so that an edit of it would be lost silently
        raise ConfigError(
            f"{given}: a run wrote it and it changed since, its CRC-32 differs; pass what you changed as variables or "
            "--set, or write the settings that you want into a file of your own"
        )
    was, result = _origins(text), {}
    for written, value in content.items():
        key = known_key(written, given, [] if was else notes)
        before = was.get(key, Origin("config"))
        layer = before.layer
        padded = _PADDED.match(before.detail) if key == PADDING else None
        if padded:  # what was given, before it was multiplied
            layer, value = "config", padded[1] or value
        if was and key in SHARES and content.get("data.split"):
            layer = "default"  # SPLIT had won over them
        if was and _is_overridden_fraction(key, was, content):
            layer = "default"
        if was and (key in _OF_THE_RUN or (layer == "derived" and key not in _KEPT)):
            continue
        if not was and key in _NOT_IN_A_FILE:
            raise ConfigError(f"{given}: {key} cannot be set in a file; {_NOT_IN_A_FILE[key]}")
        origin = Origin(layer if layer in _BELOW else "config", PADDING_FLAG if padded else name)
        result[key] = (read_value(key, value, f"{given}: {key}"), origin)
    return result


def _is_overridden_fraction(key: str, was: Mapping[str, Origin], content: Mapping[str, Any]) -> bool:
    """Return whether a length in steps, samples or tokens of a higher layer had won over the fraction ``key``."""
    part = key.removesuffix("_frac")
    others = [f"{part}_{unit}" for unit in ("iters", "samples", "tokens")] if part != key else []
    layers = [was[other].layer for other in others if content.get(other) and other in was]
    return any(layer not in ("derived", *_BELOW, was[key].layer) for layer in layers)


def _origins(text: str) -> dict[str, Origin]:
    """Return the origin of each value by dotted name in a file that a run wrote, nothing of another file."""
    lines = text.splitlines()
    found: dict[str, Origin] = {}
    section = ""
    for line in lines if lines[:1] == [WRITTEN] else ():
        row = _ROW.match(line)
        if row and not row[1] and not row[3]:
            section = row[2]
        elif row:
            layer, _, detail = row[3].rpartition("  # ")[2].strip().partition(" ")
            found[f"{section}.{row[2]}" if row[1] else row[2]] = Origin(layer or "default", detail)
    return found
