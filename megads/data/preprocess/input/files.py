"""Find the input files, say what each one is, and read them: plain, gzip, xz, zstd, bzip2, pipes and stdin."""

from __future__ import annotations

import glob
import itertools
import os
import select
import stat
import zlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from megads.errors import DataError, DependencyError
from megads.storage.open_file import open_binary

STDIN = "-"
BOM = b"\xef\xbb\xbf"
PIECE = 2**20
"""Bytes read at once from a file that is no plain one."""
LONGEST_LINE = 2**27
"""Bytes of a line, which is one document."""
PATIENCE_S = 30  # with a named pipe into which nobody writes

# zstandard cannot limit its output, so it gets little at once.
_ZSTD_PIECE = 2**16

_COMPRESSED = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2"}
_SKIPPABLE = (b"\x2a\x4d\x18",)  # behind one byte 0x50..0x5f: a zstd frame without text
_OTHERS = {
    b"PAR1": "a parquet file",
    b"PK\x03\x04": "a zip archive",
    b"ARROW1": "an arrow file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"MMIDIDX": "an index of token files",
    b"TNTIDX": "an index of token files",
    b"7z\xbc\xaf": "a 7z archive",
    b"\x04\x22\x4d\x18": "lz4",
}


@dataclass(frozen=True)
class Source:
    """One input."""

    path: str  # "-": stdin
    kind: str  # "plain", "gzip", "xz", "zstd", "bzip2", or "pipe" (of any of these)
    size: int  # bytes on disk, 0 for a pipe
    mtime_ns: int

    @property
    def is_plain(self) -> bool:
        """Whether any part of it can be read by itself."""
        return self.kind == "plain"


def find_inputs(names: Sequence[str]) -> list[Source]:
    """Return what ``--input`` names, in that order; the files of a pattern are sorted.

    Raises:
        DataError: a name is no file, a pattern fits none, or a file cannot be JSON lines.
    """
    found: list[Source] = []
    for name in names:
        path = os.path.expanduser(name)
        if name != STDIN and glob.has_magic(path) and not os.path.lexists(path):
            matches = sorted(each for each in glob.glob(path, recursive=True) if not os.path.isdir(each))
            if not matches:
                raise DataError(f"--input {name}: no file fits this pattern")
            found += [look_at(each) for each in matches]
        else:
            found.append(look_at(path))
    if sum(source.path == STDIN for source in found) > 1:
        raise DataError("--input -: stdin is listed twice, and can be read only once")
    if not found:
        raise DataError("--input names no file; pass files of JSON lines, or - for stdin")
    return found


def look_at(path: str) -> Source:
    """Return what ``path`` is, without opening pipes; DataError where it cannot be read or hold JSON lines."""
    if path == STDIN:
        return Source(STDIN, "pipe", 0, 0)
    try:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            raise DataError(f"--input {path}: is a folder; pass its files, as in '{path.rstrip('/')}/*.jsonl'")
        if stat.S_ISFIFO(found.st_mode):
            return Source(path, "pipe", 0, 0)
        with open_binary(path) as file:
            kind = kind_of(file.read(16), path)
    except OSError as error:
        raise DataError(f"--input {path}: {str(error.strerror).lower()}") from None
    return Source(path, kind, found.st_size, found.st_mtime_ns)


def kind_of(start: bytes, path: str) -> str:
    """Return how a file that begins with ``start`` is stored, whatever its name says."""
    for magic, name in _OTHERS.items():
        if start.startswith(magic):
            raise DataError(f"--input {path}: is {name}; expected JSON lines in UTF-8, plain or as gzip, xz or zstd")
    if start[1:4] in _SKIPPABLE and 0x50 <= start[0] <= 0x5F:
        return "zstd"
    return next((kind for magic, kind in _COMPRESSED.items() if start.startswith(magic)), "plain")


def unchanged(source: Source) -> None:
    """Raise DataError where a file was written to, replaced or removed since the run began."""
    if source.kind == "pipe":
        return
    try:
        now = os.stat(source.path)
    except OSError as error:
        raise DataError(f"{source.path}: {str(error.strerror).lower()} while it was read") from None
    if (now.st_size, now.st_mtime_ns) != (source.size, source.mtime_ns):
        raise DataError(f"{source.path}: changed while it was read; rerun when it is complete")


def read_lines(names: Sequence[str]) -> Iterator[bytes]:
    """Yield every line that is not blank of the files that ``names`` are, in order, without its line break.

    Raises:
        DataError: as :func:`find_inputs`, or compressed data is broken or cut short.
    """
    for source in find_inputs(names):
        for lines in _all_lines(source):
            yield from filter(bytes.strip, lines)


def numbered_lines(name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the same of one file, each line with its number in the file, from 1, in which blank lines count.

    Raises:
        DataError: as :func:`read_lines`.
    """
    for source in find_inputs([name]):
        lines = itertools.chain.from_iterable(_all_lines(source))
        yield from ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def _all_lines(source: Source) -> Iterator[list[bytes]]:
    parts: list[bytes] = []  # of a line that goes on
    for number, (piece, _) in enumerate(read_pieces(source)):
        first, *others = (piece if number else piece.removeprefix(BOM)).split(b"\n")
        parts.append(first)
        if others:
            lines = [b"".join(parts), *others]
            parts = [lines.pop()]
            yield lines
    yield [b"".join(parts)]


def read_pieces(source: Source) -> Iterator[tuple[bytes, int]]:
    """Yield the text of ``source`` in pieces of about a MiB, with how many bytes of the file were read for it.

    Of a pipe that is 0.
    """
    try:
        with _open(source) as file:
            start = file.read(PIECE)
            kind = kind_of(start, source.path)
            rest = iter(lambda: file.read(PIECE), b"")
            texts = itertools.chain([start], rest) if kind == "plain" else _unpack(file, start, kind, source.path)
            for text in filter(None, texts):
                yield text, file.tell() if file.seekable() else 0
    except OSError as error:
        raise DataError(f"{source.path}: cannot be read: {str(error.strerror or error).lower()}") from None


def _open(source: Source) -> BinaryIO:
    if source.path == STDIN:
        return open(0, "rb", buffering=PIECE, closefd=False)
    # A pipe of the shell's <(...) always has a writer.
    if source.kind == "pipe" and not source.path.startswith(("/dev/fd/", "/proc/")):
        return open_pipe(source.path, PATIENCE_S)
    return open(source.path, "rb", buffering=PIECE)


def open_pipe(path: str, patience_s: float) -> BinaryIO:
    """Open a named pipe for reading once somebody has written into it.

    Raises:
        DataError: nobody has for ``patience_s`` seconds.
        OSError: it cannot be opened.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    bell = select.poll()
    bell.register(handle, select.POLLIN | select.POLLHUP)
    if not bell.poll(1000 * patience_s):
        os.close(handle)
        raise DataError(f"--input {path}: is a pipe without data for {patience_s} s; pass files")
    # The same descriptor: to open it again would wait forever, and lose its text, when the writer has ended by now.
    os.set_blocking(handle, True)
    return os.fdopen(handle, "rb", buffering=PIECE)


def _unpack(file: BinaryIO, data: bytes, kind: str, path: str) -> Iterator[bytes]:
    """Decompress ``data`` and what follows in ``file``: any number of streams, with zeros between them."""
    while True:
        data = data.lstrip(b"\0")
        if len(data) < 16:  # a magic number must not be cut in two
            data = (data + file.read(PIECE)).lstrip(b"\0")
        if not data:
            return
        if kind_of(data[:16], path) != kind:
            raise DataError(f"{path}: has trailing bytes after its {kind} data; make the file again")
        skips = kind == "zstd" and data[1:4] in _SKIPPABLE
        data = _skip_frame(file, data, path) if skips else (yield from _unpack_stream(file, data, kind, path))


def _skip_frame(file: BinaryIO, data: bytes, path: str) -> bytes:
    """Return what follows a zstd frame that holds no text, as pzstd writes them."""
    size = 8 + int.from_bytes(data[4:8], "little")
    while len(data) < size:
        data += _more(file, "zstd", path)
    return data[size:]


def _more(file: BinaryIO, kind: str, path: str) -> bytes:
    if not (data := file.read(PIECE)):
        raise DataError(f"{path}: is truncated: its {kind} data is incomplete; copy or make the file again")
    return data


def _unpack_stream(file: BinaryIO, start: bytes, kind: str, path: str) -> Generator[bytes, None, bytes]:
    """Decompress one stream, about a MiB at once (a small file cannot fill the memory); return what follows it."""
    inner, errors = _decompressor(kind)
    piece = start  # kept until the next is read; else its pages go back to the system, and come again, for every MiB
    data = memoryview(piece)
    while True:
        try:
            if kind == "zstd":
                text, data = inner.decompress(data[:_ZSTD_PIECE]), data[_ZSTD_PIECE:]
            else:
                text = inner.decompress(data, PIECE)
                data = memoryview(inner.unconsumed_tail if kind == "gzip" else b"")
        except errors as error:
            raise DataError(f"{path}: broken {kind} data ({error}); copy or make the file again") from None
        yield text
        if inner.eof:
            return bytes(inner.unused_data) + bytes(data)
        # lzma and bz2 keep what they did not decompress yet.
        if inner.needs_input if kind in ("xz", "bzip2") else not data and (kind == "zstd" or len(text) < PIECE):
            piece = _more(file, kind, path)
            data = memoryview(piece)


def _decompressor(kind: str) -> tuple[Any, tuple[type[BaseException], ...]]:
    """Return a decompressor and what it raises for broken data."""
    if kind == "gzip":
        return zlib.decompressobj(31), (zlib.error,)
    try:
        if kind == "xz":
            import lzma

            return lzma.LZMADecompressor(), (lzma.LZMAError,)
        if kind == "bzip2":
            import bz2

            return bz2.BZ2Decompressor(), (OSError, EOFError)
        import zstandard
    except ImportError:
        cure = "pip install zstandard" if kind == "zstd" else f"use a Python that was built with {kind}"
        raise DependencyError(f"{kind} files cannot be read by this Python; {cure}, or unpack them") from None
    # Files made with --long need more than the usual window.
    return zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj(), (zstandard.ZstdError,)
