"""The types of numbers in safetensors files, without torch: numpy has no bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from megads.errors import CheckpointError

TYPES = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}
"""DTYPE -> its name in safetensors files."""

LONG = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""DTYPE -> its name in torch and in ``config.json``."""

SHORT = {long: dtype for dtype, long in LONG.items()}
"""Name in torch and in ``config.json`` -> DTYPE."""

STORED: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "BF16": np.dtype("<u2"), "F16": np.dtype("<f2")}
"""Name in safetensors files -> how numpy reads the bytes."""

_CACHED = 1 << 15
"""Numbers that are rounded together: they stay in the processor's cache."""


def pack(numbers: NDArray[np.float32], dtype: str) -> NDArray[np.generic]:
    """Return float32 ``numbers`` as they are stored (fp32, bf16 or fp16), rounded to the nearest even.

    Raises:
        CheckpointError: one is beyond what fp16 can hold.
    """
    if dtype == "bf16":
        return _to_bf16(numbers)
    if dtype == "fp32":
        return numbers.astype("<f4", copy=False)
    with np.errstate(over="ignore"):
        packed = numbers.astype("<f2")
    if np.any(np.isinf(packed) & np.isfinite(numbers)):
        largest = float(np.max(np.abs(numbers[np.isfinite(numbers)])))
        raise CheckpointError(f"fp16 cannot hold {largest:g}: its largest value is 65504; use --dtype bf16 or fp32")
    return packed


def unpack(stored: NDArray[np.generic], kind: str) -> NDArray[np.float32]:
    """Return float32 numbers of what lies in a file as ``kind`` (F32, BF16 or F16); none is changed."""
    if kind == "BF16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32, copy=False)


def _to_bf16(numbers: NDArray[np.float32]) -> NDArray[np.generic]:
    flat = np.ascontiguousarray(numbers, np.float32).reshape(-1)
    bits, out = flat.view(np.uint32), np.empty(flat.size, "<u2")
    for at in range(0, flat.size, _CACHED):
        part = bits[at : at + _CACHED]
        # Half of the lower 16 bits' range, and one more where the upper half is odd: ties go to the even one.
        rounded = part >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += part
        rounded >>= 16
        out[at : at + _CACHED] = rounded
    is_nan = np.isnan(flat)
    if is_nan.any():
        # A NaN stays one, also where all its set bits are in the lower half.
        upper = bits[is_nan] >> 16
        out[is_nan] = np.where(upper & 0x7F, upper, upper | 0x40)
    return out.reshape(numbers.shape)
