"""The flash-attn package (arXiv 2307.08691): which of its functions are called, and with what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from megads.errors import DependencyError, DeviceError
from megads.parallel.documents import Segments


@dataclass(frozen=True)
class Flash:
    """Causal attention of ``[B, S, heads, D]``, with fewer key/value heads than query heads or as many.

    Attributes:
        whole: ``flash_attn_func``.
        packed: ``flash_attn_varlen_func``: sequences of unequal length end to end.
    """

    whole: Callable[..., Tensor]
    packed: Callable[..., Tensor]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, dropout: float, segments: Segments | None) -> Tensor:
        """Return ``[B, S, heads, D]``: over whole rows, or inside each segment.

        Raises:
            DeviceError: the package does not work on this device or in this precision.
        """
        if q.device.type != "cuda" or q.dtype not in (torch.bfloat16, torch.float16):
            raise DeviceError(
                f"ATTENTION=flash works on nvidia and amd devices in bf16 or fp16, not on {q.device.type} in "
                f"{q.dtype}; use ATTENTION=sdpa (NO_FLASH_ATTN=1)"
            )
        if segments is None:
            return self.whole(q, k, v, dropout_p=dropout, causal=True)
        return self.inside(segments, q, k, v, dropout)

    def inside(self, segments: Segments, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        """Return ``[B, S, heads, D]``: attention inside each segment."""
        rows, bounds = q.shape[0], segments.bounds
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        mixed = self.packed(q, k, v, bounds, bounds, segments.longest, segments.longest, dropout_p=dropout, causal=True)
        return mixed.unflatten(0, (rows, -1))


def load_flash() -> Flash:
    """Return the package's functions.

    Raises:
        DependencyError: it is not installed, or too old (below 2.0).
    """
    try:
        from flash_attn import flash_attn_func, flash_attn_varlen_func
    except ImportError as problem:
        raise DependencyError(
            f"ATTENTION=flash needs the package flash-attn ({problem}); "
            "pip install flash-attn --no-build-isolation, or use ATTENTION=sdpa (NO_FLASH_ATTN=1)"
        ) from None
    return Flash(flash_attn_func, flash_attn_varlen_func)
