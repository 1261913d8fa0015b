"""How many hosts: the best layout on each number of them, and the smallest number on which a model fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from megads.errors import ConfigError
from megads.plan.place import Place
from megads.plan.search.ask import Ask
from megads.plan.search.search import Candidate, search_for

MOST_HOSTS = 512
"""Of a table for a place whose hosts are not counted."""

MOST_ROWS = 11
MOST_DOUBLED = 16
"""Times that the hosts are doubled until a model fits."""


@dataclass(frozen=True)
class Row:
    """The best layout on a number of hosts; without one, why."""

    ask: Ask
    best: Candidate | None
    problem: str = ""


@dataclass(frozen=True)
class Enough:
    """Hosts on which a model fits, and its layout there."""

    num_hosts: int
    best: Candidate


def counts(place: Place) -> list[int]:
    """Return numbers of hosts: powers of two, the largest that ``place`` has at most."""
    most = place.hosts or MOST_HOSTS
    found = [1 << power for power in range(most.bit_length())]
    return found[-MOST_ROWS:]


def sweep(ask_of: Callable[[int], Ask], numbers: list[int]) -> list[Row]:
    """Return the best layout on each of ``numbers`` hosts."""
    rows = []
    for number in numbers:
        ask = ask_of(number)
        try:
            found = search_for(ask, 1)
        except ConfigError as error:
            rows.append(Row(ask, None, str(error)))
            continue
        why = "does not fit" if any(each.kind == "memory" for each in found.losers) else "no layout divides the batch"
        rows.append(Row(ask, found.best[0]) if found.best else Row(ask, None, why))
    return rows


def smallest(ask_of: Callable[[int], Ask], hosts: int, most: int = 0) -> Enough | None:
    """Return the smallest number of hosts above ``hosts``, doubled, with a layout that fits; None: none has.

    Args:
        most: hosts of the place; 0: not known.
    """
    for _ in range(MOST_DOUBLED):
        hosts *= 2
        if most and hosts > most:
            return None
        try:
            found = search_for(ask_of(hosts), 1)
        except ConfigError:
            continue
        if found.best:
            return Enough(hosts, found.best[0])
    return None
