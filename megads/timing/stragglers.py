"""Ranks that compute longer than others that do the same work.

In synchronous training every rank's step takes as long as the slowest one's, so the time of a
step says nothing. What does is the time that a rank needs for its own work, without what it
waits for others.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

import megads.timing.collectives as dist
from megads.comm.groups import Groups
from megads.config.schema import RunConfig
from megads.text.units import count

MADS = 5.0  # beyond the median, in units of a normal distribution's deviation; ranks scatter a little everywhere
LEAST_S = 1e-3  # beyond the median: less is no delay
SHOWN = 4  # in a line


@dataclass(frozen=True)
class Busy:
    """How long a rank computed in a step, and the median of those that do the same work."""

    rank: int
    busy_s: float
    median_s: float

    @property
    def ratio(self) -> float:
        """Return how many times as long."""
        return self.busy_s / self.median_s if self.median_s > 0 else 1.0


@dataclass(frozen=True)
class Stragglers:
    """The ranks that hold the others up, after a check of all ranks."""

    slowest: Busy  # for its kind, also where nobody stands out
    stragglers: tuple[Busy, ...]  # those who do, slowest first

    def row(self) -> dict[str, float]:
        """Return the entries of a metrics row; a rank only where one stands out."""
        if not self.stragglers:
            return {"straggler_ratio": self.slowest.ratio}
        first = self.stragglers[0]
        return {"straggler_rank": first.rank, "straggler_ratio": first.ratio}


def find_stragglers(busy_s: Sequence[float], kinds: Sequence[int], least_ratio: float) -> Stragglers:
    """Return the ranks that stand out.

    A rank stands out when it is ``least_ratio`` times the median of its kind, and beyond it by
    five times the scatter of its kind (the median absolute deviation) and by a millisecond.
    The median of an even number is the lower one of the two in the middle: of two ranks the
    slower one is reported.
    """
    everyone, slow = [], []
    ranks_of: dict[int, list[int]] = {}
    for rank, kind in enumerate(kinds):
        ranks_of.setdefault(kind, []).append(rank)
    for ranks in ranks_of.values():
        median = statistics.median_low(busy_s[rank] for rank in ranks)
        scatter = 1.4826 * statistics.median_low(abs(busy_s[rank] - median) for rank in ranks)
        for rank in ranks:
            found = Busy(rank, busy_s[rank], median)
            everyone.append(found)
            beyond = found.busy_s - median
            if found.ratio >= least_ratio and beyond > max(MADS * scatter, LEAST_S):
                slow.append(found)
    return Stragglers(max(everyone, key=lambda each: each.ratio), tuple(sorted(slow, key=lambda each: -each.ratio)))


def straggler_line(stragglers: Sequence[Busy], hosts: Sequence[str]) -> str:
    """Return who holds the others up, as ``rank 37 on x3004 computes 1.42 times as long as the median (...)``.

    Several ranks of one host are reported as the host, with the numbers of the slowest one. ``stragglers`` come slowest
    first; ``hosts`` are those of all ranks.
    """
    by_host: dict[str, list[Busy]] = {}
    for each in stragglers:
        by_host.setdefault(hosts[each.rank], []).append(each)
    words = [_words(host, found) for host, found in by_host.items()]
    more = sum(map(len, list(by_host.values())[SHOWN:]))
    return "; ".join([*words[:SHOWN], *([f"and {more} more ranks"] if more else [])])


def _words(host: str, found: Sequence[Busy]) -> str:
    slowest = found[0]
    ranks = ", ".join(str(each.rank) for each in sorted(found, key=lambda each: each.rank)[:8])
    who = f"rank {slowest.rank} on {host}" if len(found) == 1 else f"host {host} ({len(found)} ranks: {ranks})"
    if len(found) > 8:
        who = who.replace(")", ", ...)")
    took, median = (_time(seconds) for seconds in (slowest.busy_s, slowest.median_s))
    return f"{who} computes {slowest.ratio:.2f} times as long as the median ({took} against {median})"


def _time(seconds: float) -> str:
    return f"{count(1000 * seconds)} ms" if seconds < 1 else f"{seconds:.3g} s"


class StragglerWatch:
    """Compares the ranks' own work, every ``times.straggler_interval`` steps, by one all-reduce of a float a rank.

    Of a rank counts the median of its steps since the last look, so that one slow step, such
    as the first one, makes no straggler.
    """

    def __init__(self, run: RunConfig, groups: Groups, device: torch.device):
        self.groups, self.device = groups, device
        self.interval, self.ratio = run.times.straggler_interval, run.times.straggler_ratio
        self.kinds = kinds_of(run, groups) if groups.rank == 0 else []
        self.busy_s: list[float] = []

    def add(self, busy_s: float) -> None:
        """Count a step."""
        self.busy_s.append(busy_s)

    def look(self, iteration: int) -> Stragglers | None:
        """Return what all ranks' times show, on rank 0 and after steps where it is time. Collective."""
        if iteration % self.interval:
            return None
        found = self.compare()
        self.busy_s = []
        return found

    def compare(self) -> Stragglers | None:
        """Return what all ranks' times since the last look show, on rank 0. Collective."""
        if not self.busy_s:
            return None
        # A sum with zeros is exact, uses the connections there are, and takes the logarithm of
        # the ranks; a gather would connect rank 0 to every other one.
        everyone = torch.zeros(self.groups.grid.world_size, device=self.device)
        everyone[self.groups.rank] = statistics.median(self.busy_s)
        dist.all_reduce(everyone, group=self.groups.world)
        if self.groups.rank != 0:
            return None
        return find_stragglers(everyone.tolist(), self.kinds, self.ratio)


def kinds_of(run: RunConfig, groups: Groups) -> list[int]:
    """Return a number for every rank; ranks of one number do the same work.

    Stages of a pipeline hold different layers. Sequence-parallel ranks differ where the heads
    cannot be cut evenly among them.
    """
    heads = run.model.num_heads // groups.tensor_size
    uneven = heads % groups.seq_size != 0
    places = (groups.grid.coordinate(rank) for rank in range(groups.grid.world_size))
    return [place["pipe"] * groups.seq_size + (place["seq"] if uneven else 0) for place in places]
