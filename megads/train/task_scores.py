"""Accuracy and F1 of a model on the files of a task, every example counted once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from megads.comm.groups import Groups
from megads.data.loading.batches import Batches, read_ahead
from megads.data.tasks.samples import FileSamples
from megads.data.tasks.task import short_names
from megads.engine.base import Engine

AT_ONCE = 8
"""Micro-batches of a rank between two collectives."""


@dataclass(frozen=True)
class Score:
    """How a model does on some examples.

    ``pairs`` counts (label, prediction) of the last class, as F1 needs it: both, label alone, prediction alone.
    """

    correct: int
    total: int
    loss: float  # summed, in nats
    pairs: tuple[int, int, int] = (0, 0, 0)

    def __add__(self, other: Score) -> Score:
        both, missed, wrong = (a + b for a, b in zip(self.pairs, other.pairs, strict=True))
        total, loss = self.total + other.total, self.loss + other.loss
        return Score(self.correct + other.correct, total, loss, (both, missed, wrong))

    @property
    def accuracy(self) -> float:
        """From 0 to 1."""
        return self.correct / self.total

    @property
    def f1(self) -> float:
        """Of the last class; 0 where neither labels nor predictions have it."""
        both, missed, wrong = self.pairs
        return 2 * both / (2 * both + missed + wrong) if both + missed + wrong else 0.0


@dataclass(frozen=True)
class TaskScores:
    """The scores of all files."""

    files: Mapping[str, Score]  # by a short name
    has_f1: bool

    @property
    def overall(self) -> Score:
        """Of the examples of all files."""
        total = Score(0, 0, 0.0)
        for score in self.files.values():
            total += score
        return total

    def row(self) -> dict[str, float]:
        """Return the entries of a metrics row."""
        overall, many = self.overall, self.files if len(self.files) > 1 else {}
        row = {"valid_loss": overall.loss / overall.total, "valid_accuracy": overall.accuracy}
        row |= {f"valid_accuracy/{name}": score.accuracy for name, score in many.items()}
        if self.has_f1:
            row |= {"valid_f1": overall.f1, **{f"valid_f1/{name}": score.f1 for name, score in many.items()}}
        return row

    def line(self) -> str:
        """Return ``accuracy 87.50% (7 of 8), F1 0.8571, loss 0.4321; dev_matched 75.00%, dev_mismatched 100.00%``."""
        overall = self.overall
        f1 = f", F1 {overall.f1:.4f}" if self.has_f1 else ""
        text = (
            f"accuracy {overall.accuracy:.2%} ({overall.correct} of {overall.total}){f1}, "
            f"loss {overall.loss / overall.total:.4f}"
        )
        if len(self.files) < 2:
            return text
        return f"{text}; {', '.join(f'{name} {score.accuracy:.2%}' for name, score in self.files.items())}"


def score_files(
    engine: Engine,
    files: Sequence[FileSamples],
    groups: Groups,
    device: torch.device,
    *,
    workers: int,
    has_f1: bool,
    classes: int,
    give_up: Callable[[], object] = lambda: False,
) -> TaskScores | None:
    """Return the scores, the same on every rank; None when it was given up. Collective.

    Args:
        classes: of the task; F1 is that of the last.
        give_up: asked between batches; the same on every rank.
    """
    found: dict[str, Score] = {}
    for name, samples in zip(short_names([each.file.path for each in files]), files, strict=True):
        if found and give_up():
            return None
        answers = answers_of(engine, samples, groups, device, workers=workers, give_up=give_up)
        if answers is None:
            return None
        found[name] = _score(answers, samples, classes - 1)
    return TaskScores(found, has_f1)


class Answer(NamedTuple):
    """What a model makes of an example."""

    loss: float  # in nats
    predicted: int  # number of the class or choice
    probability: float  # of it


def answers_of(
    engine: Engine,
    samples: FileSamples,
    groups: Groups,
    device: torch.device,
    *,
    workers: int,
    give_up: Callable[[], object] = lambda: False,
) -> list[Answer] | None:
    """Return the answer to every example of a file, the same on every rank; None when it was given up. Collective."""
    found: list[Answer] = []
    micro_batch = samples.block // groups.data_size
    batches = Batches(samples, micro_batch, groups.data_rank, groups.data_size)  # type: ignore[arg-type]
    with read_ahead(batches, workers, AT_ONCE, samples.width) as reader:
        for first in range(0, samples.blocks, AT_ONCE):
            if first and give_up():
                return None
            count = min(AT_ONCE, samples.blocks - first)
            table = engine.eval_losses([next(reader).to(device) for _ in range(count)]).tolist()
            left = len(samples.file.examples) - len(found)
            for number, (loss, counts, predicted, probability) in enumerate(table):
                assert counts == (number < left), "an example was scored no time or twice"
                if counts:
                    found.append(Answer(loss, round(predicted), probability))
    assert len(found) == len(samples.file.examples)
    return found


def _score(answers: Sequence[Answer], samples: FileSamples, last_class: int) -> Score:
    """Return the score of the answers to all examples of a file."""
    counted = [
        (each.loss, example.label, each.predicted) for each, example in zip(answers, samples.file.examples, strict=True)
    ]
    is_last = [(label == last_class, predicted == last_class) for _, label, predicted in counted]
    return Score(
        sum(label == predicted for _, label, predicted in counted),
        len(counted),
        sum(loss for loss, *_ in counted),
        (is_last.count((True, True)), is_last.count((True, False)), is_last.count((False, True))),
    )


def best_row(progress: Any) -> dict[str, float]:
    """Return the entries of a metrics row about the best checkpoint so far; none without one."""
    if progress.best_accuracy is None:
        return {}
    return {"best_accuracy": progress.best_accuracy, "best_iteration": progress.best_iteration}
