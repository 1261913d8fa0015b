"""Reads the files of tokenizers, and says whether two of them are the same."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import orjson

from megads.errors import ConfigError, DataError
from megads.storage import reading as files

_MOST = 1 << 30  # bytes of a file of a tokenizer

MOST_TOKENS = 2**31
"""Ids that a token file can hold."""


def fingerprint(*content: object) -> str:
    """Return a short hex digest of JSON-like ``content``; the order of keys does not count."""
    digest = hashlib.sha256()
    for part in content:
        digest.update(part if isinstance(part, bytes) else orjson.dumps(part, option=orjson.OPT_SORT_KEYS))
        digest.update(b"\n")
    return digest.hexdigest()[:16]


def find_file(name: str, setting: str, what: str) -> Path:
    """Return the file ``name``.

    Raises:
        ConfigError: no name is given; ``setting`` is the variable to set, ``what`` the file expected.
        DataError: the file does not exist.
    """
    if not name:
        raise ConfigError(f"{setting} is not set; set it to {what}")
    path = Path(os.path.expanduser(name))
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "no such file"
        raise DataError(f"{setting} {name}: {found}; expected {what}; nothing is downloaded")
    return path


def read_bytes(path: Path) -> bytes:
    """Return what is in the file; DataError where it cannot be read."""
    try:
        return files.read_bytes(path, _MOST)
    except OSError as error:
        raise DataError(f"{path}: {str(error.strerror).lower()}") from None


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, its line ends as they are."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text (byte {error.start})") from None


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Return the JSON object in the file; ``what`` is what it should be."""
    raw = read_bytes(path)
    try:
        # The collector would walk over hundreds of thousands of new lists: half of the time.
        with files.no_collection():
            content = orjson.loads(raw)
    except orjson.JSONDecodeError:
        try:  # orjson is too strict for NaN, halves of surrogate pairs, other encodings
            content = files.parse_json(raw)
        except ValueError:
            raise DataError(f"{path}: is not JSON; expected {what}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a JSON object, {what}")
    return content
