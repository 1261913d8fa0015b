"""CRC-32 of every block of a row of bytes, written as eight digits each."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

BLOCK = 1 << 20
"""Bytes of a block; the last one is shorter."""


class BlockChecksums:
    """Makes the checksums of blocks of ``block`` bytes from bytes that come in pieces of any length."""

    def __init__(self, block: int = BLOCK):
        self.block = block
        self._complete: list[int] = []
        self._value = self._filled = 0

    def add(self, piece: memoryview | bytes) -> None:
        """Take the next bytes."""
        view = memoryview(piece).cast("B")
        while view:
            part = view[: self.block - self._filled]
            self._value = zlib.crc32(part, self._value)
            self._filled += len(part)
            view = view[len(part) :]
            if self._filled == self.block:
                self._complete.append(self._value)
                self._value = self._filled = 0

    def digits(self) -> str:
        """Return the checksums of all blocks so far, the last one as it is."""
        last = [self._value] if self._filled else []
        return "".join(f"{value:08x}" for value in [*self._complete, *last])


def count_blocks(size: int, block: int = BLOCK) -> int:
    """Return how many blocks ``size`` bytes have."""
    return -(-size // block)


def parse_digits(digits: object, count: int) -> Sequence[int]:
    """Return the checksums of ``count`` blocks.

    Raises:
        ValueError: these are not the digits of so many.
    """
    if not isinstance(digits, str) or len(digits) != 8 * count:
        raise ValueError(f"no checksums of {count} blocks")
    raw = bytes.fromhex(digits)
    if raw.hex() != digits:
        raise ValueError("checksums are not in lower case")
    return [int.from_bytes(raw[at : at + 4], "big") for at in range(0, len(raw), 4)]


NO_CRC = "0" * 8
"""Stands where the CRC-32 of a text will be, while it is made."""

_LINE = "# crc32 of the lines below: "


def seal(text: str) -> str:
    """Return a text with its own CRC-32 in the place of the first :data:`NO_CRC`."""
    return text.replace(NO_CRC, f"{zlib.crc32(text.encode()):08x}", 1)


def is_sealed(content: bytes, crc: object) -> bool:
    """Return whether ``crc``, found in ``content``, is what :func:`seal` put there."""
    if not isinstance(crc, str) or len(crc) != len(NO_CRC):
        return False
    return f"{zlib.crc32(content.replace(crc.encode(), NO_CRC.encode(), 1)):08x}" == crc


def with_crc_line(text: str) -> str:
    """Return a text of lines with the CRC-32 of what follows as a comment below its first line."""
    first, _, rest = text.partition("\n")
    return f"{first}\n{_LINE}{zlib.crc32(rest.encode()):08x}\n{rest}"


def has_changed(text: str) -> bool:
    """Return whether the comment of :func:`with_crc_line` is there and is not that of what follows."""
    _, second, rest = (*text.split("\n", 2), "", "")[:3]
    return second.startswith(_LINE) and second != f"{_LINE}{zlib.crc32(rest.encode()):08x}"
