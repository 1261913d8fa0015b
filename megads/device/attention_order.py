"""The order in which torch tries its attention kernels on NVIDIA devices: its math kernel behind all fused ones.

Torch has math, which keeps all scores, in front of cuDNN's kernel where it does not prefer that. Where it does (torch
2.13: on Hopper and Blackwell, above cuDNN 9.15, unless TORCH_CUDNN_SDPA_DEPRIORITIZED is set), cuDNN comes first, then
flash and memory-efficient attention. It knows the versions whose numbers are wrong, so the order of the fused kernels
is left to it, and so are AMD's and Intel's orders.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.attention import SDPBackend

FUSED = [
    each.value for each in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
]
MATH = SDPBackend.MATH.value


def kernel_order(own: Sequence[int]) -> list[int]:
    """Return torch's ``own`` order with math behind all fused kernels; what no NVIDIA device has stays behind it."""
    fused = [each for each in own if each in FUSED]
    return [*fused, MATH, *(each for each in own if each not in (*FUSED, MATH))]


def order_kernels(vendor: str, device: torch.device) -> None:
    """Have torch try its attention kernels in the order of :func:`kernel_order`, on a device of ``vendor`` nvidia.

    Elsewhere, and where this torch has no such order, nothing changes.
    """
    setter = getattr(torch._C, "_set_sdp_priority_order", None)
    if vendor != "nvidia" or setter is None:
        return
    # Torch sets its own order when it is first asked, over one that was set before.
    small = torch.zeros(1, 1, 8, 64, dtype=torch.float16, device=device)
    torch._fused_sdp_choice(small, small, small)
    setter(kernel_order(torch._C._get_sdp_priority_order()))
