"""Write a file that ``torch.load`` reads, tensor after tensor, without holding them together.

``torch.save`` wants everything in memory at once. Its file is a zip of stored, not compressed,
members: ``NAME/data.pkl``, a pickle that names the others, and ``NAME/data/0``, ``1``, ... with
the numbers of a tensor each, here at multiples of 64 bytes as torch puts them.
"""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT = 64
_ROOT = "archive"
_LOCAL_HEADER = 30
_ZIP64_EXTRA = 20
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_STORAGES = {torch.float32: torch.FloatStorage, torch.float16: torch.HalfStorage, torch.bfloat16: torch.BFloat16Storage}


@dataclass(frozen=True)
class Placeholder:
    """Stands for a tensor in the object that is pickled; its elements are written afterwards."""

    key: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class _Storage:
    tensor: Placeholder


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Placeholder):
            return NotImplemented
        strides = torch.empty(obj.shape, device="meta").stride()
        arguments: tuple[Any, ...] = (_Storage(obj), 0, obj.shape, strides, False, OrderedDict())
        return torch._utils._rebuild_tensor_v2, arguments

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, _Storage):
            return None
        tensor = obj.tensor
        return "storage", _STORAGES[tensor.dtype], str(tensor.key), "cpu", int(np.prod(tensor.shape))


class TorchFile:
    """A file of ``content``, whose placeholders are written, in any order, before it is closed."""

    def __init__(self, path: Path, content: Any):
        self._file = open(path, "xb")  # noqa: SIM115 - closed by __exit__
        self._zip = zipfile.ZipFile(self._file, "w", zipfile.ZIP_STORED, allowZip64=True)
        pickled = io.BytesIO()
        with ExitStack() as stack:
            stack.callback(self._close)
            _Pickler(pickled, protocol=2).dump(content)
            self._member("data.pkl", memoryview(pickled.getvalue()))
            self._member("byteorder", memoryview(b"little"))
            stack.pop_all()

    def __enter__(self) -> TorchFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is None:
                self._member("version", memoryview(b"3\n"))
                self._zip.close()
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self._close()

    def _close(self) -> None:
        """Close what is open still; else its end is tried once more when it is collected."""
        for each in (self._zip, self._file):
            with suppress(OSError, ValueError):
                each.close()

    def write(self, place: Placeholder, numbers: NDArray[np.float32]) -> None:
        """Write the elements of ``place``, rounded to its type."""
        tensor: Tensor = torch.from_numpy(np.ascontiguousarray(numbers)).to(place.dtype)
        data: Any = tensor.reshape(-1).view(torch.uint8).numpy()
        self._member(f"data/{place.key}", memoryview(data))

    def _member(self, name: str, data: memoryview) -> None:
        info = zipfile.ZipInfo(f"{_ROOT}/{name}")
        info.file_size = data.nbytes
        header = _LOCAL_HEADER + len(info.filename) + (_ZIP64_EXTRA if data.nbytes * 1.05 > zipfile.ZIP64_LIMIT else 0)
        padding = -(self._file.tell() + header + 4) % ALIGNMENT
        info.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
        with self._zip.open(info, "w") as member:
            member.write(data)
