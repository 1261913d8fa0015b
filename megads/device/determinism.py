"""Have torch compute the same bits every time."""

from __future__ import annotations

import torch


def make_deterministic() -> None:
    """Have torch take algorithms that repeat bit for bit, and fail in those that have none.

    The variables of ``megads.config.rules.stability`` must be set when the process begins: without
    CUBLAS_WORKSPACE_CONFIG torch refuses the first matrix product on a CUDA device. Torch also
    fills memory that nobody wrote to, so that what is read from it is the same as well.
    """
    # use_deterministic_algorithms is the same, and imports torch's compiler to set it there too.
    torch.set_deterministic_debug_mode("error")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
