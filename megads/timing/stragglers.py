"""Ranks that compute longer than others that do the same work.

In synchronous training every rank's step takes as long as the slowest one's, so the time of a
step tells nothing. What does is the time that a rank needs for its own work, without what it
waits for others.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from megads.text.units import count

MADS = 5.0  # beyond the median, in units of a normal distribution's deviation; ranks scatter a little everywhere
LEAST_S = 1e-3  # beyond the median: less holds nobody up
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
class Found:
    """What a look at all ranks found."""

    slowest: Busy  # for its kind, also where nobody stands out
    stragglers: tuple[Busy, ...]  # those who do, slowest first

    def row(self) -> dict[str, float]:
        """Return the entries of a metrics row; a rank only where one stands out."""
        if not self.stragglers:
            return {"straggler_ratio": self.slowest.ratio}
        first = self.stragglers[0]
        return {"straggler_rank": first.rank, "straggler_ratio": first.ratio}


def find_stragglers(busy_s: Sequence[float], kinds: Sequence[int], least_ratio: float) -> Found:
    """Return the ranks that stand out.

    A rank stands out when it is ``least_ratio`` times the median of its kind, and beyond it by
    five times the scatter of its kind (the median absolute deviation) and by a millisecond.
    The median of an even number is the lower one of the two in the middle: of two ranks the
    slower one is reported.

    Args:
        busy_s: of every rank.
        kinds: of every rank; ranks of one kind do the same work.
        least_ratio: above 1.
    """
    everyone, told = [], []
    alike: dict[int, list[int]] = {}
    for rank, kind in enumerate(kinds):
        alike.setdefault(kind, []).append(rank)
    for ranks in alike.values():
        median = statistics.median_low(busy_s[rank] for rank in ranks)
        scatter = 1.4826 * statistics.median_low(abs(busy_s[rank] - median) for rank in ranks)
        for rank in ranks:
            found = Busy(rank, busy_s[rank], median)
            everyone.append(found)
            beyond = found.busy_s - median
            if found.ratio >= least_ratio and beyond > max(MADS * scatter, LEAST_S):
                told.append(found)
    return Found(max(everyone, key=lambda each: each.ratio), tuple(sorted(told, key=lambda each: -each.ratio)))


def straggler_line(stragglers: Sequence[Busy], hosts: Sequence[str]) -> str:
    """Return who holds the others up, as ``rank 37 on x3004 computes 1.42 times as long as the median (...)``.

    Several ranks of one host are told as the host, with the numbers of the slowest one.

    Args:
        stragglers: one or more, slowest first.
        hosts: of every rank.
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
