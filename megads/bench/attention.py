"""Which kernel torch chooses for attention of a shape, and how fast it is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from megads.bench.results import PartResult
from megads.bench.session import DTYPES, Bench, MeasurementFailed

MATH = "math"
SLOW_FROM = 1024
"""Tokens from which the math kernel's scores, ``heads x S^2`` of them, are the largest tensors of a layer."""


@dataclass(frozen=True)
class Shape:
    """Attention of one micro-batch."""

    batch: int
    heads: int
    kv_heads: int
    length: int
    head_dim: int
    is_causal: bool = True

    def __str__(self) -> str:
        gqa = f"/{self.kv_heads}" if self.kv_heads != self.heads else ""
        causal = "" if self.is_causal else ", not causal"
        return f"{self.batch} x {self.length}, {self.heads}{gqa} heads of {self.head_dim}{causal}"

    @property
    def flops(self) -> float:
        """Of a forward and a backward pass as the full square: two products forward, five backward."""
        return 7 * 2.0 * self.batch * self.heads * self.length**2 * self.head_dim


SHAPES = {
    "tiny": (Shape(1, 4, 4, 64, 16), Shape(1, 4, 2, 64, 16)),
    "cpu": (Shape(1, 8, 8, 512, 64), Shape(1, 8, 2, 512, 64)),
    "device": (
        Shape(4, 16, 16, 1024, 64),
        Shape(2, 32, 32, 4096, 128),
        Shape(2, 32, 8, 4096, 128),
        Shape(1, 32, 8, 8192, 128),
        Shape(2, 24, 24, 2048, 96),
        Shape(4, 16, 16, 512, 64, is_causal=False),
    ),
}
"""gpt-345M; 7B without and with groups of heads; Llama 3 with 8k tokens; an odd head size; BERT."""


def measure(bench: Bench, result: PartResult) -> None:
    """Add a row for every dtype and shape: the kernel, and TFLOP/s of forward and backward pass by the full square."""
    kind = "tiny" if bench.is_tiny else "cpu" if bench.is_cpu else "device"
    for dtype in ("fp32", "bf16") if bench.is_cpu else ("bf16", "fp16"):
        for shape in SHAPES[kind]:
            if not bench.goes_on():
                result.status = "partial"
                result.notes.append(f"{dtype} {shape} dropped: no time left")
                continue
            bench.notify(f"{dtype} {shape}")
            try:
                found = bench.on_all(partial(_time, bench, DTYPES[dtype], shape))
            except MeasurementFailed as problem:
                result.notes.append(f"{dtype} {shape}: {problem}")
                continue
            seconds = max(each[1] for each in found)
            kernels = sorted({each[0] for each in found})
            rate = shape.flops / seconds / 1e12
            result.rows.append(
                {"dtype": dtype, "shape": str(shape), "kernel": "/".join(kernels), "tflops": rate, "seconds": seconds}
            )
            if MATH in kernels and shape.length >= SLOW_FROM and not bench.is_cpu:
                result.notes.append(f"{dtype} {shape}: the math kernel holds every score; see ATTENTION")


def kernel_of(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> str:
    """Return the kernel that torch takes for these tensors: math, flash, efficient, cudnn or overrideable."""
    gqa = q.shape[1] != k.shape[1]
    choice = torch._fused_sdp_choice(q, k, v, None, 0.0, is_causal, enable_gqa=gqa)
    names = {int(getattr(kind, "value", -2)): name for name, kind in torch.nn.attention.SDPBackend.__members__.items()}
    name = names.get(int(choice), f"number {int(choice)}").lower()
    return name.removesuffix("_attention").replace("efficient", "mem-efficient")


def _time(bench: Bench, dtype: torch.dtype, shape: Shape) -> tuple[str, float]:
    def new(heads: int) -> Tensor:
        # As the layers make it: [B, S, heads, D] with heads moved in front.
        made = torch.randn(shape.batch, shape.length, heads, shape.head_dim, device=bench.device, dtype=dtype)
        return made.transpose(1, 2).requires_grad_()

    q, k, v = new(shape.heads), new(shape.kv_heads), new(shape.kv_heads)
    upstream = torch.randn_like(q)

    def run() -> None:
        mixed = F.scaled_dot_product_attention(
            q, k, v, is_causal=shape.is_causal, enable_gqa=shape.heads != shape.kv_heads
        )
        torch.autograd.grad(mixed, (q, k, v), upstream)

    return kernel_of(q, k, v, is_causal=shape.is_causal), bench.seconds(run)
