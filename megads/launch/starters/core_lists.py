"""Which CPU cores each local rank gets."""

from __future__ import annotations

import itertools
from typing import TypeVar

from megads.config.machine_facts import Facts
from megads.errors import ConfigError

T = TypeVar("T")


def core_lists(facts: Facts, ranks_per_host: int) -> tuple[str, ...]:
    """Return the cores of each local rank, as ``("1-8", "9-16", ...)``; empty when the machine names no cores.

    ``facts.cores`` are parts of a host (sockets, NUMA regions) in the order of local ranks:
    a machine whose first device is nearest to its last part lists that part first. Ranks are
    spread evenly over the parts and never cross from one to the next, and reserved cores are skipped
    . With fewer ranks than parts each rank gets several whole parts; with more ranks
    than cores the ranks of a part share its cores.

    Raises:
        ConfigError: the machine's lists are not of the form ``0-51`` or ``0,52``.
    """
    reserved = set(parse_cores(facts.reserved_cores))
    parts = [[core for core in parse_cores(text) if core not in reserved] for text in facts.cores]
    parts = [part for part in parts if part]
    if not parts:
        return ()
    if ranks_per_host < len(parts):
        groups = _split(parts, ranks_per_host)
        return tuple(show_cores([core for part in group for core in part]) for group in groups)
    lists = []
    for part, ranks in zip(parts, _split(list(range(ranks_per_host)), len(parts)), strict=True):
        each = len(part) // len(ranks)
        for number in range(len(ranks)):
            mine = part[number * each : (number + 1) * each] if each else [part[number % len(part)]]
            lists.append(show_cores(mine))
    return tuple(lists)


def usable_cores(facts: Facts) -> list[int]:
    """Return all cores of a host that ranks may use."""
    reserved = set(parse_cores(facts.reserved_cores))
    return [core for text in facts.cores for core in parse_cores(text) if core not in reserved]


def _split(items: list[T], count: int) -> list[list[T]]:
    """Return ``items`` in ``count`` runs of equal length; the first ones have one more when they do not divide."""
    each, more = divmod(len(items), count)
    ends = [number * each + min(number, more) for number in range(count + 1)]
    return [items[first:last] for first, last in itertools.pairwise(ends)]


def parse_cores(text: str) -> list[int]:
    """Return ``"0-3,8"`` as [0, 1, 2, 3, 8].

    Raises:
        ConfigError: it has another form.
    """
    cores: list[int] = []
    for word in filter(None, text.split(",")):
        first, dash, last = word.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or int(last or first) < int(first):
            raise ConfigError(f"cores {text!r}: {word!r} is not a number or a range such as 0-51")
        cores += range(int(first), int(last or first) + 1)
    return cores


def show_cores(cores: list[int]) -> str:
    """Return [0, 1, 2, 3, 8] as ``"0-3,8"``; the order is that of the numbers."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(f"{first}-{last}" if first != last else f"{first}" for first, last in runs)
