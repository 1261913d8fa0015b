"""Collectives of the simulated device: gloo on the host's view of its memory; backend ``sim``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tests.simgpu.module import NAME

SENDING = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "barrier", "send", "recv", "recv_anysource"),
    *("allgather", "allgather_coalesced", "gather", "scatter", "reduce_scatter", "alltoall", "alltoall_base"),
    *("_allgather_base", "_reduce_scatter_base", "all_gather_single", "reduce_scatter_single", "all_to_all_single"),
    *("all_gather_single_coalesced", "reduce_scatter_single_coalesced"),
)
"""Methods of a process group, by the names of torch 2.13 and of older ones."""

calls: dict[str, int] = {}
"""How often each was called on tensors of the device, in this process."""


class SimulatedGroup(dist.ProcessGroup):
    """Has gloo do what is asked, on host tensors over the device's memory; refuses tensors of the host as NCCL does."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any):
        super().__init__(rank, size)
        self.bound_device_id = torch.device(f"{NAME}:0")  # as init_process_group(device_id=...) binds it
        gloo = dist.ProcessGroup.BackendType.GLOO
        self.gloo = dist.ProcessGroup(store, rank, size)
        self.gloo._set_default_backend(gloo)
        self.gloo._register_backend(
            torch.device("cpu"), gloo, distributed_c10d.ProcessGroupGloo(store, rank, size, timeout)
        )
        self.name, self.description = "", ""

    def _get_backend(self, device: torch.device) -> Any:
        return self

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return False

    def getBackendName(self) -> str:
        return "sim"

    def _set_group_name(self, name: str) -> None:
        self.name = name

    def _set_group_desc(self, description: str) -> None:
        self.description = description

    @property
    def group_name(self) -> str:
        return self.name

    @property
    def group_desc(self) -> str:
        return self.description

    def shutdown(self) -> None: ...

    def abort(self) -> None: ...


def _host_view(value: Any, name: str) -> Any:
    if isinstance(value, torch.Tensor):
        if value.device.type != NAME:
            raise RuntimeError(
                f"No backend type associated with device type {value.device.type}: {name} of backend sim"
            )
        return torch.ops.simgpu.host_alias(value)
    return [_host_view(each, name) for each in value] if isinstance(value, (list, tuple)) else value


def _sends(name: str) -> Callable[..., Any]:
    def send(self: SimulatedGroup, *args: Any, **kwargs: Any) -> Any:
        calls[name] = calls.get(name, 0) + 1
        views = [_host_view(each, name) for each in args]
        if name == "barrier":
            return self.gloo.barrier()  # of the host, whatever device the options name
        return getattr(self.gloo, name)(*views, **{key: _host_view(each, name) for key, each in kwargs.items()})

    return send


for _name in SENDING:
    setattr(SimulatedGroup, _name, _sends(_name))


def register() -> None:
    """Make ``sim`` a backend of torch.distributed in this process."""
    if "SIM" not in dist.Backend._plugins:
        dist.Backend.register_backend("sim", SimulatedGroup, devices=[NAME])
