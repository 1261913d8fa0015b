"""The formats once more, as slowly and plainly as the description reads: what the readers are compared with."""

from __future__ import annotations

import struct
from dataclasses import dataclass

NAMES = {1: "B", 2: "b", 3: "<h", 4: "<i", 5: "<q", 8: "<H"}


class RefusedError(Exception):
    """These bytes are no token file, or the index points outside of the tokens."""


@dataclass
class Reference:
    """One token file, from the bytes of its index and of its tokens."""

    index: bytes
    tokens: bytes

    def __post_init__(self) -> None:
        self.is_tnt = self.index[:8] == b"TNTIDX\0\0"
        if self.is_tnt:
            self._read_tnt()
        else:
            self._read_mmap()
        self.item = struct.calcsize(self.format)
        ends_well = self.documents and self.documents[0] == 0 and self.documents[-1] == len(self.sizes)
        if not self.sizes or not ends_well:
            raise RefusedError
        start, size = self.entry(len(self.sizes) - 1)
        if start < 0 or size < 0 or start + size * self.item != len(self.tokens):
            raise RefusedError

    def _read_mmap(self) -> None:
        try:
            magic, version, code, count, entries = struct.unpack_from("<9sQBQQ", self.index)
        except struct.error:
            raise RefusedError from None
        size = 34 + 12 * count + 8 * entries
        known = magic == b"MMIDIDX\0\0" and version == 1 and code in NAMES
        if not known or len(self.index) not in (size, size + count):
            raise RefusedError
        self.format = NAMES[code]
        self.sizes = list(struct.unpack_from(f"<{count}i", self.index, 34))
        self.starts = list(struct.unpack_from(f"<{count}q", self.index, 34 + 4 * count))
        self.documents = list(struct.unpack_from(f"<{entries}q", self.index, 34 + 12 * count))
        self.dims = list(range(count + 1))

    def _read_tnt(self) -> None:
        try:
            _, version, code, item, count, sizes, entries = struct.unpack_from("<8s6Q", self.index)
        except struct.error:
            raise RefusedError from None
        known = version == 1 and code in NAMES and item == struct.calcsize(NAMES[code]) and sizes == count
        if not known or len(self.index) != 56 + 16 * (count + 1) + 8 * count + 8 * entries:
            raise RefusedError
        self.format = NAMES[code]
        numbers = list(struct.unpack_from(f"<{(len(self.index) - 56) // 8}q", self.index, 56))
        self.dims, rest = numbers[: count + 1], numbers[count + 1 :]
        self.starts, rest = [each * item for each in rest[: count + 1]], rest[count + 1 :]
        self.sizes, self.documents = rest[:count], rest[count:]

    def entry(self, i: int) -> tuple[int, int]:
        """Return where a sequence starts, in bytes, and its tokens."""
        if (self.dims[i], self.dims[i + 1]) != (i, i + 1):
            raise RefusedError
        return self.starts[i], self.sizes[i]

    def get(self, i: int, offset: int = 0, length: int | None = None) -> list[int]:
        """Return tokens of a sequence."""
        if not 0 <= i < len(self.sizes):
            raise IndexError
        start, size = self.entry(i)
        if start < 0 or size < 0 or start + size * self.item > len(self.tokens):
            raise RefusedError
        count = size - offset if length is None else length
        if offset < 0 or count < 0 or offset + count > size:
            raise IndexError
        begin = start + offset * self.item
        return [struct.unpack_from(self.format, self.tokens, begin + k * self.item)[0] for k in range(count)]

    def is_sound(self) -> bool:
        """Return whether every rule of the format holds."""
        place = 0
        for i, size in enumerate(self.sizes):
            if size < 0 or self.starts[i] != place or self.dims[i] != i:
                return False
            place += size * self.item
        ends = place == len(self.tokens) and self.dims[-1] == len(self.sizes)
        if self.is_tnt and self.starts[-1] != place:
            return False
        return ends and all(a <= b for a, b in zip(self.documents, self.documents[1:], strict=False))
