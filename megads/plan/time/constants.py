"""Fitted constants of the time model: few, shared by models and layouts, each from several measured models.

``python -m benchmarks.planner --fit`` finds them by least squares over all measured rows and writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from megads.storage.reading import read_json

FILE = Path(__file__).with_name("constants.json")


@dataclass(frozen=True)
class Constants:
    """Efficiencies and shares.

    Attributes:
        matmul_v100, matmul_a100, matmul_h100: share of the peak that large products reach, by the class of device;
            others have ``Accelerator.matmul``, or ``matmul_a100``.
        matmul_fp8: the same of products in FP8.
        attention: factor of the device's share for fused attention (``Accelerator.attention``).
        slow_attention: share of the peak of a general kernel.
        scores: share of the matrix rate that products with scores in memory reach.
        memory: share of the memory bandwidth that kernels reach.
        operands: how much of the time to move their operands products wait for.
        power: exponent of a power cap's share by which matrix units are slower.
        links: share of the links' bandwidth that collectives reach; ``network`` of that between hosts.
        tensor_hidden: share of tensor-parallel messages that hide where a system overlaps them.
        ring_hidden: share of passing keys and values on that hides behind attention.
        ring: by which attention takes longer for every doubling of the ranks of a ring, whose parts are short.
        data_hidden: share of gradients and weights that hides while there are products to hide behind.
        kernel_s: of the host to start a kernel and its operator in Python.
        gap_s: between two kernels.
        jitter: by which a step is longer for every doubling of hosts; ``jitter_fp8``: with its sums of scales.
    """

    matmul_v100: float = 0.60
    matmul_a100: float = 0.84
    matmul_h100: float = 0.78
    matmul_fp8: float = 0.70
    attention: float = 0.85
    slow_attention: float = 0.12
    scores: float = 0.5
    memory: float = 0.75
    operands: float = 0.7
    power: float = 0.5
    links: float = 0.75
    network: float = 0.7
    tensor_hidden: float = 0.5
    ring_hidden: float = 0.7
    ring: float = 0.1
    data_hidden: float = 0.8
    kernel_s: float = 15e-6
    gap_s: float = 1.5e-6
    jitter: float = 0.001
    jitter_fp8: float = 0.005

    def matmul(self, device_name: str) -> float:
        """Return the share of the peak for a device by its name."""
        if "V100" in device_name:
            return self.matmul_v100
        return self.matmul_h100 if any(name in device_name for name in HOPPER) else self.matmul_a100


HOPPER = "H100", "H200", "GH200", "H800", "H20"
"""Devices whose clock falls under load of their matrix units."""


@cache
def fitted() -> Constants:
    """Return the constants of the package."""
    found: dict[str, Any] = read_json(FILE)
    return Constants(**found["constants"])
