"""Which tokens are scored, and what each of them sees. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int, int]
"""First token of a window, the end of its tokens, and how many of them are scored."""


@dataclass(frozen=True)
class Window:
    """Tokens of which some are scored.

    Attributes:
        tokens: at most the model's context + 1; the last one is only a target.
        scored: how many of them, at the end. The first token cannot be scored.
    """

    tokens: Sequence[int]
    scored: int


class Windows(Sequence[Window]):
    """Windows on tokens that are held once, however much the windows overlap.

    Args:
        tokens: of all texts, end to end.
        spans: ``[N, 3]``, a :data:`Span` in ``tokens`` per window.
    """

    def __init__(self, tokens: NDArray[np.int32], spans: NDArray[np.int64]):
        self.tokens, self.spans = tokens, spans

    @staticmethod
    def of(texts: Iterable[tuple[Sequence[int] | NDArray[np.int32], Sequence[Span]]]) -> Windows:
        """Return the windows of texts; the spans of each count from its own first token."""
        parts, spans, begin = [], [], 0
        for tokens, own in texts:
            parts.append(np.asarray(tokens, np.int32))
            spans.append(np.asarray(own, np.int64).reshape(-1, 3) + np.array([begin, begin, 0]))
            begin += len(tokens)
        return Windows(
            np.concatenate(parts) if parts else np.zeros(0, np.int32),
            np.concatenate(spans) if spans else np.zeros((0, 3), np.int64),
        )

    def __len__(self) -> int:
        return len(self.spans)

    @overload
    def __getitem__(self, place: int) -> Window: ...

    @overload
    def __getitem__(self, place: slice) -> Windows: ...

    def __getitem__(self, place: int | slice) -> Window | Windows:
        if isinstance(place, slice):
            return Windows(self.tokens, self.spans[place])
        first, end, scored = self.spans[place].tolist()
        return Window(self.tokens[first:end].tolist(), scored)


def lengths_of(windows: Sequence[Window]) -> list[int]:
    """Return the number of tokens of every window."""
    if not isinstance(windows, Windows):
        return [len(each.tokens) for each in windows]
    lengths: list[int] = (windows.spans[:, 1] - windows.spans[:, 0]).tolist()
    return lengths


def sliding(length: int, context: int, stride: int) -> list[Span]:
    """Return spans that score each of ``length`` tokens but the first once, with as much before it as fits.

    The first window scores all of its ``context`` targets, each later one the next ``stride``, as
    Megatron-LM's ``--overlapping-eval`` does.
    """
    end = min(context + 1, length)
    spans = [(0, end, end - 1)]
    for last in range(context + 1, length, stride):
        end = min(last + stride, length)
        spans.append((last + stride - context - 1, end, end - last))
    return spans


def rolling(length: int, context: int) -> list[Span]:
    """Return spans that score each of ``length`` tokens but the first once, each token in one window.

    A window scores ``context`` tokens, the last one fewer, and sees what precedes them as far as it fits.
    """
    spans = []
    for first in range(1, length, context):
        end = min(first + context, length)
        spans.append((max(0, end - context - 1), end, end - first))
    return spans


def samples(length: int, context: int) -> list[Span]:
    """Return the spans of training samples: ``context`` targets each, which see nothing of the sample before."""
    firsts = range(0, length - 1, context)
    return [(first, min(first + context + 1, length), min(context, length - 1 - first)) for first in firsts]
