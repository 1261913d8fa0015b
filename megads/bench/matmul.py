"""Rate of matrix products, by dtype and size."""

from __future__ import annotations

import torch

from megads.bench.results import PartResult
from megads.bench.session import DTYPES, Bench, MeasurementFailed
from megads.text.plural import plural

SIZES = {"tiny": (64, 128), "cpu": (512, 1024), "device": (1024, 2048, 4096, 8192)}

LAYERS = {"tiny": ((64, 192, 64),), "cpu": ((512, 1536, 1024),), "device": ((4096, 12288, 4096), (8192, 11008, 4096))}
"""Tokens, outputs and inputs of layers."""


def measure(bench: Bench, result: PartResult) -> None:
    """Add a row for every dtype and size; the rate is that of the slowest rank, in TFLOP/s."""
    kind = "tiny" if bench.is_tiny else "cpu" if bench.is_cpu else "device"
    shapes = [*((n, n, n) for n in SIZES[kind]), *LAYERS[kind]]
    dropped, last_s = 0, 0.0
    for dtype in dtypes(bench):
        for m, n, k in shapes:
            if not bench.goes_on(2 * last_s):
                dropped += 1
                continue
            bench.notify(f"{dtype} {m} x {k} x {n}")
            started = bench.budget.clock()
            try:
                seconds = _time(bench, dtype, m, n, k)
            except MeasurementFailed as problem:
                result.notes.append(f"{dtype} {m} x {k} x {n}: {problem}")
                continue
            last_s = bench.budget.clock() - started
            rate = 2.0 * m * n * k / seconds / 1e12
            peak = bench.peaks(bench.vendor.product_dtype(dtype))
            share = rate / peak if peak else None
            result.rows.append(
                {"dtype": dtype, "shape": f"{m} x {k} x {n}", "tflops": rate, "of_peak": share, "seconds": seconds}
            )
    if dropped:
        result.status = "partial"
        result.notes.append(f"{plural(dropped, 'shape')} dropped: no time left")


def dtypes(bench: Bench) -> tuple[str, ...]:
    """Return the dtypes that are measured; a CPU computes fp16 at a fraction of its rate."""
    return ("fp32", "bf16") if bench.is_cpu else ("bf16", "fp16", "fp32")


def _time(bench: Bench, dtype: str, m: int, n: int, k: int) -> float:
    """Return the seconds of ``[m, k] x [k, n]`` on the slowest rank. Collective."""

    def run() -> float:
        a = torch.randn(m, k, device=bench.device, dtype=DTYPES[dtype])
        b = torch.randn(n, k, device=bench.device, dtype=DTYPES[dtype]).t()
        return bench.seconds(lambda: torch.mm(a, b))

    return float(max(bench.on_all(run)))
