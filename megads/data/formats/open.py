"""Open token files of either format."""

from __future__ import annotations

from pathlib import Path

from megads.data.formats import mmap, tnt
from megads.data.formats.base import TokenFile
from megads.data.formats.files import ReadFile
from megads.data.formats.prefix import strip_suffix


def open_dataset(prefix: str | Path, *, allow_empty: bool = False) -> TokenFile:
    """Return the reader for ``<prefix>.idx``, by the first bytes of it.

    Raises:
        DataError: as :class:`TokenFile`.
    """
    index = ReadFile(Path(strip_suffix(str(prefix)) + ".idx"))
    head = index.bytes(min(len(tnt.MAGIC), index.size), 0)
    kind = tnt.TntDataset if head == tnt.MAGIC else mmap.IndexedDataset
    return kind(prefix, allow_empty=allow_empty)
