"""What is kept of a step whose numbers were not finite: ``RUN/nonfinite-0000007/``, enough to compute it again.

``report.json`` has where it began and the samples of that micro-batch; ``checkpoints/`` has the weights of the step, if
they were kept, in the format of all checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from megads.config.run_folder import write_whole
from megads.errors import ConfigError
from megads.storage.reading import Bounds, read_json
from megads.train.numbers.operators import Origin

REPORT, CHECKPOINTS = "report.json", "checkpoints"
PREFIX = "nonfinite-"


@dataclass(frozen=True)
class Kept:
    """One micro-batch of one rank, and where its numbers stopped being finite.

    Attributes:
        iteration: of the step, from 1.
        origin: see :class:`Origin`.
        rank: that found it.
        first_sample: number in the run of the micro-batch's first sample, from which its dropout follows.
        batch: ``[rows][width]`` tokens, as loaders give them.
        micro_batches: that the rank had in the step.
        loss_scale: of the step.
        end: the token that ends a document; None where no setting needs it.
    """

    iteration: int
    origin: Origin
    rank: int
    host: str
    first_sample: int
    batch: list[list[int]]
    micro_batches: int
    loss_scale: float
    end: int | None = None


def folder_of(run_dir: Path, iteration: int) -> Path:
    """Return the folder of a step."""
    return run_dir / f"{PREFIX}{iteration:07d}"


def write_kept(folder: Path, kept: Kept) -> None:
    """Write the report.

    Raises:
        ConfigError: the folder cannot be written, or its disk is full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from None
    write_whole(folder / REPORT, json.dumps(asdict(kept)) + "\n")


def read_kept(folder: Path) -> Kept:
    """Return the report in ``folder``.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    path = folder / REPORT
    try:
        return _kept(read_json(path))
    except OSError as error:
        hint = f"pass a folder such as RUN/{PREFIX}0000007, which a run makes of a step with NaN or Inf"
        raise ConfigError(f"{path}: {error.strerror}; {hint}") from None
    except (Bounds, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: damaged: {error}; the run writes it again when the step goes wrong again") from None


def _kept(content: Mapping[str, Any]) -> Kept:
    names = {each.name for each in fields(Origin)}
    given = content["origin"]
    if set(given) != names:
        raise ValueError(f"origin has {', '.join(sorted(set(given) ^ names))}")
    batch = [[int(token) for token in row] for row in content["batch"]]
    if not batch or len({len(row) for row in batch}) != 1:
        raise ValueError("batch has no rows of one length")
    end = content["end"]
    return Kept(
        int(content["iteration"]),
        Origin(**{**given, "shape": tuple(given["shape"])}),
        int(content["rank"]),
        str(content["host"]),
        int(content["first_sample"]),
        batch,
        int(content["micro_batches"]),
        float(content["loss_scale"]),
        None if end is None else int(end),
    )
