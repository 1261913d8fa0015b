"""Whether a rank's part fits its device and its host, asked when both are known and before anything is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from megads.cluster.hosts import this_host
from megads.cluster.machine import available_memory
from megads.comm.groups import Groups
from megads.comm.messages import broadcast_value, gather_values
from megads.config.schema import RunConfig
from megads.device import facts
from megads.device.vendor import Vendor
from megads.errors import ConfigError
from megads.monitor.log import LOG
from megads.plan.memory import GIB, Memory, estimate, host_bytes, host_problem


@dataclass(frozen=True)
class FreeMemory:
    """Bytes that are free when a rank begins."""

    host: str
    on_device: int
    of_device: int  # in all
    on_host: int


def check_memory(run: RunConfig, row: Vendor, device: torch.device, groups: Groups) -> None:
    """Refuse a run that does not fit its devices or hosts, unless ``train.force`` is on; a note where it is tight.

    On a CPU there is one memory, which the launcher has checked. Collective on accelerators.

    Raises:
        ConfigError: on every rank, the same: the rank or host that has least, and what needs less.
    """
    if row.device_type == "cpu" or run.train.force:
        return
    free, total = facts.memory(row, device)
    # Rank 0 alone holds what grows with the number of ranks.
    ranks = gather_values(FreeMemory(this_host(), free, total, available_memory()))
    size = groups.grid.world_size
    memory, problem = estimate(run, size), ""
    if groups.rank == 0:
        problem = device_problem(run, memory, ranks) or least_host(run, ranks)
    if problem := broadcast_value(problem):
        raise ConfigError(problem)
    if groups.rank == 0 and memory.total > (least := min(rank.on_device for rank in ranks)):
        LOG.warning(
            "memory: about %.1f GiB per rank with activations, and a device has %.1f GiB free; GiB per rank: %s",
            memory.total / GIB,
            least / GIB,
            memory,
        )


def device_problem(run: RunConfig, memory: Memory, ranks: Sequence[FreeMemory]) -> str:
    """Return why weights, gradients and optimizer do not fit the device that has least free; empty where they do."""
    number, least = min(enumerate(ranks), key=lambda each: each[1].on_device)
    needed = memory.weights + memory.gradients + memory.optimizer
    if needed <= least.on_device:
        return ""
    used, grid = least.of_device - least.on_device, run.parallel
    others = f" ({used / GIB:.1f} GiB are in use by other programs)" if used > 0.1 * least.of_device else ""
    return (
        f"rank {number} on {least.host} has {least.on_device / GIB:.1f} of {least.of_device / GIB:.1f} GiB free on "
        f"its device{others}, and weights, gradients and optimizer need about {needed / GIB:.1f} GiB per rank: raise "
        f"TP, PP or ZERO_STAGE (now {grid.tensor}, {grid.pipeline}, {grid.zero_stage}) or use more "
        "hosts; FORCE=1 starts anyway"
    )


def least_host(run: RunConfig, ranks: Sequence[FreeMemory]) -> str:
    """Return why the ranks of the host that has least memory for each do not fit it; empty where they do."""
    hosts = {host: [rank for rank in ranks if rank.host == host] for host in dict.fromkeys(rank.host for rank in ranks)}
    host, mine = min(hosts.items(), key=lambda each: min(rank.on_host for rank in each[1]) / len(each[1]))
    needed = host_bytes(run, len(ranks))
    return host_problem(run, needed, len(mine), min(rank.on_host for rank in mine), host)
