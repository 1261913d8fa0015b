"""What a run computes again in the backward pass, and DeepSpeed's activation checkpointing as a way to do it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from megads.comm.groups import Groups
from megads.config.deepspeed.dictionary import effective_zero_stage
from megads.config.schema import RunConfig
from megads.config.stages import stage_steps
from megads.engine.deepspeed.package import Mpu, import_deepspeed
from megads.engine.recompute import recompute_of
from megads.errors import DeviceError
from megads.families.decoder import spec_of
from megads.parallel.recompute import Recompute, reentrant_checkpoint

LOG = logging.getLogger("megads")


def make_recompute(run: RunConfig, groups: Groups, device: torch.device) -> Recompute:
    """Return what this rank's stage computes again, and how.

    Under ZeRO 3 the layers are recomputed in a backward pass of their own: only there are
    their parameters gathered one module at a time. In torch's other form a segment keeps all
    of its gathered parameters from the recomputation on.

    Raises:
        DeviceError: see :class:`DeepSpeedCheckpoint`.
    """
    settings = run.recompute
    plan = recompute_of(run, device)
    if settings.granularity == "none":
        return plan
    if settings.engine == "torch":
        gathers = settings.granularity == "full" and effective_zero_stage(run) == 3
        return replace(plan, checkpoint=reentrant_checkpoint) if gathers else plan
    layers = sum(0 < step <= spec_of(run.model).num_layers for step in stage_steps(run)[groups.pipe_rank])
    # A stage begins this many micro-batches before the first of them comes back.
    in_flight = min(run.train.grad_acc_steps, groups.pipe_size - groups.pipe_rank)
    return replace(plan, checkpoint=DeepSpeedCheckpoint(run, groups, device, plan.segments(layers) * in_flight))


class DeepSpeedCheckpoint:
    """``deepspeed.checkpointing.checkpoint`` with the options of one engine.

    DeepSpeed keeps options and buffers in its module, once per process. The engine whose
    forward pass comes next puts its own there; so several engines can take turns step by
    step, but not inside one.

    On a CPU the inputs are in host memory already, and ``cpu_checkpointing`` changes nothing:
    DeepSpeed would empty the tensor it takes for a copy.

    Args:
        run: derived settings; ``run.recompute`` has the options.
        groups: inputs are partitioned over the tensor axis.
        num_checkpoints: calls before the first of their backward passes; sizes the contiguous buffer.

    Raises:
        DeviceError: this DeepSpeed needs device streams (seen in 0.16 and 0.18), and there are none.
    """

    _configured: ClassVar[DeepSpeedCheckpoint | None] = None

    def __init__(self, run: RunConfig, groups: Groups, device: torch.device, num_checkpoints: int):
        settings = run.recompute
        self.groups = groups
        self.options = {
            "partition_activations": settings.partition_activations,
            "contiguous_checkpointing": settings.contiguous_memory,
            "num_checkpoints": num_checkpoints,
            "checkpoint_in_cpu": settings.cpu_checkpointing and device.type != "cpu",
            "synchronize": settings.synchronize,
            "profile": settings.profile,
        }
        deepspeed = import_deepspeed()
        self.module = deepspeed.checkpointing
        if device.type == "cpu" and makes_streams(self.module.CheckpointFunction):
            raise DeviceError(
                f"RECOMPUTE_WITH=deepspeed: DeepSpeed {deepspeed.__version__} makes a device stream for every "
                "checkpoint, and a CPU has none; use RECOMPUTE_WITH=torch, or DeepSpeed 0.19.8"
            )

    def __call__(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Return ``function(*inputs)``; see :data:`megads.parallel.recompute.Checkpoint`."""
        if DeepSpeedCheckpoint._configured is not self:
            self._configure()
        result: Tensor = self.module.checkpoint(function, *inputs)
        return result

    def _configure(self) -> None:
        # First, while DeepSpeed still knows that the buffers of another engine are in use.
        self.module.reset()
        self.module.configure(Mpu(self.groups), **self.options)
        if self.options["profile"]:
            self.module.timers = _timers()
        DeepSpeedCheckpoint._configured = self


def makes_streams(function: type[torch.autograd.Function]) -> bool:
    """Return whether DeepSpeed's ``CheckpointFunction`` makes a stream that it then does not use."""
    return "transport_stream" in function.forward.__code__.co_varnames


def _timers() -> Any:
    """Return DeepSpeed's timers, which print; these write to the run's log."""
    from deepspeed.utils.timer import SynchronizedWallClockTimer

    class Timers(SynchronizedWallClockTimer):
        """Logs the milliseconds of every recomputed segment."""

        def log(self, names: Sequence[str], *args: Any, **kwargs: Any) -> None:
            """Log what was measured since the last call, and forget it."""
            for name in names:
                LOG.info("recompute: %s %.2f ms", name, self.timers[name].elapsed(reset=True))

    return Timers()
