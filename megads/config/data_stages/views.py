"""A stage of a run as a run of its own: what reads data or counts operations sees no difference."""

from __future__ import annotations

from typing import Any

from megads.config.data_stages.table import DataStage, StageTable
from megads.config.schema import RunConfig


def run_of_stage(run: RunConfig, stage: DataStage, *, evaluates: bool = False) -> RunConfig:
    """Return the settings of a run that does ``stage`` and nothing else, from its sample 0 on.

    Args:
        run: derived.
        stage: one of its stages.
        evaluates: it keeps its validation and test samples; else it has none.
    """
    batch = run.train.micro_batch * max(1, run.parallel.data)
    data: dict[str, Any] = {"stages": "", "stage_table": ""}
    if stage.data.lines or stage.data.mixture:
        data |= {"path": "", "file_list": f"stage {stage.name}"}
    elif stage.data.file_list:
        data |= {"path": "", "file_list": stage.data.file_list}
    train: dict[str, Any] = {
        "global_batch": stage.batch,
        "grad_acc_steps": max(1, stage.batch // batch),
        "train_iters": stage.iters,
        "train_samples": stage.samples,
        "train_tokens": stage.tokens,
        "planned_iters": 0,
        "planned_samples": stage.planned,
        "planned_tokens": 0,
    }
    if stage.seed:
        train["data_seed"] = run.train.seed_of_data + stage.seed
    if stage.past:
        train["evaluate_only"] = True  # so that an order is made for one batch
    if not evaluates:
        train |= {"eval_iters": 0, "eval_interval": 0}
    return run.model_copy(
        update={
            "model": run.model.model_copy(update={"seq_length": stage.seq}),
            "train": run.train.model_copy(update=train),
            "data": run.data.model_copy(update=data),
        }
    )


def runs_of_stages(run: RunConfig) -> list[tuple[DataStage, RunConfig]]:
    """Return every stage of ``run`` as a run; the first has its validation and test samples. Empty without stages."""
    table = StageTable.of(run)
    stages = table.stages if table else ()
    return [(stage, run_of_stage(run, stage, evaluates=not number)) for number, stage in enumerate(stages)]


def tokens_until(run: RunConfig, consumed: int) -> int:
    """Return the tokens of the first ``consumed`` samples of a derived run, padding of tasks included."""
    table = StageTable.of(run)
    return table.tokens_until(consumed) if table else consumed * run.sample_tokens


def steps_vary(run: RunConfig) -> bool:
    """Return whether the steps of a derived run differ in size between its stages."""
    table = StageTable.of(run)
    return table is not None and len({(each.batch, each.seq) for each in table.stages}) > 1
