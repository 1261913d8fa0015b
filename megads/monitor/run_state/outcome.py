"""How a run ended (``outcome.json``) and where it is (``heartbeat.json``): what ranks leave for the launcher."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from megads.config.run_folder import HEARTBEAT, OUTCOME, write_once, write_whole
from megads.storage.checksums import NO_CRC, is_sealed, seal
from megads.storage.reading import SMALL, parse_json, read_bytes

_LONGEST = 50_000  # characters of a message; six bytes each at worst
_MOST_NUMBER = 1e18


@dataclass(frozen=True)
class Outcome:
    """How a run ended, for the launcher and the summary.

    ``kind`` is one of: done, stopped, wrong (a MegadsError), import, memory, error (any other
    exception), killed (by a signal), lost (another rank went silently), hang, replica (copies of weights differ).

    Attributes:
        device: of rank 0, as torch reports it; empty: the run did not train.
        per_host: ranks on a host.
        predicted: ``step_s``, ``tokens_per_s``, ``memory_bytes``; a number that was not predicted is missing.
        measured: the same, and medians of what the step was spent on (``forward_s``, ...).
    """

    exit_code: int
    message: str
    iteration: int
    kind: str = ""
    rank: int = -1  # that failed, and its host
    host: str = ""
    device: str = ""
    world_size: int = 0
    per_host: int = 0
    predicted: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)


def write_outcome(run_dir: Path, outcome: Outcome) -> None:
    """Write ``outcome.json``, which says how the run ended.

    Raises:
        ConfigError: the folder cannot be written, or its disk is full.
    """
    write_whole(run_dir / OUTCOME, _text(outcome))


def write_first_outcome(run_dir: Path, outcome: Outcome) -> bool:
    """Write ``outcome.json`` unless a rank has written it; return whether this one is the first.

    The file system decides, not a look at it: on a network file system a host may see for
    a minute that there is no file which another host has written.

    Raises:
        ConfigError: as :func:`write_outcome`.
    """
    return write_once(run_dir / OUTCOME, _text(outcome))


def _text(outcome: Outcome) -> str:
    """Return the content of the file, whose readers take no more than :data:`SMALL` bytes."""
    message = outcome.message
    if len(message) > _LONGEST:
        half = _LONGEST // 2
        message = f"{message[:half]}\n[{len(message) - _LONGEST} characters]\n{message[-half:]}"
    return seal(json.dumps({"crc32": NO_CRC, **asdict(replace(outcome, message=message))}) + "\n")


def _known(kind: Any, path: Path) -> dict[str, Any]:
    """Return the fields of a dataclass in a file with its own CRC-32, or none.

    Raises:
        OSError: it cannot be read.
        ValueError, TypeError: its CRC-32 differs, or a field is of another type.
    """
    raw = read_bytes(path, SMALL)
    given = parse_json(raw)
    if "crc32" in given and not is_sealed(raw, given["crc32"]):
        raise ValueError("it changed since it was written, its CRC-32 differs")
    kinds: dict[str, Any] = {"int": int, "str": str, "float": (int, float), "Mapping[str, float]": dict}
    types = {each.name: kinds[str(each.type)] for each in fields(kind) if each.name in given}
    for name, right in types.items():
        value = given[name]
        numbers = list(value.values()) if isinstance(value, dict) else [value]
        is_right = isinstance(value, right) and (isinstance(value, str) or all(map(_is_number, numbers)))
        if not is_right:
            raise TypeError(f"{name} is {value!r:.40}")
    return {name: given[name] for name in types}


def _is_number(value: Any) -> bool:
    """Return whether ``value`` is a number, not larger than any of ours."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MOST_NUMBER


def find_outcome(run_dir: Path, patience_s: float = 0.0) -> Outcome | None:
    """Return what the ranks left, which another host may have written a moment ago; wait for it up to ``patience_s``.

    A network file system remembers that there was no file; listing the folder makes it ask again.
    """
    until = time.monotonic() + patience_s
    while True:
        with suppress(OSError):
            os.listdir(run_dir)
        outcome = read_outcome(run_dir)
        if outcome is not None or time.monotonic() >= until:
            return outcome
        time.sleep(0.1)


def read_outcome(run_dir: Path) -> Outcome | None:
    """Return what the ranks left in ``outcome.json``, or None when there is none that can be read."""
    try:
        return Outcome(**{"message": "", "iteration": 0, **_known(Outcome, run_dir / OUTCOME)})
    except (OSError, ValueError, TypeError):
        return None


@dataclass(frozen=True)
class Heartbeat:
    """Where rank 0 was when it last wrote."""

    iteration: int
    phase: str
    since: float  # unix seconds, of the beginning of ``phase``
    time: float  # unix seconds, of writing
    pid: int
    host: str
    attempt: int = 0
    save_s: float = 0.0  # the longest that a checkpoint took so far
    spent: Mapping[str, float] = field(default_factory=dict)  # seconds of this start in each phase so far


def write_heartbeat(run_dir: Path, beat: Heartbeat) -> None:
    """Replace ``heartbeat.json``. A disk that is full keeps the old one; a run does not fail for it."""
    part = run_dir / f".{HEARTBEAT}.part"  # one name, which a killed run leaves to the next one
    # Not synced: it is rewritten all the time, and worth nothing after a crash of the host.
    with suppress(OSError):
        part.write_text(seal(json.dumps({"crc32": NO_CRC, **asdict(beat)}) + "\n"), encoding="utf8")
        os.replace(part, run_dir / HEARTBEAT)


def read_heartbeat(run_dir: Path) -> Heartbeat | None:
    """Return the heartbeat of the run in ``run_dir``, None when there is none that can be read."""
    try:
        return Heartbeat(**_known(Heartbeat, run_dir / HEARTBEAT))
    except (OSError, ValueError, TypeError):
        return None


def last_seen(run_dir: Path) -> str:
    """Return ``; rank 0 was last seen in step 7, 12 s ago``, or nothing without a heartbeat."""
    beat = read_heartbeat(run_dir)
    if beat is None:
        return ""
    ago = time.time() - beat.time
    return f"; rank 0 on {beat.host} was last seen in {beat.phase}, after step {beat.iteration}, {ago:.0f} s ago"
