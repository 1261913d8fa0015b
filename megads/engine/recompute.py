"""What a run computes again in the backward pass, by torch's activation checkpointing."""

from __future__ import annotations

import torch

from megads.config.schema import RunConfig
from megads.parallel.host_checkpoints import HostCheckpoints
from megads.parallel.recompute import Recompute


def recompute_of(run: RunConfig, device: torch.device) -> Recompute:
    """Return what a stage of ``run`` computes again, and where it keeps what that needs."""
    settings = run.recompute
    return Recompute(
        settings.granularity,
        settings.method,
        settings.num_layers,
        host=host_checkpoints(device) if settings.cpu_checkpointing and settings.engine == "torch" else None,
        loss_chunk=settings.loss_chunk,
        mlp_tiles=settings.mlp_tiles,
    )


def host_checkpoints(device: torch.device) -> HostCheckpoints | None:
    """Return what keeps inputs of recomputed layers on the host; None on a CPU, where they are there already."""
    return HostCheckpoints(device, torch.get_device_module(device)) if device.type != "cpu" else None
