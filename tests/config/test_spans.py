"""Spans of T5's samples: as many as real samples have."""

from __future__ import annotations

import numpy as np
import pytest

from megads.config.rules.advice import put
from megads.config.schema import RunConfig
from megads.config.spans import SPAN_WORDS, hidden_tokens, needed_decoder_length, needed_spans
from megads.data.samples.masked.masking import WordPieces, mask_tokens
from tests.models.shapes import T5S

PIECES = WordPieces(np.arange(9), np.zeros(9, bool), 1, 2, 3, 0)


def _run(length: int, share: float = 0.15) -> RunConfig:
    return put(RunConfig(model=T5S["t5"]), {"model.seq_length": length, "data.mask_prob": share})


def _spans(run: RunConfig, seed: int) -> int:
    tokens = [5] * (run.model.seq_length - 2)
    masked = mask_tokens(
        tokens,
        len(tokens),
        PIECES,
        np.random.RandomState(seed),
        replace=lambda token: token,
        longest=SPAN_WORDS,
        probability=run.data.mask_prob,
        geometric=True,
    )
    assert len(masked.positions) <= hidden_tokens(run)
    return len(masked.spans)


@pytest.mark.parametrize(("length", "share"), [(64, 0.15), (130, 0.15)])
def test_few_of_many_samples_have_more_spans(length, share):
    """Of 1000, 15 are expected to have more than ``needed_spans(.., 33)``."""
    run = _run(length, share)
    found = np.array([_spans(run, seed) for seed in range(1000)])
    assert found.max() <= needed_spans(run, 10**6)
    assert 1 <= (found > needed_spans(run, 33)).sum() <= 30
    assert needed_spans(run, 1000) <= found.max() + 3


def test_a_large_share_needs_no_more_than_estimated():
    """Many spans do not fit between others there, so the estimate is above."""
    run = _run(66, 0.5)
    assert max(_spans(run, seed) for seed in range(200)) <= needed_spans(run, 2000) < hidden_tokens(run)


def test_megatrons_decoder_is_long_enough():
    """Of 128 tokens for 512, where the worst case is 153."""
    run = _run(512)
    assert hidden_tokens(run) == 76
    assert 110 < needed_decoder_length(run, 16_000_000) < 128


def test_nothing_is_hidden_of_a_short_text():
    assert needed_decoder_length(_run(8), 1) == 1
