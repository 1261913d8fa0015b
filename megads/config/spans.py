"""How many spans T5's samples have: whether the decoder, and the tokens ``<extra_id_N>``, suffice for all of a run's.

A sample hides at most so many tokens; into how many spans they fall is chance. The worst case, a span for each token,
is more than three of Megatron's decoders of four hold, and does not happen.
"""

from __future__ import annotations

from functools import lru_cache

from megads.config.schema import RunConfig

SPAN_WORDS = 10
"""Words of a span, at most."""

GEOMETRIC = 0.2
"""Of the lengths of spans (arXiv 1907.10529, section 3.1)."""

SPECIALS = 2
"""Tokens of a sample that are not text."""

_SIZES = [GEOMETRIC * (1 - GEOMETRIC) ** (n - 1) for n in range(1, SPAN_WORDS)] + [(1 - GEOMETRIC) ** (SPAN_WORDS - 1)]


def hidden_tokens(run: RunConfig) -> int:
    """Return how many tokens a sample hides at most."""
    return int(run.data.mask_prob * (run.model.seq_length - SPECIALS))


def needed_spans(run: RunConfig, samples: int) -> int:
    """Return the number of spans that none of ``samples`` exceeds, more likely than not.

    Words are of one token each; those of several make fewer spans.
    """
    tails = _tails(hidden_tokens(run), run.model.seq_length - SPECIALS)
    return next((spans for spans, tail in enumerate(tails) if tail * samples < 0.5), len(tails))


def needed_decoder_length(run: RunConfig, samples: int) -> int:
    """Return the tokens of a decoder for ``samples``: what is hidden, one for each span, and one more."""
    return hidden_tokens(run) + needed_spans(run, samples) + 1


@lru_cache(maxsize=16)
def _tails(hidden: int, length: int) -> tuple[float, ...]:
    """Return with what probability a text has more than 0, 1, 2, ... spans when ``hidden`` of its tokens are hidden.

    A span is drawn until it touches none before it, and is shortened to what may still be hidden.
    """
    reached, tails = [1.0] + [0.0] * hidden, []
    for spans in range(hidden + 1):
        tails.append(sum(reached[:hidden]))
        if tails[-1] < 1e-15:
            break
        following = [0.0] * (hidden + 1)
        for count, probability in enumerate(reached[:hidden]):
            if probability < 1e-18:
                continue
            shares = [size * max(0.0, 1 - (count + spans * n) / length) for n, size in enumerate(_SIZES)]
            scale = probability / (sum(shares) or 1.0)
            for n, share in enumerate(shares, 1):
                following[min(hidden, count + n)] += share * scale
        reached = following
    return tuple(tails)
