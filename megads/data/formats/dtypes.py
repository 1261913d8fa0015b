"""The integer types of token files and the codes that stand for them in an index."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from megads.errors import DataError

DTYPES = {code: np.dtype(name) for code, name in {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}.items()}
_FLOAT_CODES = (6, 7)  # float64 and float32, or the other way round, depending on who wrote the file
_SMALL_VOCABULARY = 65500  # Megatron's limit, a little below what uint16 holds

IMPLS = ("mmap", "cached", "lazy")
"""Names of the formats, as ``--dataset-impl``: MMIDIDX, and TNTIDX twice (they differ in how Megatron reads them)."""


def best_dtype(vocab_size: int, impl: str = "mmap") -> np.dtype[Any]:
    """Return the type Megatron uses for ids below ``vocab_size``: uint16 or int32; cached and lazy files: int32."""
    return DTYPES[8] if vocab_size < _SMALL_VOCABULARY and impl == "mmap" else DTYPES[4]


def code_of(dtype: npt.DTypeLike, where: str) -> int:
    """Return the code of a type.

    Raises:
        DataError: tokens are not stored in this type; names ``where``.
    """
    wanted = np.dtype(dtype).newbyteorder("<")
    for code, known in DTYPES.items():
        if known == wanted:
            return code
    raise DataError(f"{where}: cannot store {wanted} tokens; use uint16 or int32")


def dtype_of(code: int, where: object) -> np.dtype[Any]:
    """Return the type of a code found in an index.

    Raises:
        DataError: the code is of floats or unknown; names ``where``.
    """
    if code not in DTYPES:
        kind = "floats, not tokens" if code in _FLOAT_CODES else "unknown"
        raise DataError(f"{where}: dtype code {code} is {kind}; expected one of {', '.join(map(str, DTYPES))}")
    return DTYPES[code]
