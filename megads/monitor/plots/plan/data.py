"""What pictures of a plan show: numbers of layouts, of numbers of hosts, and a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import get_args

from megads.config.schema import RunConfig
from megads.config.stages import schedule_of, virtual_stages
from megads.monitor.plots.plan.timeline import PlannedTimeline, timeline_of
from megads.plan.memory import GIB, Memory, count_parameters
from megads.plan.search.ask import Ask
from megads.plan.search.hosts import Row
from megads.plan.search.search import Candidate, Found
from megads.plan.time.step import Kind
from megads.text.plural import plural
from megads.text.units import count

MOST_LAYOUTS = 12


@dataclass(frozen=True)
class PlannedLayout:
    """A layout that fits.

    Attributes:
        name: its degrees, in a few letters.
        memory_gib: of the fullest stage, by kind.
        step_s: by kind of what takes the time.
        tokens_per_s: of all ranks.
        mfu: with causal attention counted in full.
        settings: as a user types them.
        days: of the whole run; None: not known.
    """

    name: str
    memory_gib: dict[str, float]
    step_s: dict[str, float]
    tokens_per_s: float
    mfu: float
    settings: str
    days: float | None = None


@dataclass(frozen=True)
class PlannedHosts:
    """The best layout on a number of hosts; 0 tokens/s: there is none, ``layout`` says why."""

    hosts: int
    ranks: int
    layout: str
    tokens_per_s: float


@dataclass(frozen=True)
class Planned:
    """All that is drawn.

    Attributes:
        lines: about the run and the place, below the title.
        limit_gib: what a rank may take of its device; 0: no memory is shown.
        device_gib: memory of a device.
        timeline: of the best layout; None: it has no pipeline.
        hosts: instead of layouts, over numbers of hosts.
    """

    title: str
    lines: tuple[str, ...] = ()
    limit_gib: float = 0.0
    device_gib: float = 0.0
    layouts: tuple[PlannedLayout, ...] = ()
    timeline: PlannedTimeline | None = None
    hosts: tuple[PlannedHosts, ...] = ()


def planned_layouts(found: Found, days: Sequence[float] = ()) -> Planned:
    """Return what is drawn of the layouts that a search proposes, and of losers that fit but are slower.

    Args:
        days: of the runs with the best layouts, where they are known.
    """
    slower = [each for each in found.losers if each.kind == "fits" and each.time is not None and not each.problem]
    several = [*found.best, *slower][:MOST_LAYOUTS]
    spent = [*days, *([None] * len(several))]
    ask, (run, _, time) = found.ask, found.best[0].timed()
    return Planned(
        f"{_title(run, ask)}: {plural(ask.num_hosts, 'host', ',')} x {ask.ranks_per_host}",
        (*_lines(run, ask), f"best: {_settings(found.best[0])}"),
        ask.limit_bytes / GIB,
        ask.device_bytes / GIB,
        tuple(_layout(candidate, each) for candidate, each in zip(several, spent, strict=False)),
        timeline_of(run, time, ask.place),
    )


def planned_hosts(rows: Sequence[Row]) -> Planned:
    """Return what is drawn of the best layouts on several numbers of hosts, of which one has a layout."""
    hosts = []
    for row in rows:
        if row.best is None:
            hosts.append(PlannedHosts(row.ask.num_hosts, row.ask.world_size, row.problem, 0.0))
            continue
        run, _, time = row.best.timed()
        speed = time.tokens_per_s * time.world_size
        hosts.append(PlannedHosts(row.ask.num_hosts, row.ask.world_size, layout_name(run), speed))
    row = next(row for row in rows if row.best is not None)
    assert row.best is not None
    run = row.best.timed()[0]
    return Planned(_title(run, row.ask), _lines(run, row.ask), hosts=tuple(hosts))


def _title(run: RunConfig, ask: Ask) -> str:
    return f"{run.preset or run.model.family} on {ask.place.name}"


def _lines(run: RunConfig, ask: Ask) -> tuple[str, ...]:
    batch, length = run.train.global_batch, run.model.seq_length
    samples = f"{plural(batch, 'sample', ',')} of {length:,} tokens per step"
    return f"ESTIMATED, not measured: {count(count_parameters(run.model))} parameters, {samples}", ask.place.source


def _settings(candidate: Candidate) -> str:
    return " ".join(f"{name}={value}" for name, value in candidate.settings.items())


def layout_name(run: RunConfig) -> str:
    """Return the degrees of a derived run, those of 1 left out: ``TP4 PP2 DP8 ZeRO1 micro 2``."""
    grid, chunks = run.parallel, virtual_stages(run)
    degrees = {"TP": grid.tensor, "PP": grid.pipeline, "VPP": chunks, "SP": grid.sequence, "DP": grid.data}
    parts = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    parts += [f"ZeRO{grid.zero_stage}", f"micro {run.train.micro_batch}"]
    if run.recompute.granularity != "none":
        parts.append(run.recompute.granularity)
    if schedule_of(run) == "zb-h1" and grid.pipeline > 1:
        parts.append("zb-h1")
    return " ".join(parts)


def _layout(candidate: Candidate, days: float | None) -> PlannedLayout:
    run, memory, time = candidate.timed()
    kinds: tuple[Kind, ...] = get_args(Kind)
    return PlannedLayout(
        layout_name(run),
        {part.name: getattr(memory, part.name) / GIB for part in fields(Memory)},
        {kind: time.share(kind) * time.step_s for kind in kinds},
        time.tokens_per_s * time.world_size,
        time.mfu_full,
        _settings(candidate),
        days,
    )
