"""Plain text files as JSON lines: each file is a document."""

from __future__ import annotations

import codecs
import glob
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megads.data.preprocess.input.files import BOM, LONGEST_LINE
from megads.errors import ConfigError, DataError
from megads.storage.open_file import NotRegular, write_cure
from megads.storage.reading import read_bytes
from megads.storage.whole_file import whole_file
from megads.text.plural import plural


@dataclass(frozen=True)
class Written:
    """What :func:`write_documents` has written."""

    documents: int
    size: int  # bytes of their texts, as UTF-8
    empty: tuple[str, ...]  # files without text, which are skipped


def find_texts(names: Sequence[str]) -> list[str]:
    """Return the files that ``--input`` names, in that order; the files of a pattern are sorted.

    Raises:
        DataError: a name does not exist or is a folder, or a pattern fits no file.
    """
    found: list[str] = []
    for name in names:
        path = os.path.expanduser(name)
        if glob.has_magic(path) and not os.path.lexists(path):
            matches = sorted(each for each in glob.glob(path, recursive=True) if not os.path.isdir(each))
            if not matches:
                raise DataError(f"--input {name}: no file fits this pattern")
            found += matches
        elif os.path.isdir(path):
            raise DataError(f"--input {name}: is a folder; pass its files, as in '{name.rstrip('/')}/**/*.txt'")
        else:
            found.append(path)
    return found


def write_documents(names: Sequence[str], output: Path, *, encoding: str = "utf-8", overwrite: bool = False) -> Written:
    """Write every file that ``names`` are as a line ``{"text": ..., "source": path}`` of ``output``.

    Nothing is there under its final name before it is complete.

    Raises:
        ConfigError: Python has no such ``encoding`` of text.
        DataError: as :func:`find_texts`; a file cannot be read or is not text; ``output`` already exists or cannot be
            written.
    """
    try:
        "".encode(encoding)
    except LookupError:
        wrong = f"--encoding {encoding}: Python has no such text encoding; for example latin-1 or cp1252"
        raise ConfigError(wrong) from None
    paths = find_texts(names)
    if os.path.lexists(output) and not overwrite:
        raise DataError(f"--output {output}: already exists; pass --overwrite to replace it, or another name")
    if os.path.realpath(output) in map(os.path.realpath, paths):
        raise DataError(f"--output {output}: is one of the files to read; use another name")
    documents = size = 0
    empty: list[str] = []
    try:
        with whole_file(output) as nearby, open(nearby, "w", encoding="utf-8") as file:
            for path in paths:
                text = read_document(path, encoding)
                if not text.strip():
                    empty.append(path)
                    continue
                source = os.fsencode(path).decode("utf-8", "backslashreplace")  # names may be any bytes
                file.write(json.dumps({"text": text, "source": source}, ensure_ascii=False) + "\n")
                documents, size = documents + 1, size + len(text.encode())
            if not documents:
                files = plural(len(paths), "file")
                raise DataError(f"--input {names[0]}: {files}, and no text in {'it' if len(paths) == 1 else 'them'}")
    except OSError as error:
        cure = write_cure(error, "use another --output")
        raise DataError(f"--output {output}: cannot be written: {str(error.strerror).lower()}; {cure}") from None
    return Written(documents, size, tuple(empty))


def read_document(path: str, encoding: str) -> str:
    """Return the text of a file, without a byte order mark.

    Raises:
        DataError: it cannot be read, is longer than a document may be, or is not text in this encoding.
    """
    try:
        content = read_bytes(path, LONGEST_LINE)
    except NotRegular as error:
        raise DataError(f"--input {path}: {str(error.strerror).partition(',')[0]}; expected a text file") from None
    except OSError as error:
        raise DataError(f"--input {path}: {str(error.strerror).lower()}") from None
    if b"\0" in content[: 2**16] and not codecs.lookup(encoding).name.startswith(("utf-16", "utf-32")):
        raise DataError(f"--input {path}: is not a text file (it has NUL bytes); UTF-16 needs --encoding utf-16")
    try:
        text = content.removeprefix(BOM).decode(encoding)
    except UnicodeError as error:
        start = getattr(error, "start", None)  # only a decoder that knows it says where
        place = str(error) if start is None else f"byte {start} is 0x{content.removeprefix(BOM)[start]:02x}"
        cure = "pass its encoding, e.g. --encoding latin-1"
        raise DataError(f"--input {path}: is not {encoding} text ({place}); {cure}") from None
    if half := re.search("[\ud800-\udfff]", text):  # of a pair; JSON lines are UTF-8, which has none
        raise DataError(f"--input {path}: has half a surrogate pair (U+{ord(half[0]):04X}) in {encoding}; remove it")
    return text
