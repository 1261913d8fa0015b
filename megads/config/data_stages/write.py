"""Write stages as a file that can be read again, wherever it lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from megads.config.data_stages.read import GivenStage
from megads.config.data_stages.table import DataStage, StageData, StageRate
from megads.text.quoting import split_words


def stages_text(stages: Sequence[GivenStage], title: str, folder: Path) -> str:
    """Return the file of ``stages``, with ``title`` as a comment.

    Args:
        folder: where relative prefixes of lines start; they become absolute.
    """
    rows = [_row(stage, folder) for stage in stages]
    text = yaml.safe_dump({"stages": rows}, sort_keys=False, width=110, default_flow_style=None)
    return f"# {title}\n{text}"


def past_stage(stage: DataStage, iters: int, rate: float | None) -> GivenStage:
    """Return the first ``iters`` steps of a planned stage as one that has been trained.

    Args:
        rate: the learning rate at its end; None: stages give none.
    """
    return GivenStage(
        *(stage.name, "", 0, "samples", iters * stage.batch, stage.data, stage.seq, stage.batch),
        seed=None if stage.offset else stage.seed,
        planned=0 if stage.offset else stage.planned,
        rate=None if rate is None else StageRate(peak=rate),
        past=True,
    )


def _row(stage: GivenStage, folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"name": stage.name, stage.unit: stage.length}
    row |= {"past": True} if stage.past else {}
    row |= {"seq": stage.seq} if stage.seq else {}
    row |= {"global_batch": stage.batch} if stage.batch else {}
    row |= {} if stage.seed is None else {"seed": stage.seed}
    row |= {"planned": stage.planned} if stage.planned > stage.length else {}
    row |= _data(stage.data, folder)
    return row | ({"lr": _rate(stage.rate)} if stage.rate else {})


def _data(data: StageData, folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"data": data.file_list} if data.file_list else {}
    row |= {"data": [_absolute(line, folder) for line in data.lines]} if data.lines else {}
    return row | ({"mixture": dict(data.mixture)} if data.mixture else {})


def _absolute(line: str, folder: Path) -> str:
    words = split_words(line)
    if len(words) > 1 and not words[1].startswith(("$", "~", "/")):
        words[1] = str(folder.absolute() / words[1])
    return " ".join(f'"{word}"' if " " in word else word for word in words)


def _rate(rate: StageRate) -> Any:
    found = {each.name: value for each in fields(rate) if (value := getattr(rate, each.name)) is not None}
    row = {name: value if isinstance(value, float) else str(value) for name, value in found.items()}
    if rate.to is None:
        row.pop("shape")
    return row or "constant"
