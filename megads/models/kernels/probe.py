"""Whether torch can compile on this host: asked with one small function, before any rank depends on it."""

from __future__ import annotations

import torch
from torch import Tensor


def why_not(device: torch.device, backend: str = "inductor") -> str:
    """Return, in one line, what keeps torch from compiling for ``device``: no C++ compiler, no Triton; empty: nothing.

    What the compiler's cache has of an earlier start is not compiled again.
    """
    try:
        found = torch.compile(_small, backend=backend, fullgraph=True)(torch.ones(8, device=device))
    except Exception as error:  # of any kind: of torch, of the C++ compiler, of the cache's folder
        return in_a_line(error)
    return "" if found.tolist() == [3.0] * 8 else f"its code gives {found.tolist()} for 3.0"


def in_a_line(error: Exception) -> str:
    """Return what the compiler says was wrong: its messages go on with advice and a trace."""
    inner = getattr(error, "inner_exception", error)  # behind a line that names the backend
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    return lines[0] if lines else type(inner).__name__


def _small(x: Tensor) -> Tensor:
    return 2 * x + 1
