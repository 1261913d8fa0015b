"""Plans to draw: one made by hand, one that was searched for."""

from __future__ import annotations

from functools import cache

from megads.config.sources.resolve import resolve
from megads.monitor.plots.plan.data import Planned, PlannedHosts, PlannedLayout
from megads.monitor.plots.plan.timeline import Block, PlannedTimeline
from megads.plan.places.place import place_of
from megads.plan.search.search import Found, search

MEMORY = ("weights", "gradients", "optimizer", "activations")
TIMELINE = PlannedTimeline(
    schedule="1f1b",
    stages=(
        (Block("F", 0, 0, 0.0, 1.0), Block("B", 0, 0, 4.0, 6.0), Block("optimizer", -1, 0, 6.0, 6.5)),
        (Block("F", 0, 0, 1.0, 2.0), Block("B", 0, 0, 2.0, 4.0), Block("reduce", -1, 0, 4.0, 5.0)),
    ),
    micro_batches=1,
    of_micro_batches=7,
    of_stages=2,
    length_s=6.5,
    step_s=20.0,
    idle=0.5,
)


def layout(name: str, share: float, days: float | None = None) -> PlannedLayout:
    """Return a layout whose numbers are ``share`` of some."""
    return PlannedLayout(
        name,
        {kind: share * number for number, kind in enumerate(MEMORY, 4)},
        {"compute": 3.0 / share, "communication": 0.75},
        share * 64_000,
        share * 0.5,
        f"TP={name[-1]} ZERO_STAGE=1",
        days,
    )


def by_hand(count: int = 3) -> Planned:
    """Return a plan of some layouts."""
    layouts = tuple(
        layout(f"PP2 <DP> ZeRO1 micro {each}", 1 - 0.1 * each if each < 9 else 0.1, 12.5 - each)
        for each in range(count)
    )
    return Planned("7B & more", ("ESTIMATED, not measured", "<from> a page"), 30.0, 40.0, layouts, TIMELINE)


def of_hosts() -> Planned:
    """Return a plan over numbers of hosts, on the first of which nothing fits."""
    hosts = [PlannedHosts(1, 8, "does not fit", 0.0)]
    hosts += [PlannedHosts(2**each, 8 * 2**each, f"TP2 DP{4 * 2**each}", 900.0 * 1.9**each) for each in range(1, 6)]
    return Planned("70B on h100", ("ESTIMATED",), hosts=tuple(hosts))


@cache
def searched(**env: str) -> Found:
    """Return what a search for a 7B model on two hosts finds."""
    resolved = resolve("7B", env={"NHOSTS": "2", **env}, machine="generic", num_hosts=2)
    return search(resolved, place_of("a100"), 2, top=3)
