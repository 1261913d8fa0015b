from __future__ import annotations

import numpy as np
import pytest

from megads.data.samples.masked.masking import WordPieces, mask_tokens
from megads.errors import DataError
from tests.data.samples.sentences import PIECES


def _masked(tokens: list[int], pieces: WordPieces = PIECES, longest: int = 3, **more: bool):
    return mask_tokens(
        tokens,
        len(tokens),
        pieces,
        np.random.RandomState(0),
        replace=lambda token: pieces.mask,
        longest=longest,
        **more,
    )


@pytest.mark.parametrize("geometric", [False, True])
def test_whole_words_are_hidden_up_to_the_share(geometric):
    tokens = [PIECES.cls, *range(40, 140), PIECES.sep]
    masked = _masked(tokens, longest=5, geometric=geometric)
    assert 10 <= len(masked.positions) <= 15
    assert masked.labels == [tokens[place] for place in masked.positions]
    assert all(masked.tokens[place] == PIECES.mask for place in masked.positions)
    for place in range(1, len(tokens) - 1):
        if PIECES.continues[tokens[place]]:  # a piece is hidden with the one before it, its word's first
            assert (place in masked.positions) == (place - 1 in masked.positions)
    assert sorted(place for places, _ in masked.spans for place in places) == masked.positions
    assert not {0, len(tokens) - 1} & set(masked.positions)


def test_a_token_that_is_not_in_the_vocabulary():
    small = WordPieces(PIECES.ids[:30], PIECES.continues[:30], 1, 2, 3, 0)
    with pytest.raises(DataError, match="holds token 77, but the vocabulary has 30"):
        _masked([1, 20, 77, 2], small)
