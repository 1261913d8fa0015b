"""The table of docs/long_context.md: memory against tokens of a 7B model, by the estimate and by torch's tracker.

``python -m tests.simgpu.long_context`` prints it, in a minute or two. The tracker follows the passes of a few layers:
with inputs on the host the peak does not depend on their number. What the engine holds for the parameters is
the estimate's in both columns.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

GIB = 2**30
DEVICE_GIB = 79.1
"""Of an 80 GB device, as machine files have it."""

LAYERS = 3
LENGTHS = {1: (32, 128, 512), 8: (256, 1024, 4096)}
"""Tokens of a row in units of 1024, by devices."""


@dataclass(frozen=True)
class Row:
    """One length on some devices."""

    devices: int
    tokens: int
    parts: str
    estimate: int  # bytes of a rank's device
    host: int  # bytes of host memory of a rank
    run: Any  # derived, with what LONG_CONTEXT plans

    def line(self, tracked: int) -> str:
        """Return the row of the table; ``tracked`` are bytes, what the engine holds included."""
        shown = f"{self.tokens // 1024} K" if self.tokens < 2**20 else f"{self.tokens // 2**20} M"
        sizes = " | ".join(f"{each / GIB:.1f}" for each in (self.estimate, tracked, self.host))
        return f"| {self.devices} | {shown} | {self.parts} | {sizes} |"


def rows() -> list[Row]:
    """Return the table's rows."""
    return [_row(devices, 1024 * each) for devices, lengths in LENGTHS.items() for each in lengths]


def _row(devices: int, tokens: int) -> Row:
    from megads.plan.in_parts import parts
    from megads.plan.memory import estimate, host_bytes

    run = _planned(devices, tokens)
    return Row(devices, tokens, ", ".join(parts(run)), estimate(run, devices).total, host_bytes(run, devices), run)


def _planned(devices: int, tokens: int) -> Any:
    from megads.config.derive import derive
    from megads.config.sources.resolve import resolve
    from megads.plan.in_parts import plan_long_context, with_plan

    env = {"LONG_CONTEXT": "1", "ENGINE": "deepspeed", "SEQ": str(tokens), "DTYPE": "bf16", "GRAD_ACC_STEPS": "1"}
    if devices > 1:
        env |= {"SP": str(devices), "ZERO_STAGE": "3"}
    derived = derive(resolve("7B", env=env, machine="generic"), num_hosts=1, ranks_per_host=devices, vocab_size=32_000)
    return with_plan(derived, plan_long_context(derived, devices, DEVICE_GIB)).run


def tracked(chosen: list[Row]) -> list[int]:
    """Return for every row the tracked bytes of activations and loss, with what the engine holds by the estimate."""
    import multiprocessing

    from megads.plan.memory import estimate
    from tests.simgpu.fake_memory import peaks

    runs = {}
    for number, row in enumerate(chosen):
        run = row.run
        if run.recompute.cpu_checkpointing:
            run = run.model_copy(update={"model": run.model.model_copy(update={"num_layers": LAYERS})})
        runs[str(number)] = (run, row.devices, 0)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded"])
    with context.Pool(1) as pool:
        found = pool.apply(peaks, (runs,))
    sizes = []
    for number, row in enumerate(chosen):
        memory = estimate(row.run, row.devices)
        sizes.append(dataclasses.replace(memory, activations=0, logits=0).total + found[str(number)].other)
    return sizes


def table() -> str:
    """Return the whole table."""
    made = rows()
    head = "| devices | tokens of a row | LONG_CONTEXT plans | estimate | tracked | host memory |"
    lines = [row.line(size) for row, size in zip(made, tracked(made), strict=True)]
    return "\n".join([head, "|---:|---:|---|---:|---:|---:|", *lines])


if __name__ == "__main__":
    from tests.simgpu.device import have_device

    have_device()
    print(table())  # noqa: T201
