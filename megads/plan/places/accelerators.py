"""What a roofline needs to know of accelerators: bandwidths of memory, links and network. Facts with their sources."""

from __future__ import annotations

from dataclasses import dataclass

from megads.errors import ConfigError


@dataclass(frozen=True)
class Accelerator:
    """One device as torch counts them: of an MI250X one of its two dies, of a Max 1550 one of its two tiles.

    Attributes:
        device_name: as torch reports it; names the row of peaks (``megads.plan.places.peaks``).
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
        power: its power limit by the one that is usual for it.
        has_fp8: its products of FP8 have twice the peak of bf16.
        joined: devices that links join, of several hosts; 0: those of a host.
        usable_gib: of its memory, what torch reports as its total: the driver keeps the rest.
        matmul: share of the matrix peak that the best product reaches that was found on it, with all devices of a host
            busy where that is known; 0: ``megads.plan.time`` has one fitted to training runs.
        watts: of the board at most, by the data sheet (of one die or tile its share).
        cpu_tflops: of a CPU, its peak in fp32; 16-bit products are not faster.
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
    power: float = 1.0
    joined: int = 0
    usable_gib: float = 0
    matmul: float = 0
    watts: float = 0
    cpu_tflops: float = 0

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
        if ranks <= self.joined:
            return "inside a rack", self.link_gb_s
        return "between hosts", self.network_gb_s


DGX_A100 = "eight of them and eight 200 Gb/s adapters a host (DGX A100 data sheet)"
HGX = "400 Gb/s a device, as in HGX"

ACCELERATORS = {
    "v100": Accelerator(
        *("Tesla V100-SXM2-32GB", 0, 32, 900, 150, 6.25, 8, 0.30),
        "NVIDIA V100 data sheet, SXM2; eight of them and four 100 Gb/s adapters a host (DGX-1 data sheet)",
        watts=300,
        usable_gib=31.7,
    ),
    "v100-16": Accelerator(
        *("Tesla V100-SXM2-16GB", 0, 16, 900, 150, 6.25, 8, 0.30),
        "NVIDIA V100 data sheet, SXM2; eight of them and four 100 Gb/s adapters a host (DGX-1 data sheet)",
        watts=300,
        usable_gib=15.7,
    ),
    "v100-dgx2": Accelerator(
        *("Tesla V100-SXM3-32GB", 0, 32, 900, 150, 6.25, 16, 0.30),
        "NVIDIA V100 data sheet; sixteen of them and eight 100 Gb/s adapters a host (DGX-2 data sheet)",
        watts=350,
        usable_gib=31.7,
    ),
    "a100": Accelerator(
        *("NVIDIA A100-SXM4-80GB", 0, 80, 2039, 300, 25, 4, 0.55),
        "NVIDIA A100 80GB data sheet; four of them and four 200 Gb/s adapters a host",
        watts=400,
        usable_gib=79.1,
    ),
    "a100-40": Accelerator(
        *("NVIDIA A100-SXM4-40GB", 0, 40, 1555, 300, 25, 8, 0.55),
        f"NVIDIA A100 40GB data sheet; {DGX_A100}",
        watts=400,
        usable_gib=39.4,
    ),
    "a100-dgx": Accelerator(
        *("NVIDIA A100-SXM4-80GB", 0, 80, 2039, 300, 25, 8, 0.55),
        f"NVIDIA A100 80GB data sheet; {DGX_A100}",
        watts=400,
        usable_gib=79.1,
    ),
    "a100-pcie": Accelerator(
        *("NVIDIA A100 80GB PCIe", 0, 80, 1935, 32, 6.25, 8, 0.55),
        "NVIDIA A100 80GB data sheet, PCIe 4 x16 without a bridge; two 200 Gb/s adapters for eight assumed",
        watts=300,
        usable_gib=79.1,
    ),
    "h100": Accelerator(
        *("NVIDIA H100 80GB HBM3", 0, 80, 3350, 450, 50, 8, 0.32),
        f"NVIDIA H100 data sheet, SXM; {HGX}; attention: FlashAttention 2, cuDNN reaches 0.5",
        fast_attention=0.5,
        has_fp8=True,
        watts=700,
        usable_gib=79.1,
    ),
    "h100-pcie": Accelerator(
        *("NVIDIA H100 PCIe", 0, 80, 2039, 64, 12.5, 8, 0.32),
        "NVIDIA H100 data sheet, PCIe 5 x16 without a bridge; two 400 Gb/s adapters for eight assumed",
        fast_attention=0.5,
        has_fp8=True,
        watts=350,
        usable_gib=79.1,
    ),
    "h200": Accelerator(
        *("NVIDIA H200", 0, 141, 4800, 450, 50, 8, 0.32),
        "NVIDIA H200 data sheet, SXM; the same host and attention as h100",
        fast_attention=0.5,
        has_fp8=True,
        watts=700,
        usable_gib=139.8,
    ),
    "gh200": Accelerator(
        *("NVIDIA GH200 480GB", 0, 96, 4000, 450, 25, 4, 0.32),
        "NVIDIA GH200 data sheet, 96 GB; four of them, six links per pair (NVIDIA Quad GH200), four 200 Gb/s adapters",
        fast_attention=0.5,
        has_fp8=True,
        watts=700,
        usable_gib=94.5,
    ),
    "b200": Accelerator(
        *("NVIDIA B200", 0, 180, 8000, 900, 50, 8, 0.25),
        f"NVIDIA DGX B200 data sheet / 8; {HGX}; attention: FlashAttention 2, cuDNN reaches 0.5",
        fast_attention=0.5,
        has_fp8=True,
        matmul=0.776,
        watts=1000,
        usable_gib=178.3,
    ),
    "gb200": Accelerator(
        *("NVIDIA GB200", 0, 186, 8000, 900, 50, 4, 0.25),
        "NVIDIA GB200 NVL72 data sheet / 72; 72 of them joined by NVLink; one 400 Gb/s adapter each",
        fast_attention=0.5,
        has_fp8=True,
        joined=72,
        matmul=0.729,
        watts=1200,
        usable_gib=184,
    ),
    "b300": Accelerator(
        *("NVIDIA B300 SXM6 AC", 0, 270, 8000, 900, 100, 8, 0.25),
        "NVIDIA HGX B300 data sheet / 8; one 800 Gb/s adapter each",
        fast_attention=0.5,
        has_fp8=True,
        matmul=0.786,
        watts=1100,
        usable_gib=267,
    ),
    "gb300": Accelerator(
        *("NVIDIA GB300", 0, 279, 8000, 900, 100, 4, 0.25),
        "NVIDIA GB300 NVL72 data sheet / 72; 72 of them joined by NVLink; one 800 Gb/s adapter each",
        fast_attention=0.5,
        has_fp8=True,
        joined=72,
        matmul=0.729,
        watts=1400,
        usable_gib=275,
    ),
    "mi250x": Accelerator(
        *("AMD Instinct MI250X", 0, 64, 1638, 50, 12.5, 8, 0.30),
        "AMD MI250X data sheet / 2; a site guide: 50 to 100 GB/s between cards, four 200 Gb/s adapters a host",
        pair_gb_s=200,
        matmul=0.768,
        watts=280,
        usable_gib=63.9,
    ),
    "mi300a": Accelerator(
        *("AMD Instinct MI300A", 0, 128, 5300, 384, 25, 4, 0.25),
        "AMD MI300A data sheet: two links of 64 GB/s per pair of four; one 200 Gb/s adapter each; host memory in it",
        has_fp8=True,
        matmul=0.511,
        watts=550,
        usable_gib=120,
    ),
    "mi300x": Accelerator(
        *("AMD Instinct MI300X", 0, 192, 5300, 448, 50, 8, 0.25),
        "AMD MI300X data sheet: seven links of 64 GB/s; 400 Gb/s a device",
        has_fp8=True,
        matmul=0.511,
        watts=750,
        usable_gib=191.6,
    ),
    "mi325x": Accelerator(
        *("AMD Instinct MI325X", 0, 256, 6000, 448, 50, 8, 0.25),
        "AMD MI325X data sheet: seven links of 64 GB/s; 400 Gb/s a device",
        has_fp8=True,
        matmul=0.6,
        watts=1000,
        usable_gib=255.6,
    ),
    "mi350x": Accelerator(
        *("AMD Instinct MI350X", 0, 288, 8000, 538, 50, 8, 0.25),
        "AMD MI350X data sheet: seven links of 76.8 GB/s; 400 Gb/s a device",
        has_fp8=True,
        matmul=0.622,
        watts=1000,
        usable_gib=287.6,
    ),
    "mi355x": Accelerator(
        *("AMD Instinct MI355X", 0, 288, 8000, 538, 50, 8, 0.25),
        "AMD MI355X data sheet: seven links of 76.8 GB/s; 400 Gb/s a device",
        has_fp8=True,
        matmul=0.622,
        watts=1400,
        usable_gib=287.6,
    ),
    "pvc": Accelerator(
        *("Intel(R) Data Center GPU Max 1550", 512, 64, 1638, 15, 16.7, 12, 0.25),
        "Intel Max 1550 brief / 2; a site guide: 15 GB/s between cards, eight 200 Gb/s adapters a host",
        pair_gb_s=196,
        matmul=0.569,
        watts=300,
        usable_gib=63.9,
    ),
    "pvc-448": Accelerator(
        *("Intel(R) Data Center GPU Max 1550", 448, 64, 1638, 15, 16.7, 12, 0.25),
        "as pvc, a tile of 448 vector engines, of which the peak is",
        pair_gb_s=196,
        matmul=0.569,
        watts=300,
        usable_gib=63.9,
    ),
}
"""By the name that ``megads plan --device`` and ``megads bench --roofline --device`` take."""

CPU = Accelerator(
    *("cpu", 0, 256, 204.8, 100, 25, 1, 0.3),
    "AMD EPYC 7763 data sheet: 64 cores at 2.45 GHz, 32 FLOPs of fp32 a clock each, eight channels of DDR4-3200; one "
    "200 Gb/s adapter a host",
    watts=280,
    usable_gib=250,
    cpu_tflops=5.0,
)
"""A host without accelerators, as one rank."""


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
