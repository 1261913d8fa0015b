"""The files of a stage, weighted by its mixture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from megads.config.data_stages.table import DataStage, StageTable
from megads.config.data_stages.views import runs_of_stages
from megads.config.schema import RunConfig
from megads.data.datasets import read_shards, uses_demo
from megads.data.sources.file_list import Shard, parse_lines, read_file_list
from megads.errors import DataError
from megads.text.plural import listed


def list_of_stage(run: RunConfig, table: StageTable, stage: DataStage) -> list[Shard]:
    """Return the files of ``stage`` with the weights of its mixture; of ``run`` where it names none of its own.

    Raises:
        DataError: a list cannot be read or is not understood, or the mixture names a corpus that is not in it.
    """
    where = f"{table.file}:{stage.line}: stage {stage.name}"
    if stage.data.lines:
        shards = parse_lines(stage.data.lines, Path(table.file).parent, where)
    elif stage.data.file_list:
        shards = read_file_list(Path(stage.data.file_list), name=where)
    else:
        shards = read_shards(run)
    return mixed(shards, dict(stage.data.mixture), where) if stage.data.mixture else shards


def mixed(shards: Sequence[Shard], mixture: dict[str, float], where: str) -> list[Shard]:
    """Return ``shards`` with weights by which each corpus has its share of ``mixture``; of others nothing is drawn.

    The files of a corpus keep their weights among each other.

    Raises:
        DataError: a corpus of the mixture is not there, or all of its files have a weight of 0.
    """
    totals: dict[str, float] = {}
    for shard in shards:
        totals[shard.corpus] = totals.get(shard.corpus, 0.0) + shard.weight
    for name, share in mixture.items():
        if name not in totals:
            known = listed(sorted(totals)[:20])
            raise DataError(f"{where}: mixture: no corpus {name!r} in its data, which has {known}")
        if share > 0 and not totals[name] > 0:
            raise DataError(f"{where}: mixture: every file of corpus {name!r} has a weight of 0 in its data")
    whole = math.fsum(mixture.values())
    return [
        replace(shard, weight=shard.weight / totals[shard.corpus] * mixture.get(shard.corpus, 0.0) / whole)
        if totals[shard.corpus] > 0
        else shard
        for shard in shards
    ]


def stages_with_files(run: RunConfig) -> list[tuple[DataStage, RunConfig, list[Shard]]]:
    """Return every stage, a run that does it alone, and its files; none where it trains on the demo corpus.

    Raises:
        DataError: as :func:`list_of_stage`.
    """
    table = StageTable.of(run)
    if table is None:
        return []
    return [
        (stage, alone, [] if trains_on_demo(run, stage) else list_of_stage(run, table, stage))
        for stage, alone in runs_of_stages(run)
    ]


def lists_of(run: RunConfig) -> tuple[list[Path], list[str]]:
    """Return the data lists that the stages of ``run`` name, and the lines that stand in their file."""
    table = StageTable.of(run)
    found = [stage.data for stage in table.stages] if table else []
    lines = [line for data in found for line in data.lines]
    return [Path(name) for name in dict.fromkeys(data.file_list for data in found) if name], lines


def trains_on_demo(run: RunConfig, stage: DataStage) -> bool:
    """Return whether a stage is drawn from the demo corpus."""
    return uses_demo(run) and not stage.data.is_named
