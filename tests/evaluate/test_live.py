"""How windows become rows of micro-batches; tests/train/test_tasks.py has real engines."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.errors import DataError
from megads.evaluate.live import AT_ONCE, LiveModel, score_live
from megads.evaluate.windows import Window
from megads.parallel.ulysses import NOT_COUNTED

CPU = torch.device("cpu")


class Sums:
    """An engine whose score of a row is the sum of its labels; rows with the label 7 are wrong."""

    def __init__(self):
        self.shapes = []

    def eval_scores(self, batches):
        self.shapes.append([tuple(batch.tokens.shape) for batch in batches])
        rows = [row for batch in batches for row in batch.labels]
        counted = [row[row != NOT_COUNTED] for row in rows]
        return torch.tensor([[float(row.sum()), float((row == 7).sum())] for row in counted], dtype=torch.float64)


def _model(engine, *, rows=2, context=100, scatter_norms=False, **degrees):
    return LiveModel(engine, Groups(Grid(**degrees), 0), CPU, rows, context, scatter_norms)


WINDOWS = [Window([1, 2, 3], 2), Window([5, 7], 1), Window(list(range(80)), 3), Window([1, 2, 3, 4], 1)]


def test_scores_come_in_the_order_of_the_windows():
    engine = Sums()
    scores = score_live(_model(engine), WINDOWS)
    assert scores == [(5.0, True), (7.0, False), (77.0 + 78 + 79, True), (4.0, True)]
    # The longest first; a micro-batch has one width and always the same number of rows.
    assert engine.shapes == [[(2, 100), (2, 64)]]
    assert score_live(_model(Sums(), rows=3), WINDOWS) == scores
    assert score_live(_model(Sums()), []) == []


def test_it_is_given_up_between_groups_of_micro_batches():
    asked, told, engine = [], [], Sums()

    def give_up():
        asked.append(len(engine.shapes))
        return len(asked) == 2

    assert score_live(_model(engine, rows=1), [WINDOWS[0]] * (3 * AT_ONCE), give_up, told.append) is None
    assert asked == [1, 2]
    assert told == [AT_ONCE, 2 * AT_ONCE]


@pytest.mark.parametrize(
    ("length", "degrees", "width"),
    [
        (3, {}, 64),
        (64, {}, 64),
        (65, {}, 100),
        (100, {}, 100),
        (3, {"seq": 3}, 66),
        (100, {"seq": 2, "tensor": 4}, 100),
        (100, {"seq": 2, "tensor": 4, "scatter_norms": True}, 104),
    ],
)
def test_rows_are_as_wide_as_their_layout_can_cut(length, degrees, width):
    assert _model(Sums(), **degrees).width(length) == width


def test_a_token_that_the_model_does_not_know_is_refused_on_the_host():
    model = replace(_model(Sums()), vocab_size=80)
    assert score_live(model, WINDOWS) == score_live(_model(Sums()), WINDOWS)
    for wrong in ([1, 80, 2], [1, 2, 80], [1, -1, 2]):
        with pytest.raises(DataError, match="a token that is not one of the model's 0 to 79"):
            score_live(model, [Window(wrong, 1)])
