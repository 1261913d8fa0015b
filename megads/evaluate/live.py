"""Windows scored by an engine that trains, in the layout of its run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megads.comm.groups import Groups
from megads.engine.base import Engine, Labelled
from megads.errors import DataError
from megads.evaluate.windows import Window, lengths_of
from megads.parallel.ulysses import NOT_COUNTED

SHORTEST = 64
"""Rows are padded to a power of two from here on, up to the context: a run has few shapes."""

AT_ONCE = 4
"""Micro-batches per pipeline stage that run before the ranks agree on whether to go on."""


@dataclass(frozen=True)
class LiveModel:
    """A model in training.

    Attributes:
        rows: windows of a micro-batch.
        context: most tokens that a window's last target sees.
        scatter_norms: whether the layout has Megatron's sequence parallelism.
        vocab_size: tokens that the model knows.
        restarts: whether documents start over in a window as the run's settings say.
    """

    engine: Engine
    groups: Groups
    device: torch.device
    rows: int
    context: int
    scatter_norms: bool = False
    vocab_size: int = 2**62
    restarts: bool = False

    def width(self, length: int) -> int:
        """Return to how many tokens rows of up to ``length`` tokens are padded."""
        wanted = SHORTEST
        while wanted < length:
            wanted *= 2
        parts = self.groups.seq_size * (self.groups.tensor_size if self.scatter_norms else 1)
        return -(-max(length, min(wanted, self.context)) // parts) * parts


def score_live(
    model: LiveModel,
    windows: Sequence[Window],
    give_up: Callable[[], object] = lambda: False,
    after: Callable[[int], None] = lambda done: None,
) -> list[tuple[float, bool]] | None:
    """Return of every window the sum of its scored tokens' log-probabilities, and whether each was the most likely one.

    All ranks call it with the same windows, and all have all results. Dropout is off and no generator moves, so the
    training that follows is the same, bit for bit.

    Args:
        model: whose micro-batches all have the same number of rows; those without a window count nothing.
        windows: in any order; those of similar length run together.
        give_up: asked before each group of micro-batches but the first, the same on every rank; then None is returned.
        after: called with how many windows are done.
    """
    groups = model.groups
    lengths = lengths_of(windows)
    order = sorted(range(len(windows)), key=lambda place: -lengths[place])
    scores: list[tuple[float, bool]] = [(0.0, True)] * len(windows)
    done = 0
    for turn, places in enumerate(_turns(order, model)):
        if turn and give_up():
            return None
        batches = []
        step = model.rows * groups.data_size
        for first in range(0, len(places), step):
            width = model.width(lengths[places[first]] - 1)
            mine = places[first : first + step][groups.data_rank * model.rows :][: model.rows]
            batches.append(_batch([windows[place] for place in mine], model, width))
        found = model.engine.eval_scores(batches).tolist()
        for place, (total, wrong) in zip(places, found, strict=False):
            scores[place] = (total, not wrong)
        done += len(places)
        after(done)
    return scores


def _turns(order: list[int], model: LiveModel) -> Iterator[list[int]]:
    count = model.rows * model.groups.data_size * AT_ONCE * model.groups.pipe_size
    for first in range(0, len(order), count):
        yield order[first : first + count]


def _batch(windows: Sequence[Window], model: LiveModel, width: int) -> Labelled:
    """Return windows as rows of ``width`` tokens, with rows that count nothing behind them.

    Raises:
        DataError: a token is outside of the model's vocabulary.
    """
    tokens = torch.zeros(model.rows, width, dtype=torch.int64)
    labels = torch.full((model.rows, width), NOT_COUNTED, dtype=torch.int64)
    for row, window in enumerate(windows):
        whole: Tensor = torch.tensor(window.tokens, dtype=torch.int64)
        end = len(whole) - 1
        tokens[row, :end] = whole[:-1]
        labels[row, end - window.scored : end] = whole[len(whole) - window.scored :]
    if not 0 <= int(tokens.min()) <= int(max(tokens.max(), labels.max())) < model.vocab_size:
        raise DataError(
            f"a text has a token that is not one of the model's 0 to {model.vocab_size - 1}; use the model's tokenizer"
        )
    return Labelled(tokens.to(model.device), labels.to(model.device), model.restarts)
