"""How many hosts: the best layout on each number of them, and the smallest number on which a model fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from megads.errors import ConfigError
from megads.plan.places.place import Place
from megads.plan.search.ask import Ask
from megads.plan.search.search import Candidate, has_fit, search_for

MOST_HOSTS = 512
"""Of a table for a place whose hosts are not counted."""

MOST_ROWS, MOST_TIMED = 11, 40
"""Of a table; candidates of a row that are timed line by line."""

MOST_DOUBLED = 16
"""Times that the hosts are doubled until a model fits."""


@dataclass(frozen=True)
class Row:
    """The best layout on a number of hosts; without one, why."""

    ask: Ask
    best: Candidate | None
    problem: str = ""


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
            found = search_for(ask, 1, MOST_TIMED)
        except ConfigError as error:
            rows.append(Row(ask, None, str(error)))
            continue
        why = "does not fit" if any(each.kind == "memory" for each in found.losers) else "no layout divides the batch"
        rows.append(Row(ask, found.best[0]) if found.best else Row(ask, None, why))
    return rows


def smallest(ask_of: Callable[[int], Ask], hosts: int, most: int = 0) -> Row | None:
    """Return the smallest number of hosts above ``hosts`` with a layout that fits; None: none has.

    Hosts are doubled until one fits, and then quarters between the last two are tried.

    Args:
        most: hosts of the place; 0: not known.
    """
    for _ in range(MOST_DOUBLED):
        few, hosts = hosts, 2 * hosts
        if most and hosts > most:
            return None
        if has_fit(ask_of(hosts)):
            between = (few * quarters // 4 for quarters in (5, 6, 7) if few * quarters % 4 == 0)
            number = next((each for each in between if has_fit(ask_of(each))), hosts)
            return sweep(ask_of, [number])[0]
    return None
