"""``megads bench --roofline``: how fast a step could be on a device that is not here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from megads.config.schema import RunConfig
    from megads.config.sources.resolve import Resolved
    from megads.launch.request import TrainRequest
    from megads.plan.places.place import Place
    from megads.plan.time.step import StepTime

VOCABULARY = 32_000
"""Of a model whose VOCAB_SIZE is not set: its tokenizer is not read here."""

SHOWN_CURES = 3

ROWS = (
    ("7B", {"NLAYERS": "10", "GRAD_ACC_STEPS": "8", "ENGINE": "deepspeed", "KERNELS": "eager"}, 1),
    ("7B", {"NLAYERS": "10", "GRAD_ACC_STEPS": "8", "ENGINE": "native"}, 1),
    ("7B", {"NLAYERS": "10", "MICRO_BATCH": "4", "GRAD_ACC_STEPS": "8", "ENGINE": "native"}, 1),
    ("7B", {"NLAYERS": "10", "MICRO_BATCH": "4", "GRAD_ACC_STEPS": "32", "ENGINE": "native"}, 1),
    ("2B", {"GRAD_ACC_STEPS": "8", "ENGINE": "native"}, 1),
    ("bert-345M", {"MICRO_BATCH": "16", "GRAD_ACC_STEPS": "8", "ENGINE": "native"}, 1),
    ("7B", {"TP": "2", "SCATTER_NORMS": "1", "GRAD_ACC_STEPS": "8", "ENGINE": "native"}, 24),
    ("Llama-3-8B", {"ZERO_STAGE": "3", "GRAD_ACC_STEPS": "4", "ENGINE": "native"}, 24),
    ("70B", {"TP": "4", "PP": "6", "SCATTER_NORMS": "1", "GRAD_ACC_STEPS": "48", "ENGINE": "native"}, 96),
)
"""Of the table in docs/gpu.md: preset, settings, devices."""

SHOWN = ("a100", "h100", "h200", "mi250x", "mi300x", "pvc")
"""Accelerators of the table."""


def show_roofline(request: TrainRequest, device: str, ranks: int) -> None:
    """Print every line of a step of ``request`` on ``ranks`` devices, and what would shorten it.

    Raises:
        ConfigError: a device that is not known, or a wrong setting.
    """
    from megads.launch.request import resolve_request
    from megads.plan.places.accelerators import accelerator
    from megads.plan.places.place import place_of

    accelerator(device)
    place = place_of(device)
    run, found = estimated(resolve_request(request, "generic"), ranks, place)
    for line in text(run, place, found):
        click.echo(line)


def estimated(resolved: Resolved, ranks: int, place: Place) -> tuple[RunConfig, StepTime]:
    """Return the run on ``ranks`` devices, and its step.

    Raises:
        ConfigError: a setting is wrong, the ranks do not fill hosts, or the device has no such products.
    """
    from megads.config.derive import derive
    from megads.errors import ConfigError
    from megads.plan.time.step import step_time

    hosts = -(-ranks // place.per_host)
    if ranks % hosts:
        raise ConfigError(f"--ranks {ranks}: a host has {place.per_host} devices; use a multiple of it")
    vocabulary = resolved.run.model.vocab_size or VOCABULARY
    run = derive(resolved, num_hosts=hosts, ranks_per_host=ranks // hosts, vocab_size=vocabulary).run
    return run, step_time(run, ranks, place)


def table() -> str:
    """Return the table of docs/gpu.md: presets on every accelerator."""
    from megads.config.sources.resolve import resolve
    from megads.plan.places.place import place_of

    lines = [
        "| preset and settings | devices | step | tokens/s per device | MFU | causal | longest of what can change |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for preset, settings, ranks in ROWS:
        words = " ".join([f"`{preset}`", *(f"{name}={value}" for name, value in settings.items())])
        for name in SHOWN:
            _, found = estimated(resolve(preset, env=settings, machine="generic"), ranks, place_of(name))
            first = found.longest()[0]
            lines.append(
                f"| {words} | estimated: {ranks} {name} | {milliseconds(found.step_s)} | {found.tokens_per_s:,.0f} "
                f"| {found.mfu_full:.0%} | {found.mfu_causal:.0%} | {first.name}, {first.seconds / found.step_s:.0%} |"
            )
    return "\n".join(lines) + "\n"


def milliseconds(seconds: float) -> str:
    """Return a time in ms."""
    return f"{1e3 * seconds:,.1f} ms"


def text(run: RunConfig, place: Place, found: StepTime) -> list[str]:
    """Return the report."""
    from megads.config.engine_choice import choose
    from megads.plan.memory import GIB, count_parameters, estimate
    from megads.plan.time.constants import fitted
    from megads.plan.time.systems import BY_ENGINE
    from megads.plan.time.work import is_compiled as compiled
    from megads.text.units import count

    grid, model = run.parallel, run.model
    axes = f"TP={grid.tensor} PP={grid.pipeline} SP={grid.sequence} DP={grid.data} ZeRO={grid.zero_stage}"
    memory = (estimate(run, found.world_size).total - estimate(run, found.world_size).program) / GIB
    step, engine = found.step_s, choose(run, found.world_size).kind
    is_compiled, by, device = compiled(run, found.world_size), fitted(), place.device
    attention = device.best_attention if is_compiled else device.attention
    hidden = "no communication is hidden"
    if engine == "native":
        hidden = f"{by.data_hidden:.0%} of gradients and weights hide while there are products"
    return [
        f"ESTIMATED, not measured: {found.world_size} x {device.device_name}, "
        f"{place.peak_tflops(run.train.dtype):g} TFLOP/s {run.train.dtype}",
        f"model    {model.family}, {model.num_layers} layers, hidden {model.hidden_size}: "
        f"{count(count_parameters(model))} parameters, vocabulary {model.vocab_size}",
        f"engine   {choose(run, found.world_size)}",
        f"layout   {axes}, micro {run.train.micro_batch} x accumulation {run.train.grad_acc_steps}, "
        f"{count(found.tokens)} tokens per step",
        f"memory   about {memory:.1f} GiB of {device.memory_gib:g} GiB per device",
        "",
        *(f"{line.name:<56}{1e3 * line.seconds:>10.2f} ms {line.seconds / step:>6.1%}" for line in found.lines),
        f"{'step':<56}{1e3 * step:>10.2f} ms",
        "",
        f"speed    {found.tokens_per_s:,.0f} tokens/s per device, {milliseconds(step)} a step",
        f"mfu      {found.mfu_full:.1%} with causal attention counted in full, {found.mfu_causal:.1%} with half of it",
        *(f"cost     {milliseconds(line.seconds)}, {line.name}: {line.cure}" for line in found.longest()[:SHOWN_CURES]),
        f"assumed  matrix products at {by.matmul(device.device_name):.0%} of the peak, and {by.operands:.0%} of "
        f"the time that their operands take to move; attention at {by.attention * attention:.0%}, "
        f"memory at {by.memory:.0%} of "
        f"{device.memory_gb_s:g} GB/s, links at {by.links:.0%} of {device.link_gb_s:g} and network at "
        f"{by.network:.0%} of {device.network_gb_s:g} GB/s; "
        f"{1e6 * by.gap_s:.1f} us between kernels, {1e3 * BY_ENGINE[engine].host_s:g} ms of host time a step; kernels "
        f"{'' if is_compiled else 'not '}compiled; {hidden}",
        f"source   {device.source}",
    ]
