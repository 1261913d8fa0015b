"""Rows of examples."""

import numpy as np
import pytest

from megads.data.chat.rows import ChatRow

ROW = ChatRow(5)


def parts(row):
    return [row[each].tolist() for each in (ROW.tokens, ROW.labels, ROW.numbers)]


def test_examples_lie_side_by_side_and_padding_does_not_count():
    made = ROW.make([(np.array([1, 2]), np.array([-1, 3])), (np.array([4, 5], np.int32), np.array([6, 7], np.int32))])
    assert made.dtype == np.int64
    assert len(made) == ROW.width
    assert parts(made) == [[1, 2, 4, 5, 0], [-1, 3, 6, 7, -1], [0, 0, 1, 1, -1]]
    assert parts(ROW.make([])) == [[0] * 5, [-1] * 5, [-1] * 5]


def test_what_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="examples of 6 tokens do not fit a row of 5"):
        ROW.make([(np.arange(3), np.arange(3))] * 2)
