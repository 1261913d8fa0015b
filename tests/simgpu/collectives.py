"""Collectives of the simulated device: gloo on the host's view of its memory; backend ``sim``.

As with NCCL a group has a stream of its own: a collective begins behind the current stream, and what comes after a
wait for it comes after it. The order of streams is what ``streams.h`` checks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tests.simgpu.module import NAME

WRITES = {
    **dict.fromkeys(("allreduce", "allreduce_coalesced", "broadcast", "reduce", "recv", "recv_anysource"), (0,)),
    **dict.fromkeys(("allgather", "allgather_coalesced", "gather", "scatter", "reduce_scatter"), (0,)),
    **dict.fromkeys(("alltoall", "alltoall_base", "all_to_all_single"), (0,)),
    **dict.fromkeys(("_allgather_base", "_reduce_scatter_base", "all_gather_single", "reduce_scatter_single"), (0,)),
    **dict.fromkeys(("all_gather_single_coalesced", "reduce_scatter_single_coalesced"), (0,)),
    **dict.fromkeys(("send", "barrier"), ()),
}
"""Methods of a process group, by the names of torch 2.13 and of older ones; which arguments they write."""

calls: dict[str, int] = {}
"""How often each was called on tensors of the device, in this process."""

_streams = itertools.count(10_000)


class SimulatedWork(dist.Work):
    """What :class:`SimulatedGroup` returns: keeps the tensors until gloo is done with them."""

    def __init__(self, work: Any, tensors: list[Any], key: int):
        super().__init__()
        self.work, self.tensors, self.key = work, tensors, key

    def wait(self, timeout: Any = None) -> bool:
        self.work.wait()
        self.tensors = []
        torch.ops.simgpu.wait_for_collective(self.key)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return bool(self.work.is_completed())

    def is_success(self) -> bool:
        return bool(self.work.is_success())

    def __del__(self) -> None:
        if self.tensors and not self.work.is_completed():
            self.work.wait()
        torch.ops.simgpu.forget_collective(self.key)


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
        self.stream = next(_streams)

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

    def barrier(self, opts: Any = None) -> Any:
        work = self.gloo.barrier()  # of the host, whatever device the options name
        torch.get_device_module(NAME).synchronize()
        return work

    def shutdown(self) -> None: ...

    def abort(self) -> None: ...


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)


def _host_view(value: Any, name: str) -> Any:
    if isinstance(value, torch.Tensor):
        if value.device.type != NAME:
            raise RuntimeError(f"No backend type associated with device type {value.device.type}: {name} of sim")
        return torch.ops.simgpu.host_alias(value)
    return [_host_view(each, name) for each in value] if isinstance(value, (list, tuple)) else value


def _sends(name: str, writes: tuple[int, ...]) -> Callable[..., Any]:
    def send(self: SimulatedGroup, *args: Any, **options: Any) -> Any:
        calls[name] = calls.get(name, 0) + 1
        views = [_host_view(each, name) for each in args]
        touched = [list(_tensors(each)) for each in args]
        written = [t for place in writes for t in touched[place]]
        read = [t for place, found in enumerate(touched) if place not in writes for t in found]
        key = torch.ops.simgpu.begin_collective(read, written, self.stream, name)
        return SimulatedWork(getattr(self.gloo, name)(*views, **options), [*read, *written], key)

    return send


for _name, _writes in WRITES.items():
    if _name != "barrier":
        setattr(SimulatedGroup, _name, _sends(_name, _writes))


def register() -> None:
    """Make ``sim`` a backend of torch.distributed in this process."""
    if "SIM" not in dist.Backend._plugins:
        dist.Backend.register_backend("sim", SimulatedGroup, devices=[NAME])
