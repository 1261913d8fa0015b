"""Tokens per second and model-FLOPs utilisation of presets that fit, through the engine; and waits of the host."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megads.bench.models import TINY, Model, make, release, settings, tokens, train
from megads.bench.results import PartResult
from megads.bench.session import Bench, MeasurementFailed
from megads.config.schema import RunConfig
from megads.device.facts import memory
from megads.device.measuring import host_waits
from megads.engine.base import Engine
from megads.errors import ConfigError
from megads.plan.flops import train_flops_per_token
from megads.plan.memory import count_parameters, estimate
from megads.plan.places.accelerators import ACCELERATORS, Accelerator
from megads.plan.places.peaks import peak_tflops
from megads.plan.places.place import place_of
from megads.plan.time.step import step_time
from megads.text.units import size

VOCAB = {"model.vocab_size": "32000"}
MODELS = (
    Model("gpt-345M"),
    Model("7B", {"model.num_layers": "4", **VOCAB}, "7B, 4 layers"),
    Model("gpt-1.7B"),
    Model("7B", {"model.num_layers": "10", **VOCAB}, "7B, 10 layers"),
    Model("Llama-3-8B", {"model.num_layers": "4", "model.vocab_size": "128256"}, "Llama-3-8B, 4 layers"),
)
CPU_MODELS = (Model("7B", {"model.num_layers": "2", "model.hidden_size": "256", "model.num_heads": "8",
                           "model.num_kv_heads": "8", "model.ffn_hidden_size": "0", "model.seq_length": "256",
                           "model.vocab_size": "2048"}, "7B, 2 layers of 256"),)  # fmt: skip

MICRO_BATCHES, ACCUMULATED = (8, 4, 2, 1), 4
STEPS, MOST_STEPS = 3, 8
SHARE = 0.9
"""Of the free memory of a device that the estimate of a model may take."""

BUILT_PER_S = 40e6
"""Parameters that one core gives their initial weights in a second."""


def measure(bench: Bench, result: PartResult) -> None:
    """Add a row for every model that fits: the median step. Collective."""
    models = (TINY,) if bench.is_tiny else CPU_MODELS if bench.is_cpu else MODELS
    dtype = "fp32" if bench.is_cpu else "bf16"
    for model in models:
        run, why = fitting(bench, model, dtype)
        if run is None:
            result.notes.append(f"{model}: {why}")
            continue
        expected_s = 1.5 * count_parameters(run.model) / BUILT_PER_S
        if not bench.goes_on(expected_s):
            result.status = "partial"
            result.notes.append(f"{model} dropped: about {expected_s:.0f} s, and the share of this part is used up")
            continue
        bench.notify(str(model))
        try:
            result.rows.append({"model": str(model), **_row(bench, run)})
        except MeasurementFailed as problem:
            result.notes.append(f"{model}: {problem}")
        release(bench)
    if any(row["mfu"] is None for row in result.rows):
        result.notes.append("MFU: the peak of this device is not known; set MEGADS_PEAK_TFLOPS")


def fitting(bench: Bench, model: Model, dtype: str) -> tuple[RunConfig | None, str]:
    """Return the run with the largest micro-batch that fits every device, or None and the reason. Collective."""
    free = min(bench.on_all(lambda: memory(bench.vendor, bench.device)[0]))
    free //= bench.hosts.count(bench.hosts[0]) if bench.is_cpu else 1
    needed = 0
    for micro_batch in (2,) if bench.is_cpu else MICRO_BATCHES:
        try:
            run = settings(bench.root, bench.world_size, model, dtype, micro_batch, 2 if bench.is_cpu else ACCUMULATED)
        except ConfigError as problem:
            return None, str(problem)
        needed = estimate(run, bench.world_size).total
        if needed <= SHARE * free:
            return run, ""
    return None, f"does not fit: needs about {size(needed)} per rank, and {size(free)} is free"


def _row(bench: Bench, run: RunConfig) -> dict[str, Any]:
    """Build the engine of ``run`` and time its steps. Collective."""
    bench.vendor.forget_peak(bench.device)
    engine = bench.on_all_kept(lambda: make(bench, run))
    times: list[float] = []
    losses: list[float] = []

    def step() -> None:
        started = time.perf_counter()
        found = train(bench, engine, run, 1, len(times))
        losses.append(float(found[0].loss))
        bench.vendor.synchronize(bench.device)
        times.append(time.perf_counter() - started)

    bench.on_all(step)
    while len(times) <= STEPS or (len(times) <= MOST_STEPS and bench.goes_on(2 * times[-1])):
        bench.on_all(step)
        if not bench.goes_on(times[-1]):
            break
    seconds = max(bench.on_all(lambda: statistics.median(times[1:] or times)))
    peak = max(bench.on_all(lambda: bench.vendor.memory_bytes(bench.device)))
    return {
        "dtype": run.train.dtype,
        "zero": run.parallel.zero_stage,
        "micro_batch": run.train.micro_batch,
        "seq_length": run.model.seq_length,
        "step_s": seconds,
        **speeds(bench, run, seconds),
        "of_roofline": of_roofline(bench, run, seconds),
        "memory_gib": peak / 2**30,
        "estimate_gib": estimate(run, bench.world_size).total / 2**30,
        "loss": losses[-1],
        "ranks": bench.world_size,
        "settings": run.model_dump(mode="json", exclude_defaults=True),
        "steps": len(times),
    }


def speeds(bench: Bench, run: RunConfig, seconds: float) -> dict[str, float | None]:
    """Return tokens/s per device, TFLOP/s and MFU by both conventions, of a step of ``seconds``."""
    per_device = run.train.global_batch * run.model.seq_length / seconds / bench.world_size
    square, causal = (
        per_device * train_flops_per_token(run.model, run.model.seq_length, causal=half) / 1e12
        for half in (False, True)
    )
    peak = bench.peaks(bench.vendor.product_dtype(run.train.dtype))
    return {
        "tokens_per_s": per_device,
        "tflops": square,
        "mfu": square / peak if peak else None,
        "mfu_causal": causal / peak if peak else None,
    }


def of_roofline(bench: Bench, run: RunConfig, seconds: float) -> float | None:
    """Return the estimated step as a share of the measured one; None where the device's bandwidths are not known."""
    peak = bench.peaks(bench.vendor.product_dtype(run.train.dtype))
    device = accelerator_like(bench.vendor.device_name(bench.device), bench.peaks)
    if device is None or peak is None:
        return None
    place = place_of(next(key for key, row in ACCELERATORS.items() if row is device))
    return step_time(run, bench.world_size, place).step_s / seconds


def accelerator_like(name: str, peaks: Callable[[str], float | None]) -> Accelerator | None:
    """Return the row of a device by its name: the whole device that the row is about, by its peak, not a part of it."""
    here = _words(name)
    alike = [row for row in ACCELERATORS.values() if row.device_name.lower() == name.lower()]
    alike += [row for key, row in ACCELERATORS.items() if here.issuperset(["max", "1550"] if key == "pvc" else [key])]
    for row in alike:
        is_same_form = ("pcie" in here) == ("pcie" in _words(row.device_name))
        if is_same_form and peaks("fp16") == peak_tflops(row.device_name, "fp16", {}, row.units):
            return row
    return None


def _words(device_name: str) -> set[str]:
    return set(device_name.lower().replace("-", " ").split())


def measure_waits(bench: Bench, result: PartResult) -> None:
    """Add a row for every place that made the host wait in one step. Collective."""
    dtype = "fp32" if bench.is_cpu else "bf16"
    run = settings(bench.root, bench.world_size, TINY, dtype)
    engine = bench.on_all_kept(lambda: make(bench, run))
    bench.on_all(lambda: len(train(bench, engine, run, 2)))
    places = bench.on_all(lambda: _places(bench, engine, run))[0]
    if places is None:
        why = "a CPU has no queue" if bench.is_cpu else f"torch has no sync debug mode for {bench.vendor.name}"
        result.status = "skipped"
        result.notes.append(f"not applicable: {why}")
        return
    root = str(bench.root)
    for place, count in Counter(places).most_common():
        result.rows.append({"place": place.removeprefix(root).lstrip("/"), "waits": count})
    result.notes.append(f"{len(places)} per step of 2 micro-batches")
    release(bench)


def _places(bench: Bench, engine: Engine, run: RunConfig) -> list[str] | None:
    batches = tokens(run, 2, bench.groups.data_rank)
    with host_waits(bench.vendor) as found:
        engine.train_step(batches, 1e-3, first_sample=2 * run.train.global_batch)
    return None if found is None else [_short(place) for place in found]


def _short(place: str) -> str:
    """Return a file from its package on."""
    name, _, line = place.rpartition(":")
    parts = Path(name).parts
    after = parts.index("site-packages") + 1 if "site-packages" in parts else 0
    return f"{Path(*parts[after:])}:{line}"
