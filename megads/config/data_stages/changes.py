"""What differs between the stages that a checkpoint was trained with and those that resume from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from megads.config.data_stages.table import DataStage, StageTable
from megads.config.schema import RunConfig
from megads.text.plural import plural

SIZES = {"iters": "iterations", "batch": "samples a step", "seq": "tokens a sample"}
"""What decides where a stage lies in the run."""


def position_problem(before: StageTable | None, now: StageTable, consumed: int) -> str:
    """Return why ``consumed`` samples of ``before`` are not the first ones of ``now``; empty: they are.

    A stage that is over must have the sizes it had, and the present one must not end before. Without ``before``
    the run had one mixture.
    """
    where = f"{now.file}:{now.at(consumed).line}"
    if consumed > now.samples:
        return f"{where}: the stages end after {now.samples} samples, and {consumed} are consumed; make the last longer"
    for old, new in zip(_begun(before, consumed), now.stages, strict=False):
        is_over = old.end <= consumed
        for key, what in SIZES.items():
            was, is_ = getattr(old, key), getattr(new, key)
            if was != is_ and (is_over or key != "iters"):
                return (
                    f"{now.file}:{new.line}: stage {new.name} has {is_} {what}, and the checkpoint was trained with "
                    f"{was}; only stages that have not begun may change, and the present one may become longer"
                )
        if not is_over and new.end < consumed:
            return (
                f"{now.file}:{new.line}: stage {new.name} ends after {new.end} samples of the run, and {consumed} are "
                "consumed; make it longer"
            )
    return ""


def changes(before: StageTable | None, now: StageTable | None, consumed: int, *, grows: bool = False) -> Iterator[str]:
    """Yield a line for every difference that the samples behind ``consumed`` show, or that was trained on.

    ``grows``: the order is the same for every longer plan (``SAMPLE_ORDER=growing``).
    """
    if now is not None and now.at(max(0, consumed - 1)).past:
        return  # a branch: what it was trained on is the past of its stages
    if before is None or now is None:
        had, has = (plural(len(each.stages), "stage") if each else "no stages" for each in (before, now))
        if before is not now:
            yield f"had {had} of data, this run has {has}: the sample order changes, and samples may repeat"
        return
    for old, new in zip(_begun(before, consumed), now.stages, strict=False):
        was, is_ = _data(old), _data(new)
        if was != is_:
            over = "which is over" if old.end <= consumed else "the sample order changes, and samples may repeat"
            yield f"had stage {old.name} of {was}, this run has {is_}: {over}"
        elif old.end > consumed and old.planned != new.planned and not grows:
            yield (
                f"had stage {old.name} planned for {old.planned} samples, this run plans {new.planned}: the sample "
                "order changes, and samples may repeat; 'planned' from the first step on avoids that"
            )


def _begun(table: StageTable | None, consumed: int) -> list[DataStage]:
    return [each for each in table.stages if each.first < consumed] if table else []


def _data(stage: DataStage) -> str:
    """Return what a stage is drawn from, in words; the folder of a list does not count."""
    data = stage.data
    words = [Path(data.file_list).name or (f"{plural(len(data.lines), 'line')} of data" if data.lines else "")]
    words += [f"mixture {', '.join(f'{name} {share:g}' for name, share in data.mixture)}" if data.mixture else ""]
    return " ".join(filter(None, [*words, f"seed {stage.seed}"]))


def same_files(before: str, now: str, run: RunConfig, consumed: int) -> bool:
    """Return whether the files of the next samples are those of the checkpoint.

    Args:
        before: of the checkpoint: what differs when a file or a weight does; of stages a word each.
        now: the same of ``run``.
        run: derived.
        consumed: samples of the checkpoint.
    """
    table = StageTable.of(run)
    if table is None:
        return before == now
    index, were, are = table.index_at(consumed), before.split(), now.split()
    if consumed == table.stages[index].first:
        return True  # nothing of it has been read
    return index < len(were) and were[index] == are[index]
