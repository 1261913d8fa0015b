"""Accuracy and F1 are exact: every example counts once, over any number of data-parallel ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megads.data.tasks.examples import Example, TaskFile
from megads.data.tasks.rows import Packer, TaskRow
from megads.data.tasks.samples import FileSamples
from megads.data.tokenizers.base import Specials
from megads.train.task_scores import Score, TaskScores, score_files


class _Words:
    specials = Specials(cls=1, sep=2, pad=0)

    def encode_plain(self, text: str) -> list[int]:
        return [int(text)]


class _Engine:
    """Gives the class ``token % 2``, and a loss of a tenth of the token; ranks but the asked one are done here too."""

    def __init__(self, samples: dict[str, FileSamples], data_size: int):
        self.samples, self.data_size, self.asked, self.file = samples, data_size, 0, ""

    def eval_losses(self, batches: list[Any]) -> Any:
        found, rows = self.samples[self.file], batches[0].shape[0] * len(batches) * self.data_size
        mine = [found[self.asked + i] for i in range(rows)]
        self.asked += rows
        if self.asked >= len(found):
            self.asked, self.file = 0, "b" if self.file == "a" else ""
        counts = [float(row[-1] >= 0) for row in mine]
        return torch.tensor([[row[1] / 10 * c, c, row[1] % 2 * c, c / 2] for row, c in zip(mine, counts, strict=True)])


def _files(block: int) -> dict[str, FileSamples]:
    pack = Packer(_Words(), TaskRow(4))  # type: ignore[arg-type]
    labels = {"a": [0, 1, 1, 0, 1], "b": [1, 1, 0]}
    return {
        name: FileSamples(
            TaskFile(f"x/{name}", [Example(((str(10 + i), None),), label) for i, label in enumerate(each)]), pack, block
        )
        for name, each in labels.items()
    }


@pytest.mark.parametrize(("micro_batch", "ranks"), [(1, 1), (2, 1), (2, 2), (1, 4), (8, 2)])
def test_every_example_counts_once(micro_batch, ranks):
    files = _files(micro_batch * ranks)
    engine: Any = _Engine(files, ranks)
    engine.file = "a"
    groups: Any = SimpleNamespace(data_rank=ranks - 1, data_size=ranks)
    found = score_files(
        engine, list(files.values()), groups, torch.device("cpu"), workers=0, has_f1=True, classes=2
    )  # fmt: skip
    assert found is not None
    # a: tokens 10 .. 14 are given 0 1 0 1 0, and are 0 1 1 0 1; b: 10 .. 12 are given 0 1 0, and are 1 1 0.
    assert {name: (each.correct, each.total, each.pairs) for name, each in found.files.items()} == {
        "a": (2, 5, (1, 2, 1)),
        "b": (2, 3, (1, 1, 0)),
    }
    assert found.overall.loss == pytest.approx(6.0 + 3.3)
    row = found.row()
    assert row["valid_accuracy"] == 0.5
    assert (row["valid_accuracy/a"], row["valid_f1/a"]) == (0.4, 0.4)
    assert row["valid_f1"] == pytest.approx(4 / 8)
    assert row["valid_loss"] == pytest.approx(9.3 / 8)
    assert found.line() == "accuracy 50.00% (4 of 8), F1 0.5000, loss 1.1625; a 40.00%, b 66.67%"


def test_a_stop_is_asked_for_between_batches_and_gives_up():
    files, asked = _files(1), []
    engine: Any = _Engine(files, 1)
    engine.file = "a"
    groups: Any = SimpleNamespace(data_rank=0, data_size=1)

    def give_up() -> bool:
        asked.append(1)
        return True

    found = score_files(
        engine, list(files.values()), groups, torch.device("cpu"), workers=0, has_f1=False, classes=2, give_up=give_up
    )
    assert found is None
    assert asked == [1]


def test_f1_of_a_class_that_nobody_names_is_zero():
    assert Score(3, 3, 0.0).f1 == 0.0
    assert "valid_f1" not in TaskScores({"a": Score(1, 2, 0.5)}, has_f1=False).row()
    assert TaskScores({"a": Score(1, 2, 0.5)}, has_f1=False).line() == "accuracy 50.00% (1 of 2), loss 0.2500"
