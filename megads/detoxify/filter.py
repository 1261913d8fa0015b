"""Step 3: the least toxic texts."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from megads.detoxify.output_lines import OutputLines
from megads.detoxify.records import read_records, score_of
from megads.errors import DataError

TOXIC = 0.5
"""Scores above this are toxic."""


@dataclass(frozen=True)
class Summary:
    """Scores of some texts; mean, std (of the whole set) and the ends are nan without texts."""

    count: int
    mean: float
    std: float
    least: float
    most: float


@dataclass(frozen=True)
class Filtered:
    """What was kept, and of what.

    Attributes:
        lines: of the file.
        unscored: those without a score, which are dropped.
        all: of the texts with a score.
        toxic: of those above :data:`TOXIC`.
        nontoxic: of the others.
        kept: of those that are kept.
    """

    lines: int
    unscored: int
    all: Summary
    toxic: Summary
    nontoxic: Summary
    kept: Summary


def summary_of(scores: Iterable[float]) -> Summary:
    """Return the summary of scores."""
    found = list(scores)
    if not found:
        return Summary(0, *[math.nan] * 4)
    mean = math.fsum(found) / len(found)
    variance = math.fsum((each - mean) ** 2 for each in found) / len(found)
    return Summary(len(found), mean, math.sqrt(variance), min(found), max(found))


def least_toxic(scores: Sequence[float | None], keep: float) -> list[tuple[float, int]]:
    """Return score and place of the texts that are kept, least toxic first, ties in order.

    They are the share ``keep`` of all lines, also of those without a score, rounded down, as in Megatron-LM. The share
    is what its digits say: 0.57 of 100 lines are 57, though the nearest float is below 0.57.
    """
    scored = sorted((score, place) for place, score in enumerate(scores) if score is not None)
    return scored[: math.floor(len(scores) * Fraction(repr(keep)))]


def filter_file(
    source: Path, target: Path, *, keep: float, seed: int, attribute: str = "toxicity", overwrite: bool = False
) -> Filtered:
    """Write the least toxic records of ``source`` to ``target``, in an order that ``seed`` decides.

    Raises:
        DataError: a line is wrong, nothing is left, or the file cannot be written.
    """
    scores, digest = [], hashlib.blake2b(digest_size=16)
    for where, record in read_records(source):
        scores.append(score_of(where, record, attribute))
        digest.update(json.dumps(record).encode())
    kept = least_toxic(scores, keep)
    valid = [score for score in scores if score is not None]
    if not kept:
        raise DataError(f"{source}: {_why_none(len(scores), len(valid), keep)}; nothing is kept")
    about = {"content": digest.hexdigest(), "keep": keep, "seed": seed, "attribute": attribute}
    with OutputLines(target, about, overwrite=overwrite) as lines:
        if not lines.is_complete:
            lines.write(_shuffled(source, {place for _, place in kept}, seed)[lines.done :])
            lines.publish()
    return Filtered(
        len(scores),
        len(scores) - len(valid),
        summary_of(valid),
        summary_of(each for each in valid if each > TOXIC),
        summary_of(each for each in valid if each <= TOXIC),
        summary_of(score for score, _ in kept),
    )


def _why_none(lines: int, scored: int, keep: float) -> str:
    if not lines:
        return "has no line"
    return f"a share of {keep:g} of its {lines} lines is none" if scored else f"none of its {lines} lines has a score"


def _shuffled(source: Path, places: Collection[int], seed: int) -> list[dict[str, Any]]:
    records = [record for place, (_, record) in enumerate(read_records(source)) if place in places]
    random.Random(seed).shuffle(records)
    return records
