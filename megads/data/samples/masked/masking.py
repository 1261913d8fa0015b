"""Hide n-grams of whole words: the masking of BERT and T5 as Megatron does it, draw by draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megads.config.spans import GEOMETRIC
from megads.errors import DataError


@dataclass(frozen=True)
class WordPieces:
    """What masking asks of a vocabulary."""

    ids: npt.NDArray[np.int64]  # all of them, in the order of the vocabulary
    continues: npt.NDArray[np.bool_]  # by id: the piece continues with the word before it (``##``)
    cls: int
    sep: int
    mask: int
    pad: int
    bos: int = -1  # T5
    eos: int = -1  # T5
    sentinels: tuple[int, ...] = ()  # T5: <extra_id_0>, ...


@dataclass(frozen=True)
class Masked:
    """Tokens of which some are hidden."""

    tokens: list[int]
    positions: list[int]  # of the hidden ones, ascending
    labels: list[int]  # what was there
    spans: list[tuple[list[int], list[int]]]  # the n-grams: positions and what was there, by first position


def mask_tokens(
    tokens: Sequence[int],
    target: int,
    pieces: WordPieces,
    rng: np.random.RandomState,
    *,
    replace: Callable[[int], int],
    longest: int,
    probability: float = 0.15,
    geometric: bool = False,
) -> Masked:
    """Hide whole words of ``tokens``, some of them in n-grams, about ``probability`` of all tokens.

    Args:
        tokens: with their cls and sep, which are never hidden.
        target: length of the sample; bounds what is hidden.
        pieces: the vocabulary.
        rng: draws in upstream's order: the order of candidates, then for each its length and its replacements.
        replace: returns what stands for a hidden token.
        longest: words of an n-gram.
        probability: share of tokens to hide.
        geometric: draw lengths from the geometric distribution, else by 1/n.

    Raises:
        DataError: a token is not in the vocabulary.
    """
    words = _words(tokens, pieces)
    # A float, as upstream: 1.95 tokens leave room for one.
    most = min(probability * target, max(1, round(len(tokens) * probability)))
    order = np.arange(len(words))
    rng.shuffle(order)
    out, hidden = list(tokens), dict[int, int]()
    spans = []
    for first in order.tolist():
        if len(hidden) >= most:
            break
        size = _draw_size(rng, longest, geometric)
        for n in range(size, 0, -1):
            places = [place for word in words[first : first + n] for place in word]
            if len(hidden) + len(places) <= most:
                break
        else:
            continue
        if any(place in hidden for place in places):
            continue
        for place in places:
            hidden[place] = tokens[place]
            out[place] = replace(tokens[place])
        spans.append((places, [tokens[place] for place in places]))
    rng.shuffle(order)
    positions = sorted(hidden)
    return Masked(out, positions, [hidden[place] for place in positions], sorted(spans, key=lambda span: span[0][0]))


def _words(tokens: Sequence[int], pieces: WordPieces) -> list[list[int]]:
    """Return the positions of each word's pieces."""
    words: list[list[int]] = []
    for place, token in enumerate(tokens):
        if token in (pieces.cls, pieces.sep):
            continue
        if not 0 <= token < len(pieces.continues):
            raise DataError(f"holds token {token}, but the vocabulary has {len(pieces.continues)}")
        if pieces.continues[token] and words:
            words[-1].append(place)
        else:
            words.append([place])
    return words


def _draw_size(rng: np.random.RandomState, longest: int, geometric: bool) -> int:
    if geometric:
        return min(int(rng.geometric(GEOMETRIC)), longest)
    sizes = np.arange(1, longest + 1)
    shares = 1.0 / sizes
    shares = shares / shares.sum(keepdims=True)
    # Divided twice, as upstream: the last bit may decide.
    return int(rng.choice(sizes, p=shares / shares.sum(keepdims=True)))
