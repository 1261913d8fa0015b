"""The files of a run folder: their names, how they are written, and the settings in ``config.yaml``.

Ranks read ``config.yaml`` and nothing else.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from megads.config.run_files import ATTEMPTS as ATTEMPTS
from megads.config.run_files import COMMAND as COMMAND
from megads.config.run_files import COMMAND_ONCE_SAVED as COMMAND_ONCE_SAVED
from megads.config.run_files import CONFIG as CONFIG
from megads.config.run_files import HEARTBEAT as HEARTBEAT
from megads.config.run_files import LOG_FILE as LOG_FILE
from megads.config.run_files import OUTCOME as OUTCOME
from megads.config.run_files import STOP as STOP
from megads.config.schema import RunConfig
from megads.config.setting import Origin, Section
from megads.config.sources.presets import read_yaml
from megads.config.tree import fields, known_key, nested, read_value, value_of
from megads.errors import ConfigError
from megads.storage.checksums import has_changed, with_crc_line
from megads.storage.open_file import write_cure
from megads.storage.reading import Bounds, read_text

ENDS_AT = "MEGADS_ENDS_AT"
"""Tells the ranks when the allocation ends, in unix seconds; absent when nobody knows."""


WRITTEN = "# Written by megads; the settings of this run and where each came from."
"""First line of a run's config.yaml."""


def save_config(run: RunConfig, origins: Mapping[str, Origin], path: Path) -> None:
    """Write ``run`` as YAML with the origin of each value as a comment.

    The file appears whole or not at all: a rank never reads half of it.

    Raises:
        ConfigError: the folder cannot be written, or its disk is full.
    """
    lines = [WRITTEN]
    section = ""
    for name in sorted(fields(), key=lambda each: "." in each):
        head, _, key = name.rpartition(".")
        if head != section:
            lines.append(f"{head}:")
            section = head
        text = f"{'  ' if head else ''}{key}: {_scalar(value_of(run, name))}"
        lines.append(f"{text:40}  # {origins[name]}" if name in origins else text)
    write_whole(path, with_crc_line("\n".join(lines) + "\n"))


def load_config(path: Path) -> RunConfig:
    """Return the settings that ``save_config`` wrote.

    Raises:
        ConfigError: one line that names the file and what is wrong in it.
    """
    values: dict[str, Any] = {}
    for written, value in flat(read_yaml(path, str(path)), path).items():
        name = known_key(written, str(path), [])  # an older megads may have written it: nobody is to change that
        values[name] = read_value(name, value, f"{path}: {name}")
    missing = [name for name in fields() if name not in values]
    if missing:
        raise ConfigError(f"{path}: {missing[0]} is missing; restart the run to write the file")
    with suppress(OSError, Bounds):
        if has_changed(read_text(path)):
            raise ConfigError(
                f"{path}: changed since it was written, its CRC-32 differs; restart the run, or if you edited it, "
                "remove its second line"
            )
    return RunConfig.model_validate(nested(values))


def flat(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return a file's values by dotted name.

    Raises:
        ConfigError: a section holds something else.
    """
    sections = {name for name, field in RunConfig.model_fields.items() if isinstance(field.default, Section)}
    result: dict[str, Any] = {}
    for name, value in content.items():
        if name not in sections:
            result[name] = value
        elif isinstance(value, dict):
            result.update({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            raise ConfigError(f"{path}: {name} must hold 'key: value' lines, not {value!r:.60}")
    return result


def _scalar(value: bool | int | float | str) -> str:
    # Quoted text survives whatever it holds: '#', ': ', line breaks, 'on', '007'.
    style = '"' if isinstance(value, str) else None
    text = yaml.safe_dump(value, default_style=style, width=10**6, allow_unicode=False)
    return str(text).removesuffix("\n").removesuffix("\n...").strip()


def write_whole(path: Path, text: str, *, private: bool = False) -> None:
    """Write a file that appears whole or not at all; a ``private`` one can be read by this user only.

    Raises:
        ConfigError: the folder cannot be written, or its disk is full.
    """
    _write(path, text, os.replace, private=private)


def note_saved(run_dir: Path) -> None:
    """Note that the run has saved something: what said from where it begins is not to be given again from now on.

    Until then the line that gives the command again has to say it.
    """
    with suppress(OSError):  # most often it was done, or nothing was said
        os.replace(run_dir / COMMAND_ONCE_SAVED, run_dir / COMMAND)


def write_once(path: Path, text: str) -> bool:
    """Write a file that appears whole, unless there is one already; return whether this call wrote it.

    Raises:
        ConfigError: the folder cannot be written, or its disk is full.
    """
    try:
        _write(path, text, _link)
    except FileExistsError:
        return False
    return True


def _link(temporary: str, path: Path) -> None:
    """Give ``temporary`` the name ``path``, which nobody else has."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if isinstance(error, FileExistsError) or os.path.exists(path):
            raise FileExistsError(path) from None
        os.replace(temporary, path)  # a file system without links
    else:
        os.unlink(temporary)


def _write(path: Path, text: str, publish: Callable[[str, Path], None], *, private: bool = False) -> None:
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes the file private; others may read a run's settings as the umask allows.
        if not private:
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
        publish(temporary, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        if temporary and isinstance(error, FileExistsError):
            raise
        cure = write_cure(error, "use another RUN_DIR")
        raise ConfigError(f"{path}: cannot be written: {error.strerror}; {cure}") from None
