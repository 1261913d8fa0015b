"""Train a layout on the simulated device or on the CPU, and keep what came out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.parity.layouts import Layout, batches, rate
from tests.ranks import groups_of
from tests.simgpu.device import DEVICE

STEPS = 3


def engine_on(device: str, layout: Layout, **changes: str) -> tuple[Any, Any, Any]:
    """Return engine, settings and groups of ``layout`` on ``device``."""
    import torch

    from megads.engine.build import make_engine
    from tests.engine.plain import let_fp16_run

    let_fp16_run()
    run, groups = layout.run(**changes), groups_of(**layout.degrees)
    eod = 7 if run.data.eod_mask_loss or run.data.reset_attention_mask else None
    return make_engine(run, groups, torch.device(device), eod), run, groups


def train(device: str, engine: Any, run: Any, groups: Any, steps: range) -> list[tuple[float, float, bool]]:
    """Return loss, norm and whether it was skipped of every step."""
    found = []
    for step in steps:
        parts = [part.to(device) for part in batches(run, step, groups.data_rank)]
        result = engine.train_step(parts, rate(step), first_sample=8 * step)
        found.append((float(result.loss), result.grad_norm, result.skipped))
    return found


def record(device: str, layout: Layout, folder: Path, changes: dict[str, str]) -> None:
    """Train, evaluate, and write results and weights of this rank to ``folder``."""
    import torch
    import torch.distributed as dist

    layers = layout.more.get("model.num_layers", "4" if layout.pp > 1 else "2")
    engine, run, groups = engine_on(device, layout, **{"model.num_layers": layers, **changes})
    results = train(device, engine, run, groups, range(STEPS))
    held_out = engine.eval_losses([part.to(device) for part in batches(run, STEPS, groups.data_rank)])
    weights = {
        f"{state.name} {kind}": tensor.cpu().clone()
        for state in engine.state.by_parameter()
        for kind, tensor in state.tensors.items()
    }
    if device == DEVICE:
        kinds = {tensor.device.type for tensor in engine.module.parameters()}
        assert kinds == {"gpu"}, kinds
    torch.save((results, held_out.cpu(), weights), folder / f"{device[:3]}-{dist.get_rank()}.pt")


def recorded(device: str, folder: Path, rank: int) -> Any:
    import torch

    return torch.load(folder / f"{device[:3]}-{rank}.pt")
