"""DeepSpeed as a library: imported quietly, with our groups under the names it asks for."""

from __future__ import annotations

import logging
import warnings
from functools import cache, partial
from typing import Any, ClassVar

import torch.distributed as dist

from megads.comm.groups import Groups
from megads.engine.compiler import import_muon_uncompiled, is_postponed
from megads.timing.collectives import timed
from megads.timing.sections import COMMUNICATION, in_section


class Mpu:
    """Our groups under the names DeepSpeed asks for: ``get_<name>_group``, ``_world_size`` and ``_rank``.

    The data-parallel group is data x seq: gradients average over both. The model-parallel
    group is tensor x pipe: gradient norms and overflows are summed over it. Nothing named
    ``*sequence*`` is offered, because its presence switches tensor parallelism off.
    """

    NAMES: ClassVar[dict[str, str]] = {
        "data_parallel": "data_seq",
        "model_parallel": "model",
        "tensor_model_parallel": "tensor",
        "pipeline_model_parallel": "pipe",
    }

    def __init__(self, groups: Groups):
        self.groups = groups
        for name, group in self.NAMES.items():
            ranks = groups.ranks(group)
            setattr(self, f"get_{name}_group", partial(groups.process_group, group))
            setattr(self, f"get_{name}_group_ranks", partial(list, ranks))
            setattr(self, f"get_{name}_world_size", ranks.__len__)
            setattr(self, f"get_{name}_rank", partial(ranks.index, groups.rank))


def import_deepspeed() -> Any:
    """Import DeepSpeed quietly, with every op that would be compiled at run time switched off."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed
        from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    # DeepSpeed would find out by running a compiler, on every rank, and asks only for its communication on the CPU.
    vars(deepspeed.ops).setdefault("__compatible_ops__", {})["deepspeed_shm_comm"] = False
    if is_postponed():
        import_muon_uncompiled()
    accelerator = deepspeed.get_accelerator()
    # ZeRO 3 asks in every backward pass, and on a CPU the answer takes a process of its own: numactl.
    if not hasattr(accelerator.device_count, "cache_info"):
        accelerator.device_count = cache(accelerator.device_count)
    # It refuses fp16 on CPUs without fast instructions for it; torch computes it on every CPU.
    if accelerator.device_name() == "cpu":
        accelerator.is_fp16_supported = lambda: True
    _communicate_through_torch()
    return deepspeed


def _communicate_through_torch() -> None:
    """Let DeepSpeed use the process groups that exist, whatever their backend.

    Otherwise it asks its accelerator for a backend. Where oneccl_bindings_for_pytorch can be imported, as in a
    site's modules, the CPU's answer is ccl, also under gloo, and DeepSpeed compiles a second oneCCL of its own.
    """
    from deepspeed.comm import comm
    from deepspeed.comm.torch import TorchBackend

    if comm.cdb is None and dist.is_initialized():
        comm.cdb = TorchBackend(dist.get_backend(), None, None)


COLLECTIVES = (
    *("all_reduce", "inference_all_reduce", "all_reduce_coalesced", "reduce", "broadcast"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
    *("all_gather", "all_gather_into_tensor", "all_gather_base", "all_gather_coalesced"),
    *("send", "recv", "gather", "scatter", "barrier"),
)
"""Methods of DeepSpeed's backends that a step may wait in."""


def time_communication(engine: Any) -> None:
    """Count DeepSpeed's collectives, and its waits for those that overlap with computation, as communication.

    DeepSpeed sends everything through one object, which hands it to ``torch.distributed``: its
    collectives are wrapped there. What it sends in parallel to the computation, in a queue of its own on
    a device, costs time only where the computation waits for it, and those places are wrapped too.
    """
    from deepspeed.comm import comm

    backend = comm.cdb
    # One object serves every engine of the process.
    if backend is not None and not getattr(backend, "megads_times", False):
        for name in COLLECTIVES:
            if hasattr(backend, name):
                setattr(backend, name, timed(getattr(backend, name)))
        backend.megads_times = True
    optimizer = engine.optimizer
    if getattr(optimizer, "overlap_comm", False):
        _wrap(optimizer, "overlapping_partition_gradients_reduce_epilogue")
    offload = getattr(optimizer, "parameter_offload", None)  # ZeRO 3
    if offload is not None:
        _wrap(offload.get_param_coordinator(), "fetch_sub_module")


def _wrap(owner: Any, name: str) -> None:
    setattr(owner, name, in_section(COMMUNICATION)(getattr(owner, name)))
