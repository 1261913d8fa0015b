"""The table of stages in a run's banner: steps, tokens, sample length, learning rate and corpora of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from megads.config.data_stages.table import DataStage, StageTable
from megads.config.schedule.rates import Schedule
from megads.config.schema import RunConfig
from megads.data.sources.epochs import Share, train_shares
from megads.data.stages.shards import stages_with_files
from megads.text.plural import listed, plural
from megads.text.units import count

MOST_CORPORA = 4
OFTEN = 4.0
"""Epochs of a corpus over all stages; beyond about four, repeated text teaches clearly less (arXiv 2305.16264)."""


def stage_rows(run: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield the rows of the banner for a run whose data has stages; none for another.

    Raises:
        DataError: a list cannot be read, or a file of it not opened.
    """
    table = StageTable.of(run)
    if table is None:
        return
    yield "", f"{plural(len(table.stages), 'stage')} of {table.file}, {count(table.tokens)} tokens"
    files = {stage.name: (alone, shards) for stage, alone, shards in stages_with_files(run)}
    schedule, total = Schedule.of(run), dict[str, float]()
    rows = []
    for stage, end in zip(table.stages, table.iteration_ends(), strict=True):
        alone, shards = files[stage.name]
        shares = train_shares(alone, shards) if shards else []
        for share in shares:
            total[share.corpus] = total.get(share.corpus, 0.0) + share.epochs
        rows.append((*_columns(stage, end, schedule), _corpora(stage, shares)))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for *columns, corpora in rows:
        yield "", "  ".join([*(f"{text:{width}}" for text, width in zip(columns, widths, strict=True)), corpora])
    if often := sorted(name for name, epochs in total.items() if epochs > OFTEN):
        shown = [f"{name} {total[name]:.3g}" for name in often[:MOST_CORPORA]]
        yield "", f"read often: {listed(shown)} epochs in all stages together"


def _columns(stage: DataStage, end: int, schedule: Schedule) -> tuple[str, str, str, str, str]:
    lr = schedule.lr(stage.first), schedule.lr(max(stage.first, stage.end - stage.batch))
    rates = f"lr {lr[0]:.3g}" if lr[0] == lr[1] else f"lr {lr[0]:.3g} to {lr[1]:.3g}"
    steps = f"steps {end - stage.iters + 1}-{end}"
    return stage.name, steps, f"{count(stage.tokens)} tokens", f"{stage.batch} x {stage.seq}", rates


def _corpora(stage: DataStage, shares: Sequence[Share]) -> str:
    read = stage.offset + stage.samples
    plan = "; reads on" if stage.offset else ""
    plan += f"; order made for {plural(stage.planned, 'sample')}" if stage.planned > read else ""
    if not shares:
        return f"demo corpus{plan}"
    shown = [f"{each.corpus} {each.weight:.1%} ({each.epochs:.3g} epochs)" for each in shares[:MOST_CORPORA]]
    more = f", {len(shares) - MOST_CORPORA} more" if len(shares) > MOST_CORPORA else ""
    return ", ".join(shown) + more + plan
