"""DeepSpeed as a library: imported quietly, with our groups under the names it asks for."""

from __future__ import annotations

import logging
import warnings
from functools import cache
from typing import Any

import torch.distributed as dist
from torch import nn

from megads.comm.groups import Groups
from megads.engine.base import is_copy
from megads.engine.deepspeed.compiler import leave_compiler_out


class Mpu:
    """Our groups under the names DeepSpeed asks for.

    The data-parallel group is data x seq: gradients average over both. The model-parallel
    group is tensor x pipe: gradient norms and overflows are summed over it. Nothing named
    ``*sequence*`` is offered, because its presence switches tensor parallelism off.
    """

    def __init__(self, groups: Groups):
        self.groups = groups

    def _size(self, *axes: str) -> int:
        size = 1
        for axis in axes:
            size *= getattr(self.groups.grid, axis)
        return size

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        """Return the group over which gradients are averaged."""
        return self.groups.process_group("data_seq")

    def get_data_parallel_world_size(self) -> int:
        """Return the size of data x seq."""
        return self._size("data", "seq")

    def get_data_parallel_rank(self) -> int:
        """Return this rank's place in data x seq."""
        return dist.get_rank(self.get_data_parallel_group())

    def get_data_parallel_group_ranks(self) -> list[int]:
        """Return the global ranks of data x seq."""
        return dist.get_process_group_ranks(self.get_data_parallel_group())

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        """Return the group over which the gradient norm is summed."""
        return self.groups.process_group("model")

    def get_model_parallel_world_size(self) -> int:
        """Return the size of tensor x pipe."""
        return self._size("pipe", "tensor")

    def get_model_parallel_rank(self) -> int:
        """Return this rank's place in tensor x pipe."""
        return dist.get_rank(self.get_model_parallel_group())

    def get_tensor_model_parallel_group(self) -> dist.ProcessGroup:
        """Return the tensor-parallel group."""
        return self.groups.process_group("tensor")

    def get_tensor_model_parallel_world_size(self) -> int:
        """Return the tensor-parallel degree."""
        return self._size("tensor")

    def get_tensor_model_parallel_rank(self) -> int:
        """Return this rank's place along the tensor axis."""
        return self.groups.tensor_rank

    def get_pipeline_model_parallel_group(self) -> dist.ProcessGroup:
        """Return the pipeline group."""
        return self.groups.process_group("pipe")

    def get_pipeline_model_parallel_world_size(self) -> int:
        """Return the number of pipeline stages."""
        return self._size("pipe")

    def get_pipeline_model_parallel_rank(self) -> int:
        """Return this rank's stage."""
        return self.groups.pipe_rank


def import_deepspeed() -> Any:
    """Import DeepSpeed quietly, with every op that would be compiled at run time switched off."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed
        from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    # DeepSpeed would find out by running a compiler, on every rank, and asks only for its communication on the CPU.
    vars(deepspeed.ops).setdefault("__compatible_ops__", {})["deepspeed_shm_comm"] = False
    leave_compiler_out()
    _count_devices_once(deepspeed.get_accelerator())
    return deepspeed


def _count_devices_once(accelerator: Any) -> None:
    # ZeRO 3 asks in every backward pass, and on a CPU the answer takes a process of its own: numactl.
    if not hasattr(accelerator.device_count, "cache_info"):
        accelerator.device_count = cache(accelerator.device_count)


def mark_counted(module: nn.Module, tensor_rank: int) -> None:
    """Mark the parameters that this rank adds to the gradient norm.

    DeepSpeed reads ``tensor_model_parallel`` as "count here": a shard counts on every
    tensor rank, a replicated parameter only on the first, and a stage's copy of another
    stage's parameter nowhere. Without the marks the norm, and with it clipping, is wrong and
    nothing says so.
    """
    for parameter in module.parameters():
        sharded = getattr(parameter, "shard", None) is not None
        counted = (sharded or tensor_rank == 0) and not is_copy(parameter)
        parameter.tensor_model_parallel = counted  # type: ignore[attr-defined]
