"""What may be used: the hosts, and how many ranks on each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from megads.cluster.hosts import is_this_host, read_host_file, this_host
from megads.cluster.machine import count_accelerators
from megads.config.schema import RunConfig
from megads.errors import LaunchError


@dataclass(frozen=True)
class Allocation:
    """The hosts of a run and how many ranks each of them takes.

    ``spare`` are hosts of the same job that are not used; they replace hosts that fail.
    ``num_ranks`` is given when the last host takes fewer ranks than the others.
    """

    scheduler: str
    hosts: tuple[str, ...]
    ranks_per_host: int
    job_id: str = ""
    spare: tuple[str, ...] = ()
    num_ranks: int = 0

    @property
    def world_size(self) -> int:
        """Ranks on all hosts together."""
        return self.num_ranks or len(self.hosts) * self.ranks_per_host


def find_allocation(run: RunConfig, env: Mapping[str, str]) -> Allocation:
    """Return this host and the number of ranks to start on it.

    The number is ``launch.ranks_per_host``, else one for each visible accelerator, else on
    a CPU host just enough for TP x PP x SP x DP. An allocation of one host under PBS or
    SLURM is used like any host.

    Raises:
        LaunchError: for an allocation or host file of several hosts, or of another one;
            for more ranks than accelerators; for machine ``generic`` without accelerators.
    """
    _refuse_other_hosts(run, env)
    devices = count_accelerators(env)
    if run.machine == "generic" and not devices and env.get("MEGADS_DEVICE") != "cpu":
        raise LaunchError("machine generic trains on accelerators and none is visible here; MACHINE=cpu trains without")
    ranks = run.launch.ranks_per_host or devices or _layout(run)
    if devices and ranks > devices:
        raise LaunchError(
            f"NGPU_PER_HOST={ranks}: this host shows {devices} accelerators, one for each rank; "
            f"use at most {devices}, or MEGADS_DEVICE=cpu to train on the CPU"
        )
    return Allocation("none", (this_host(),), ranks, env.get("PBS_JOBID") or env.get("SLURM_JOB_ID") or "")


def _layout(run: RunConfig) -> int:
    """Return the fewest ranks that the degrees of the layout fill."""
    degrees = run.parallel
    return degrees.tensor * degrees.pipeline * degrees.sequence * max(degrees.data, 1)


def _refuse_other_hosts(run: RunConfig, env: Mapping[str, str]) -> None:
    if run.launch.hostfile:
        hosts = read_host_file(Path(os.path.expanduser(run.launch.hostfile)), "HOSTFILE")
        _require_this_host(hosts, f"HOSTFILE={run.launch.hostfile}")
    elif env.get("PBS_JOBID") and env.get("PBS_NODEFILE"):
        hosts = read_host_file(Path(env["PBS_NODEFILE"]), "PBS_NODEFILE")
        _require_this_host(hosts, f"PBS job {env['PBS_JOBID']}")
    elif env.get("SLURM_JOB_ID"):
        count = env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES") or "1"
        if count != "1":
            raise LaunchError(_several(f"SLURM job {env['SLURM_JOB_ID']}", count))


def _require_this_host(hosts: tuple[str, ...], origin: str) -> None:
    if len(hosts) > 1:
        raise LaunchError(_several(origin, str(len(hosts))))
    if not is_this_host(hosts[0]):
        raise LaunchError(f"{origin} names {hosts[0]} but this is {this_host()}; start the run on {hosts[0]}")


def _several(origin: str, count: str) -> str:
    return f"{origin} has {count} hosts; runs on more than one host are not supported yet, use an allocation of one"
