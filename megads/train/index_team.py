"""The ranks of a run as a team that builds sample indices."""

from __future__ import annotations

from collections.abc import Sequence

from megads.cluster.hosts import this_host
from megads.comm.groups import Groups
from megads.comm.messages import all_gather_values, broadcast_value
from megads.data.samples.index_cache.team import Team


def hosts_of(groups: Groups) -> Sequence[str]:
    """Return the host of every rank. Collective."""
    size = groups.grid.world_size
    return [this_host()] if size == 1 else all_gather_values(this_host())


def make_team(groups: Groups, hosts: Sequence[str] = ()) -> Team:
    """Return the team of all ranks of ``groups``, which run on ``hosts``. Without these, collective.

    Ranks of one host count in the order of their ranks, whatever the launcher called them.
    """
    size = groups.grid.world_size
    if size == 1:
        return Team()
    hosts = hosts or hosts_of(groups)
    local_rank = list(hosts[: groups.rank]).count(hosts[groups.rank])
    return Team(groups.rank, size, local_rank, share=broadcast_value, gather=all_gather_values)
