"""What is known of a token file beyond Megatron's format: ``<prefix>.info.json``, beside ``.bin`` and ``.idx``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from megads.config.files import write_whole
from megads.data.file_list import strip_suffix
from megads.errors import DataError

FORMAT = 1


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


def record_path(prefix: str | Path) -> Path:
    """Return the path of the record beside the token file ``prefix``."""
    return Path(strip_suffix(str(prefix)) + ".info.json")


def write_record(prefix: str | Path, record: Record) -> None:
    """Write ``record`` beside the token file, whole or not at all."""
    write_whole(record_path(prefix), json.dumps({"format": FORMAT, **asdict(record)}, indent=2) + "\n")


def read_record(prefix: str | Path) -> Record | None:
    """Return the record of a token file, None where there is none.

    Raises:
        DataError: it is there and can not be understood.
    """
    path = record_path(prefix)
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        version = content.pop("format")
        content["sources"] = tuple(content.get("sources", ()))
        if version == FORMAT:
            return Record(**content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path}: can not be understood ({type(error).__name__}: {error}); remove it to use the data without a "
            "record, or preprocess again"
        ) from None
    raise DataError(f"{path}: format {version}, expected {FORMAT}; it was made by a newer megads")
