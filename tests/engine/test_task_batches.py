"""Micro-batches of a task: every choice is a row, sequence ranks have their part of it, and one of them the labels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megads.data.tasks.examples import Example
from megads.data.tasks.rows import Packer, TaskRow
from megads.engine.micro_batches import Splitter
from megads.engine.task_batches import TaskSplitter, make_splitter
from megads.errors import ConfigError
from tests.parity.layouts import Layout
from tests.parity.test_task_layouts import SEQ, _Words

EXAMPLES = [Example((("5 6", "7"), ("8", None)), 1), Example((("9", "10 11"), ("12 13 14", "15")), 0)]


def _groups(rank: int, size: int) -> Any:
    return SimpleNamespace(seq_rank=rank, seq_size=size, seq=None, tensor=None)


def _batch() -> torch.Tensor:
    pack = Packer(_Words(), TaskRow(SEQ, 2))  # type: ignore[arg-type]
    return torch.stack([torch.from_numpy(pack(each)) for each in EXAMPLES])


def _run(kind: str, **more: str) -> Any:
    return Layout(kind, more={"model.num_classes": "1", **more}).run()


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_choices_are_rows_with_their_types_and_lengths(kind):
    (part,) = TaskSplitter(_run(kind), _groups(0, 1))([_batch()])
    assert part.tokens.shape == (4, SEQ)
    assert part.tokens[0, :6].tolist() == [1, 5, 6, 2, 7, 2]
    assert part.tokens[1, :4].tolist() == [1, 8, 2, 0]
    assert part.labels.tolist() == [1, 0]
    assert part.documents.lengths.tokens.tolist() == [6, 3, 6, 7]
    if kind == "bert":
        assert part.documents.types[0].tolist() == [0, 0, 0, 0, 1, 1] + [0] * 10
    else:
        assert part.documents.types is None


def test_sequence_ranks_share_rows_and_the_first_has_the_labels():
    whole = TaskSplitter(_run("bert"), _groups(0, 1))([_batch()])[0]
    parts = [TaskSplitter(_run("bert"), _groups(rank, 2))([_batch()])[0] for rank in (0, 1)]
    assert torch.equal(torch.cat([part.tokens for part in parts], dim=1), whole.tokens)
    assert torch.equal(torch.cat([part.documents.types for part in parts], dim=1), whole.documents.types)
    assert [part.labels.tolist() for part in parts] == [[1, 0], [-1, -1]]
    assert all(torch.equal(part.documents.lengths.tokens, whole.documents.lengths.tokens) for part in parts)


def test_rows_that_cannot_be_shared_are_refused():
    with pytest.raises(ConfigError, match=r"^SEQ=16 cannot be split over SP=3 ranks$"):
        TaskSplitter(_run("bert"), _groups(0, 3))


def test_a_head_decides_what_makes_the_micro_batches():
    assert isinstance(make_splitter(_run("llama"), _groups(0, 1), None), TaskSplitter)
    plain = make_splitter(Layout("llama").run(), _groups(0, 1), None)
    assert isinstance(plain, Splitter)
    assert not isinstance(plain, TaskSplitter)
