"""Find the input files, say what each one is, and read them: plain, gzip, xz, zstd, bzip2, pipes and stdin."""

from __future__ import annotations

import glob
import os
import select
import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from megads.errors import DataError, DependencyError
from megads.storage.open_file import open_binary

STDIN = "-"
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
    """Return what ``path`` is; pipes are not opened.

    Raises:
        DataError: it cannot be read, is a folder, or is of a kind that holds no JSON lines.
    """
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
    """Check that a file is still what it was when the run began.

    Raises:
        DataError: it was written to, replaced or removed meanwhile.
    """
    if source.kind == "pipe":
        return
    try:
        now = os.stat(source.path)
    except OSError as error:
        raise DataError(f"{source.path}: {str(error.strerror).lower()} while it was read") from None
    if (now.st_size, now.st_mtime_ns) != (source.size, source.mtime_ns):
        raise DataError(f"{source.path}: changed while it was read; rerun when it is complete")


def read_lines(paths: Sequence[str]) -> Iterator[bytes]:
    """Yield every line of the files that is not blank, in order, without its line break.

    Args:
        paths: as ``--input``: files, patterns, or ``-``.

    Raises:
        DataError: as :func:`find_inputs`, or compressed data is broken or cut short.
    """
    for source in find_inputs(paths):
        rest: list[bytes] = []
        first = True
        for piece, _ in read_pieces(source):
            text = piece.removeprefix(b"\xef\xbb\xbf") if first else piece
            first = False
            lines = text.split(b"\n")
            if len(lines) > 1:
                lines[0] = b"".join([*rest, lines[0]])
                rest = []
                yield from (line for line in lines[:-1] if line.strip())
            rest.append(lines[-1])
        last = b"".join(rest)
        if last.strip():
            yield last


def read_pieces(source: Source) -> Iterator[tuple[bytes, int]]:
    """Yield the text of ``source`` in pieces of about a MiB, with how many bytes of the file were read for it."""
    try:
        with _open(source) as file:
            start = file.read(PIECE)
            kind = kind_of(start, source.path)
            if kind == "plain":
                yield from _plain(file, start)
            else:
                yield from _unpack(file, start, kind, source.path)
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


def _plain(file: BinaryIO, start: bytes) -> Iterator[tuple[bytes, int]]:
    used = 0
    while start:
        used += len(start)
        yield start, used
        start = file.read(PIECE)


def _unpack(file: BinaryIO, data: bytes, kind: str, path: str) -> Iterator[tuple[bytes, int]]:
    """Decompress ``data`` and what follows in ``file``: any number of streams, with zeros between them."""
    used = len(data)
    inner = None
    while True:
        if inner is None:
            data = data.lstrip(b"\0") if used > len(data) else data
            if len(data) < 16:  # a magic number must not be cut in two
                more = file.read(PIECE)
                used += len(more)
                data = data.lstrip(b"\0") + more.lstrip(b"\0") if not data.lstrip(b"\0") else data + more
            if not data:
                return
            data, used, skipped = _skip_frame(file, data, used, path) if kind == "zstd" else (data, used, False)
            if skipped:
                continue
            if kind_of(data[:16], path) != kind:
                raise DataError(f"{path}: has trailing bytes after its {kind} data; make the file again")
            inner = _Unpacker(kind, path)
        for piece in inner.feed(data):
            yield piece, used
        if inner.is_done:
            data, inner = inner.rest, None
            continue
        data = file.read(PIECE)
        used += len(data)
        if not data:
            raise DataError(f"{path}: is truncated: its {kind} data is incomplete; copy or make the file again")


def _skip_frame(file: BinaryIO, data: bytes, used: int, path: str) -> tuple[bytes, int, bool]:
    """Leave out a zstd frame that holds no text, as pzstd writes them."""
    if not (data[1:4] in _SKIPPABLE and 0x50 <= data[0] <= 0x5F):
        return data, used, False
    size = 8 + int.from_bytes(data[4:8], "little")
    while len(data) < size:
        more = file.read(PIECE)
        if not more:
            raise DataError(f"{path}: is truncated: its zstd data is incomplete; copy or make the file again")
        used += len(more)
        data += more
    return data[size:], used, True


class _Unpacker:
    """One compressed stream. Gives back about a MiB at once, so that a small file cannot fill the memory."""

    def __init__(self, kind: str, path: str):
        self.kind, self.path = kind, path
        self.is_done = False
        self.rest = b""  # what follows the stream's end
        self._inner, self._errors = _decompressor(kind)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the text of the next bytes of the file."""
        try:
            yield from self._feed_zstd(data) if self.kind == "zstd" else self._feed(data)
        except self._errors as error:
            raise DataError(f"{self.path}: broken {self.kind} data ({error}); copy or make the file again") from None
        if self._inner.eof:
            self.is_done = True

    def _feed(self, data: bytes) -> Iterator[bytes]:
        inner = self._inner
        while True:
            text = inner.decompress(data, PIECE)
            if text:
                yield text
            if inner.eof:
                self.rest = inner.unused_data
                return
            data = inner.unconsumed_tail if self.kind == "gzip" else b""
            if len(text) < PIECE and (not data if self.kind == "gzip" else inner.needs_input):
                return

    def _feed_zstd(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _ZSTD_PIECE):
            text = self._inner.decompress(data[start : start + _ZSTD_PIECE])
            if text:
                yield text
            if self._inner.eof:
                self.rest = self._inner.unused_data + data[start + _ZSTD_PIECE :]
                return


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
