"""How fast a place is compared with what the model of a step takes without a measurement there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """Factors of the model's own rates; 1: its own, 1.1: ten percent faster.

    Attributes:
        matmul: of matrix products and attention.
        memory: of what reads and writes device memory.
        links: of communication.
        host: of gaps between kernels and what the host does in between.
        source: one line for people: which measurement changed what. Empty: none did.
    """

    matmul: float = 1.0
    memory: float = 1.0
    links: float = 1.0
    host: float = 1.0
    source: str = ""

    @property
    def is_anchored(self) -> bool:
        """Return whether a measurement stands behind them."""
        return bool(self.source)


MODEL = Rates()
"""The model's own."""
