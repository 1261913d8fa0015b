"""Keeps what came out when a library was compared with the original on the built-in sample.

The comparison takes a second or two at every start. Its outcome depends on the tokenizer's content, the versions of
both libraries, and the sample, which follows from this program and from Python's tables of Unicode; all of them are in
the key. A file that cannot be read, or is of another form, counts as none.
"""

from __future__ import annotations

import hashlib
import json
import platform
import unicodedata
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from megads.config.run_folder import write_whole
from megads.data.tokenizers.base import Tokenizer
from megads.data.tokenizers.encoders import libraries, proof
from megads.errors import ConfigError
from megads.storage.reading import read_json

_ORIGINALS = ("tokenizers", "sentencepiece")
_LARGEST = 4096  # bytes


@dataclass(frozen=True)
class Outcome:
    """What came out."""

    problem: str  # how the library fails; empty: it gives the same ids
    texts: int
    characters: int


def kept_outcome(folder: Path | None, tokenizer: Tokenizer, library: str) -> Outcome | None:
    """Return the outcome that is kept for a library, by its name with its version; None where there is none."""
    if folder is None:
        return None
    key = _key(tokenizer, library)
    try:
        content = read_json(_path(folder, key), _LARGEST)
        outcome = Outcome(content["problem"], content["texts"], content["characters"])
        right = content["key"] == key and content["check"] == _check(key, outcome)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return outcome if right else None


def keep_outcome(folder: Path | None, tokenizer: Tokenizer, library: str, outcome: Outcome) -> None:
    """Keep an outcome; a folder that takes no file keeps none."""
    if folder is None:
        return
    key = _key(tokenizer, library)
    content = {"key": key, **asdict(outcome), "check": _check(key, outcome)}
    with suppress(OSError, ConfigError):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(_path(folder, key), json.dumps(content) + "\n")


def _path(folder: Path, key: str) -> Path:
    return folder / f"encoder-{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _check(key: str, outcome: Outcome) -> str:
    """Return a checksum: a flipped bit must not make an unproved library a proved one."""
    return hashlib.sha256(f"{key} {outcome}".encode()).hexdigest()


def _key(tokenizer: Tokenizer, library: str) -> str:
    versions = {}
    for name in _ORIGINALS:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    # What this program does around a library, and what it compares, is in these two files.
    program = hashlib.sha256()
    for module in (libraries, proof):
        program.update(Path(str(module.__file__)).read_bytes())
    parts = [tokenizer.fingerprint, library, versions, program.hexdigest(), unicodedata.unidata_version]
    return json.dumps([*parts, platform.machine()])
