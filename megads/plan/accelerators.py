"""What a roofline needs to know of accelerators: bandwidths of memory, links and network. Facts with their sources."""

from __future__ import annotations

from dataclasses import dataclass

from megads.errors import ConfigError


@dataclass(frozen=True)
class Accelerator:
    """One device as torch counts them: of an MI250X one of its two dies, of a Max 1550 one of its two tiles.

    Attributes:
        device_name: as torch reports it; names the row of peaks (``megads.plan.peaks``).
        units: multiprocessors, compute units or vector engines of this device; 0: as the row of peaks.
        memory_gib: its memory.
        memory_gb_s: bandwidth of its memory, by the data sheet.
        link_gb_s: between devices of a host, per device and direction.
        network_gb_s: between hosts, per device and direction, on the hosts that are usual for it.
        per_host: devices of such a host.
        attention: share of the matrix peak that fused attention reaches, forward and backward together.
        source: where the numbers are from.
        pair_gb_s: between the two dies of a card, per direction; 0: it has one.
        fast_attention: as ``attention``, of the fastest kernel there is (cuDNN's on Hopper); 0: the same.
        has_fp8: its products of FP8 have twice the peak of bf16.
    """

    device_name: str
    units: int
    memory_gib: float
    memory_gb_s: float
    link_gb_s: float
    network_gb_s: float
    per_host: int
    attention: float
    source: str
    pair_gb_s: float = 0
    fast_attention: float = 0
    has_fp8: bool = False

    @property
    def best_attention(self) -> float:
        """Return the share of the matrix peak that the fastest attention kernel reaches."""
        return self.fast_attention or self.attention

    def reaches(self, ranks: int) -> tuple[str, float]:
        """Return where neighbouring ``ranks`` are, and the bandwidth between them in GB/s."""
        if ranks <= 2 and self.pair_gb_s:
            return "inside a card", self.pair_gb_s
        if ranks <= self.per_host:
            return "inside a host", self.link_gb_s
        return "between hosts", self.network_gb_s


ACCELERATORS = {
    "a100": Accelerator(
        *("NVIDIA A100-SXM4-80GB", 0, 80, 2039, 300, 25, 4, 0.55),
        "NVIDIA A100 80GB data sheet; four of them and four 200 Gb/s adapters a host",
    ),
    "a100-40": Accelerator(
        *("NVIDIA A100-SXM4-40GB", 0, 40, 1555, 300, 25, 8, 0.55),
        "NVIDIA A100 40GB data sheet; eight of them and eight 200 Gb/s adapters a host (DGX A100 data sheet)",
    ),
    "a100-dgx": Accelerator(
        *("NVIDIA A100-SXM4-80GB", 0, 80, 2039, 300, 25, 8, 0.55),
        "NVIDIA A100 80GB data sheet; eight of them and eight 200 Gb/s adapters a host (DGX A100 data sheet)",
    ),
    "h100": Accelerator(
        *("NVIDIA H100 80GB HBM3", 0, 80, 3350, 450, 50, 8, 0.32),
        "NVIDIA H100 data sheet, SXM; 400 Gb/s a device, as in HGX; attention: FlashAttention 2, cuDNN reaches 0.5",
        fast_attention=0.5,
        has_fp8=True,
    ),
    "h200": Accelerator(
        *("NVIDIA H200", 0, 141, 4800, 450, 50, 8, 0.32),
        "NVIDIA H200 data sheet, SXM; the same host and attention as h100",
        fast_attention=0.5,
        has_fp8=True,
    ),
    "mi250x": Accelerator(
        *("AMD Instinct MI250X", 0, 64, 1638, 50, 12.5, 8, 0.30),
        "AMD MI250X data sheet / 2; a site guide: 50 to 100 GB/s between cards, four 200 Gb/s adapters a host",
        pair_gb_s=200,
    ),
    "mi300x": Accelerator(
        *("AMD Instinct MI300X", 0, 192, 5300, 448, 50, 8, 0.25),
        "AMD MI300X data sheet: seven links of 64 GB/s; 400 Gb/s a device",
        has_fp8=True,
    ),
    "pvc": Accelerator(
        *("Intel(R) Data Center GPU Max 1550", 512, 64, 1638, 15, 16.7, 12, 0.25),
        "Intel Max 1550 brief / 2; a site guide: 15 GB/s between cards, eight 200 Gb/s adapters a host",
        pair_gb_s=196,
    ),
}
"""By the name that ``megads bench --roofline --device`` takes."""


def accelerator(name: str) -> Accelerator:
    """Return the row ``name``.

    Raises:
        ConfigError: it is not known.
    """
    if name.lower() not in ACCELERATORS:
        raise ConfigError(
            f"--roofline needs --device, one of {', '.join(ACCELERATORS)}{f'; {name} is none' if name else ''}"
        )
    return ACCELERATORS[name.lower()]
