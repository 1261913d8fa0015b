"""What ``megads plan`` prints without --nodes: the best layout on numbers of hosts, and what each costs."""

from __future__ import annotations

from collections.abc import Iterator

from megads.cli.plan.question import Question
from megads.cli.plan.report import batch_text, error_lines, grid_cells, number, table
from megads.plan.memory import count_parameters
from megads.plan.search.hosts import Row
from megads.text.units import count

HEAD = (
    *("hosts", "ranks", "TP", "PP", "VPP", "SP", "DP", "ZeRO", "micro", "acc", "recompute", "schedule"),
    *("tokens/s", "MFU", "scaling", "days", "node-hours", "MWh", "t CO2", "jobs"),
)


def sweep_report(question: Question, rows: list[Row]) -> list[str]:
    """Return the table over numbers of hosts; one of ``rows`` has a layout."""
    fitting = [row for row in rows if row.best is not None]
    cells = [_row(question, row, fitting[0]) for row in fitting]
    return [
        *_opening(question, fitting[0]),
        "",
        *table([HEAD, *cells]),
        "",
        *(f"{row.ask.num_hosts:,} x {row.ask.ranks_per_host}: {row.problem}" for row in rows if row.best is None),
        "scaling: tokens/s per device against the first row; all rows have the same batch; --nodes N shows one in full",
    ]


def _row(question: Question, row: Row, first: Row) -> tuple[str, ...]:
    assert row.best is not None
    assert first.best is not None
    run, _, time = row.best.timed()
    found = question.cost_of(row.best, row.ask)
    cost, is_taken = found.campaign, found.queue is not None or not question.place.queues
    scaling = time.tokens_per_s / first.best.timed()[2].tokens_per_s
    return (
        *(f"{row.ask.num_hosts:,}", f"{row.ask.world_size:,}", *grid_cells(run)),
        *(count(time.tokens_per_s * time.world_size), f"{time.mfu_full:.1%}", f"{scaling:.0%}"),
        *(number(cost.days), count(cost.node_hours)),
        number(cost.kwh / 1000) if cost.kwh is not None else "-",
        number(cost.co2_kg / 1000) if cost.co2_kg is not None else "-",
        f"{cost.jobs:,}" if is_taken else "no queue",
    )


def _opening(question: Question, row: Row) -> Iterator[str]:
    assert row.best is not None
    run, place = row.best.timed()[0], question.place
    model = f"{run.preset or run.model.family}, {count(count_parameters(run.model))} parameters"
    yield f"ESTIMATED, not measured: {model}, on {place.name}: {place.per_host} x {place.device.device_name} per host"
    yield f"batch    {batch_text(row.best, row.ask)}"
    yield from error_lines(run, place)
