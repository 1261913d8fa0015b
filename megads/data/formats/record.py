"""What is known of a token file beyond Megatron's format: ``<prefix>.info.json``, next to ``.bin`` and ``.idx``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from megads.config.run_folder import write_whole
from megads.data.formats.checksums import Checksums
from megads.data.formats.prefix import strip_suffix
from megads.errors import ConfigError, DataError
from megads.storage.checksums import NO_CRC, is_sealed, seal
from megads.storage.reading import parse_json, read_bytes

FORMAT = 1
RECORD_SUFFIX = ".info.json"
_LARGEST = 1 << 26  # bytes; hundreds of thousands of input files
_COUNTS = ("vocab_size", "documents", "sequences", "tokens")


@dataclass(frozen=True)
class Record:
    """How a token file was made. Files of other tools have none, and are used as they are."""

    tokenizer: str  # identity of the text -> ids function, see Tokenizer.fingerprint
    tokenizer_type: str  # as TOKENIZER_TYPE, for people
    tokenizer_name: str  # file or folder it was read from, for people
    vocab_size: int  # largest possible id + 1
    eod: int | None  # id at the end of documents; None: nothing was appended
    documents: int
    sequences: int
    tokens: int
    level: str = "document"  # "sentence": a document is several sequences
    key: str = "text"  # of the JSON objects
    sources: tuple[str, ...] = field(default=())  # input files, for people
    checksums: Checksums | None = None  # of both files; None: not known


def record_path(prefix: str | Path) -> Path:
    """Return the path of the record next to the token file ``prefix``."""
    return Path(strip_suffix(str(prefix)) + RECORD_SUFFIX)


def write_record(prefix: str | Path, record: Record) -> None:
    """Write ``record`` next to the token file, whole or not at all.

    Raises:
        DataError: it cannot be written.
    """
    path = record_path(prefix)
    try:
        write_whole(path, record_text(record))
    except ConfigError as error:
        reason = str(error).partition(": ")[2].partition(";")[0]
        raise DataError(f"{path}: {reason}; the data is complete, but nothing says which tokenizer made it") from None


def record_text(record: Record) -> str:
    """Return the content of the file, with its own CRC-32: of the text with eight zeros in its place."""
    return seal(json.dumps({"format": FORMAT, "crc32": NO_CRC, **asdict(record)}, indent=2) + "\n")


def read_record(prefix: str | Path) -> Record | None:
    """Return the record of a token file, None where there is none.

    Raises:
        DataError: it is there and cannot be understood.
    """
    path = record_path(prefix)
    try:
        raw = read_bytes(path, _LARGEST)
        content = parse_json(raw)
        version, crc = content.pop("format"), content.pop("crc32", None)
        if version == FORMAT:
            if crc is not None and not is_sealed(raw, crc):
                raise ValueError("it changed since it was written, its CRC-32 differs")
            return _record(content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        text = str(getattr(error, "strerror", None) or error)
        reason = text if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {text}"
        raise DataError(
            f"{path}: is not a valid record ({reason:.200}); remove it to use the data without a "
            "record, or preprocess again"
        ) from None
    raise DataError(f"{path}: format {version!r:.40}, expected {FORMAT}; it was made by a newer megads")


def _record(content: dict[str, Any]) -> Record:
    """Return the record, whose values have the types they should have."""
    sources, checksums = content.pop("sources", []), content.pop("checksums", None)
    record = Record(
        **content, sources=tuple(sources), checksums=None if checksums is None else Checksums.parse(checksums)
    )
    for name, value in asdict(record).items():
        if name == "checksums":
            continue
        if name == "sources":
            right = all(isinstance(each, str) for each in value)
        elif name in _COUNTS:
            right = type(value) is int and value >= 0
        else:
            right = value is None or type(value) is int if name == "eod" else isinstance(value, str)
        if not right:
            raise TypeError(f"{name} is {value!r:.40}")
    return record
