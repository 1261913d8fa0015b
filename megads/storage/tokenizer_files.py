"""What the files of a tokenizer look like, by name: a file of another kind is refused before it is read or copied."""

from __future__ import annotations

import re
from pathlib import Path

from megads.storage.reading import parse_json, read_bytes

_PICKLES = (*(b"\x80" + bytes([version]) for version in range(2, 6)), b"PK\x03\x04")
_RANKS = re.compile(rb"[A-Za-z0-9+/=]+ \d+\r?\n")  # a line of a tiktoken vocabulary
_LARGEST = 1 << 30  # bytes


def wrong_kind(path: Path) -> str:
    """Return why ``path`` is not a file of a tokenizer by its name, "" if it is one.

    ``*.json`` holds a JSON object or list, ``*.model`` a SentencePiece model or tiktoken's ranks, the others text.

    Raises:
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    if size > _LARGEST:
        return f"has {size} bytes, more than any tokenizer"
    content = read_bytes(path, _LARGEST)
    if content.startswith(_PICKLES):
        return "is a pickle, which could run any program; a tokenizer is JSON, text or a SentencePiece model"
    if path.suffix == ".model":
        # Field 1 of the message, the pieces, stands first.
        return "" if content.startswith(b"\n") or _RANKS.match(content) else "is no SentencePiece model"
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return f"is not UTF-8 text (byte {error.start})"
    if path.suffix != ".json":
        return ""
    try:
        return "" if isinstance(parse_json(text), (dict, list)) else "is not a JSON object"
    except ValueError:
        return "is not JSON"
