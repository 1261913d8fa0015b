"""Numbers that a model has no row for are named, in every part of a sample, before a device reads them."""

from __future__ import annotations

import numpy as np
import pytest

from megads.data.samples.bounds import Bound, bounds_of
from megads.data.samples.masked.rows import BertRow, T5Row

VOCAB = 50
BERT, T5 = BertRow(8), T5Row(8, 4)


def _row(parts) -> np.ndarray:
    """Return a row with the largest number that each part may have."""
    row = np.zeros(parts.width, np.int64)
    for bound in bounds_of(VOCAB, parts):
        row[bound.where] = bound.end - 1
    return row


@pytest.mark.parametrize("parts", [BERT, T5], ids=["bert", "t5"])
def test_every_number_at_the_edge_is_accepted_and_the_next_one_is_named(parts):
    bounds = bounds_of(VOCAB, parts)
    assert [bound.problem(_row(parts)) for bound in bounds] == [""] * len(bounds)
    for bound in bounds:
        for wrong in (bound.first - 1, bound.end):
            row = _row(parts)
            row[bound.where.stop - 1] = wrong
            told = [each.problem(row) for each in bounds]
            assert [bool(each) for each in told] == [each is bound for each in bounds]
            assert f"{bound.what} {wrong}" in "".join(told)
        row = _row(parts)
        row[bound.where] = bound.first
        assert bound.problem(row) == ""


def test_the_first_wrong_number_is_named_as_it_is():
    (bound,) = bounds_of(VOCAB, None)
    assert bound.problem(np.array([3, 49, 0])) == ""
    assert bound.problem(np.array([3, 50, -7])) == "token 50, but the model knows 50 tokens"
    assert bound.problem(np.array([3, -7, 50])) == "token -7, but the model knows 50 tokens"
    assert bound.problem(np.array([-(2**63), 0])) == f"token {-(2**63)}, but the model knows 50 tokens"
    label = Bound("label", slice(0, 2), -1, 50)
    assert label.problem(np.array([-1, 49, 1000])) == ""
    assert label.problem(np.array([-2, 49])) == "label -2, which is not one of -1 to 49"
