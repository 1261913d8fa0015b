"""Points of a search: degrees of the layout, and for each the other settings that are searched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from megads.config.rules.advice import divisors
from megads.config.schema import RunConfig
from megads.families.decoder import spec_of
from megads.plan.search import ask as names
from megads.plan.search.ask import Ask

MOST_TENSOR, MOST_CHUNKS, MOST_COUNTS_OF_CHUNKS = 64, 12, 3
TOKENS_PER_MICRO_BATCH = 1 << 16
"""The most that are tried, per data-parallel rank."""

ZERO_STAGES = (1, 2, 3)
"""ZeRO 0 keeps more than 1 and sends as much; it is tried where the user gives it."""

RECOMPUTES = ("none", "selective", "full")
"""From the fastest to the smallest."""


class Degrees(NamedTuple):
    """How ranks are split."""

    tensor: int
    pipeline: int
    sequence: int
    data: int


class Point(NamedTuple):
    """One candidate. ``chunks`` 0: the setting stays as it is."""

    degrees: Degrees
    zero: int
    micro: int
    steps: int
    recompute: str
    schedule: str
    chunks: int

    def change(self, ask: Ask, *, scatter: bool) -> dict[str, Any]:
        """Return the values of the settings that are searched, by dotted name; those of the user are not among them."""
        degrees = self.degrees
        found: dict[str, Any] = {
            names.TP: degrees.tensor,
            names.PP: degrees.pipeline,
            names.SP: degrees.sequence,
            names.ZERO: self.zero,
            names.MICRO: self.micro,
            names.RECOMPUTE: self.recompute,
            names.SCATTER: scatter,
        }
        if not (ask.holds(names.PER_CHUNK) or ask.holds(names.CHUNKS)):
            found |= {names.CHUNKS: self.chunks if self.chunks > 1 else 0, names.PER_CHUNK: 0}
        found[names.SCHEDULE] = self.schedule if degrees.pipeline > 1 else "auto"
        found = {name: value for name, value in found.items() if not ask.holds(name)}
        if ask.batch and not ask.holds(names.STEPS):
            found |= {names.BATCH: ask.batch, names.STEPS: self.steps}
        return found


def degrees_of(ask: Ask, name: str, most: int) -> list[int]:
    """Return the degrees of an axis that are tried: those that divide the ranks, or what the user gives."""
    if ask.holds(name):
        return [int(ask.value(name))]
    return [each for each in divisors(ask.world_size) if each <= most]


def points_of(ask: Ask, run: RunConfig, degrees: Degrees) -> Iterator[Point]:
    """Yield the candidates of one layout.

    Args:
        run: derived, of any layout.
    """
    zeros = (ask.value(names.ZERO),) if ask.holds(names.ZERO) else ZERO_STAGES
    if len(zeros) > 1 and degrees.data * degrees.sequence == 1:
        zeros = (1,)  # nobody to share with
    again = (ask.value(names.RECOMPUTE),) if ask.holds(names.RECOMPUTE) else RECOMPUTES
    for micro, steps in _micro_batches(ask, run, degrees.data):
        for schedule, chunks in _schedules(ask, run, degrees.pipeline):
            for zero in zeros:
                for recompute in again:
                    yield Point(degrees, zero, micro, steps, recompute, schedule, chunks)


def _micro_batches(ask: Ask, run: RunConfig, data: int) -> Iterator[tuple[int, int]]:
    """Yield micro-batch and micro-batches per step."""
    length = max(run.model.seq_length, run.model.decoder_seq_length)
    most = max(1, TOKENS_PER_MICRO_BATCH // length)
    sizes = [1 << power for power in range(most.bit_length())]
    if ask.holds(names.MICRO):
        sizes = [ask.value(names.MICRO)]
    for size in sizes:
        if ask.batch and not ask.holds(names.STEPS):
            if ask.batch % (size * data) == 0:
                yield size, ask.batch // (size * data)
        elif ask.batch:
            if ask.batch == size * ask.value(names.STEPS) * data:
                yield size, ask.value(names.STEPS)
        else:
            yield size, ask.value(names.STEPS)


def _schedules(ask: Ask, run: RunConfig, pipeline: int) -> Iterator[tuple[str, int]]:
    """Yield schedules and chunks per stage."""
    is_free = not ask.holds(names.SCHEDULE)
    if ask.holds(names.CHUNKS) or ask.holds(names.PER_CHUNK):
        yield (ask.value(names.SCHEDULE), 0)
        return
    if pipeline == 1:
        yield ("auto" if is_free else ask.value(names.SCHEDULE)), 1
        return
    given = "" if is_free else ask.value(names.SCHEDULE)
    for schedule in ("1f1b", "zb-h1"):
        if given in ("", "auto", schedule):
            yield schedule if is_free or given == schedule else "auto", 1
        if given == "auto":
            break
    if given in ("", "auto", "interleaved"):
        for chunks in _chunks(spec_of(run.model).num_layers, pipeline):
            yield given or "interleaved", chunks


def _chunks(layers: int, pipeline: int) -> list[int]:
    """Return counts of virtual stages: those with equal layers, else two."""
    most = min(MOST_CHUNKS, layers // pipeline)
    even = [count for count in range(2, most + 1) if layers % (pipeline * count) == 0]
    if len(even) > MOST_COUNTS_OF_CHUNKS:
        even = [even[0], even[len(even) // 2], even[-1]]
    return even or ([2] if most >= 2 else [])


def smallest_of(ask: Ask, point: Point) -> Point:
    """Return the candidate of a layout that needs least memory."""
    held = ask.holds(names.CHUNKS) or ask.holds(names.PER_CHUNK) or ask.holds(names.SCHEDULE)
    micro = point.micro if ask.holds(names.MICRO) or (ask.batch and ask.holds(names.STEPS)) else 1
    return point._replace(
        zero=point.zero if ask.holds(names.ZERO) else 3,
        micro=micro,
        steps=point.steps * point.micro // micro if ask.batch else point.steps,
        recompute=point.recompute if ask.holds(names.RECOMPUTE) else "full",
        schedule=point.schedule if held or point.degrees.pipeline == 1 else "1f1b",
        chunks=point.chunks if held else 1,
    )


def smallest_recomputes(ask: Ask, smallest: Point) -> tuple[str, ...]:
    """Return the recomputations of which one needs least memory: under zb-h1 inputs that wait can outweigh the rest."""
    is_free = smallest.schedule == "zb-h1" and not ask.holds(names.RECOMPUTE)
    return RECOMPUTES if is_free else (smallest.recompute,)


def needs_more(point: Point, full: Point) -> bool:
    """Return whether ``point`` needs at least as much memory as ``full``, of the same layout."""
    return (
        (point.schedule, point.chunks) == (full.schedule, full.chunks)
        and point.zero <= full.zero
        and point.micro >= full.micro
        and RECOMPUTES.index(point.recompute) <= RECOMPUTES.index(full.recompute)
        and (point.schedule != "zb-h1" or point.recompute == full.recompute)
    )
