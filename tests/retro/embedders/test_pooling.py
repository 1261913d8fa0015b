"""The mean over a text's own tokens."""

import numpy as np
import torch

from megads.retro.embedders.pooling import embed_rows


def test_ends_and_padding_are_not_in_the_mean():
    states = torch.arange(24.0).reshape(2, 4, 3)
    seen = []

    def hidden(rows):
        seen.append(list(rows))
        return states[: len(rows)]

    rows, calls = [[7, 1, 2, 8], [7, 3, 8], [7, 8]], []
    found = embed_rows(rows, 3, 2, hidden, calls.append)
    assert seen == [rows[:2], rows[2:]]
    assert calls == [2, 1]
    assert np.array_equal(found, [[4.5, 5.5, 6.5], [15, 16, 17], [0, 0, 0]])
