"""Log-probabilities of given tokens, in batches, shared out over the replicas of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from megads.evaluate.windows import Window, lengths_of
from megads.inference.runner import Runner

SCORED_AT_ONCE = 1 << 24
"""Logits that are looked at together."""

Progress = Callable[[int, int], None]


@torch.inference_mode()
def score(
    runner: Runner, windows: Sequence[Window], batch: int, progress: Progress = lambda done, total: None
) -> list[tuple[float, bool]]:
    """Return of every window the sum of its scored tokens' log-probabilities, and whether each was the most likely one.

    All ranks call it with the same windows; each replica scores its share, and every rank has all results.

    Args:
        runner: of the model.
        windows: in any order; those of similar length run together.
        batch: windows at a time, on a replica.
        progress: called with how many of this replica's windows are done, and of how many.
    """
    groups = runner.groups
    lengths = lengths_of(windows)
    order = sorted(range(len(windows)), key=lambda place: -lengths[place])
    mine = order[groups.data_rank :: groups.data_size]
    found = torch.zeros(len(windows), 2, dtype=torch.float64)
    for first in range(0, len(mine), batch):
        part = mine[first : first + batch]
        found[part] = _score_batch(runner, [windows[place] for place in part])
        progress(min(first + batch, len(mine)), len(mine))
    if groups.data is not None:
        found = found.to(runner.device)
        dist.all_reduce(found, group=groups.data)
    return [(total, bool(is_greedy)) for total, is_greedy in found.tolist()]


def _score_batch(runner: Runner, windows: Sequence[Window]) -> Tensor:
    """Return ``[B, 2]`` float64: the sum of log-probabilities, and whether all were the most likely."""
    hidden = runner.run([list(each.tokens[:-1]) for each in windows])
    found = torch.zeros(len(windows), 2, dtype=torch.float64)
    if runner.is_last_stage:
        for row, window in enumerate(windows):
            first = len(window.tokens) - 1 - window.scored
            targets = torch.tensor(window.tokens[first + 1 :], device=hidden.device)
            found[row] = _score_row(runner, hidden[row, first : len(window.tokens) - 1], targets)
    return runner.share(found)


def _score_row(runner: Runner, hidden: Tensor, targets: Tensor) -> Tensor:
    step = max(1, SCORED_AT_ONCE // runner.vocab_size)
    total, is_greedy = 0.0, True
    for states, part in zip(hidden.split(step), targets.split(step), strict=True):
        logits = runner.logits(states)
        total += float(logits.log_softmax(dim=-1).gather(1, part.unsqueeze(1)).double().sum())
        is_greedy = is_greedy and bool((logits.argmax(dim=-1) == part).all())
    return torch.tensor([total, is_greedy], dtype=torch.float64)


def progress_of(show: Progress, replicas: int) -> Progress:
    """Return a progress that counts the windows of all replicas."""
    return partial(_scaled, show, replicas)


def _scaled(show: Progress, replicas: int, done: int, total: int) -> None:
    show(done * replicas, total * replicas)
