"""Rules of a run whose data has stages: what a run of one stage alone would break, it breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from megads.config.data_stages.table import StageTable
from megads.config.data_stages.views import runs_of_stages
from megads.config.rules.advice import Problem
from megads.config.schema import RunConfig


def stages(
    run: RunConfig, world_size: int, problem_of: Callable[[RunConfig, int], Problem | None]
) -> Iterator[Problem]:
    """Check the sizes that differ between stages; ``problem_of`` checks a run without stages."""
    table, seen = StageTable.of(run), {(run.model.seq_length, run.train.global_batch)}
    for stage, alone in runs_of_stages(run):
        if (stage.seq, stage.batch) in seen:
            continue
        seen.add((stage.seq, stage.batch))
        if table and (problem := problem_of(alone, world_size)) is not None:
            yield Problem(
                f"{table.file}:{stage.line}: stage {stage.name}: {problem.text}",
                otherwise="change seq or global_batch of the stage, or the layout",
                rule=problem.rule,
            )
