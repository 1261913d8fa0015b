"""Updates that round to zero: weights that look trained and never move.

A weight of 1 in bf16 has its neighbours at 1.0078 and 0.9961: an update of 1e-4 leaves it where it is, in every step.
In steps 1, 2 and 10, once the learning rate is near its peak, and every ROUNDING_INTERVAL steps, elements of every
weight are looked at before and after the update, in the masters that the optimizer steps and in the model's own copy.
An update rounds to zero where the gradient of an element is not zero and its master does not change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megads.engine.optim.exchange import Slot
from megads.engine.optim.whole_parameters import Call
from megads.monitor.log import FILE, LOG
from megads.train.setup import Training

SAMPLE = 2048
"""Elements of every weight that a rank looks at."""
FIRST_STEPS = (1, 2, 10)
MOST = 0.5
"""Share of a kind of weights from which it is reported."""
LEAST_RATE = 1e-6
"""Below it float32 weights of 1 round, too: the first steps of a warm-up are no finding."""


@dataclass
class _Looked:
    """Elements of one weight, before an update."""

    slot: Slot
    weight: Tensor
    copy: Tensor | None  # the model's, where it is another tensor
    has_gradient: Tensor

    def count(self) -> Tensor:
        """Return how many have a gradient, and of these: masters that stay, copies that stay although masters move."""
        stays = (_sample(self.slot.weight) == self.weight) & self.has_gradient
        still = torch.zeros((), dtype=torch.int64, device=stays.device)
        now = _copy(self.slot)
        if self.copy is not None and now is not None:
            same = (now == self.copy).to(stays.device)
            still = (same & self.has_gradient & ~stays).sum()
        return torch.stack([self.has_gradient.sum(), stays.sum(), still])


@dataclass(frozen=True)
class Kind:
    """The weights of one name in all layers."""

    name: str
    share: float  # of updates that round to zero
    worst: str  # the weight with most of them


class RoundingCheck:
    """Counts the updates of one run that round to zero. All ranks call it in the same steps."""

    def __init__(self, training: Training):
        self.training = training
        self.interval = training.run.stability.rounding_interval
        self.peak = training.run.optim.lr
        self.was_at_peak = False
        self.looked: list[_Looked] = []
        self.calls: list[Call] = []
        self.reported: set[str] = set()
        self.row: dict[str, float] = {}  # entries of metrics.jsonl; empty where hardly an update rounds to zero

    def is_due(self, iteration: int, lr: float) -> bool:
        """Return whether updates are counted in step ``iteration``, the same on every rank."""
        if not self.interval or lr <= 0:
            return False
        reaches_peak = not self.was_at_peak and lr >= self.peak / 2
        self.was_at_peak |= reaches_peak
        return reaches_peak or iteration in FIRST_STEPS or iteration % self.interval == 0

    @contextmanager
    def step(self, iteration: int, lr: float) -> Iterator[None]:
        """Count in the block, which is a step. Collective where it is due."""
        self.row = {}
        if not self.is_due(iteration, lr):
            yield
            return
        state: Any = self.training.engine.state
        self.looked, self.calls = [], state.calls()
        stop_looking = self.training.engine.before_updates(self._before)
        try:
            yield
        finally:
            stop_looking()
        self._count(iteration, lr)

    @torch.no_grad()
    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # ZeRO 3 calls once for every sub-group, with that one's gradient only.
        now = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
        for call in self.calls:
            for slot in call.slots if id(call.key) in now else ():
                if slot.count:
                    weight = _sample(slot.weight)
                    gradient = _sample(slot.gradient()).to(weight.device)
                    self.looked.append(_Looked(slot, weight.clone(), _copy(slot), gradient != 0))

    @torch.no_grad()
    def _count(self, iteration: int, lr: float) -> None:
        t = self.training
        _ = t.engine.module  # waits for weights on their way
        index = {name: i for i, name in enumerate(t.parameters)}
        found = torch.zeros(len(index), 3, dtype=torch.int64, device=t.device)
        for each in self.looked:
            found[index[each.slot.name]] += each.count().to(t.device)
        is_exact = all(each.weight.dtype == torch.float32 for each in self.looked)
        self.looked, self.calls = [], []
        if t.groups.world is not None:
            dist.all_reduce(found)
        counts = dict(zip(index, found.tolist(), strict=True))
        if t.groups.rank == 0:
            self._report(iteration, lr, counts, is_exact=is_exact)

    def _report(self, iteration: int, lr: float, counts: dict[str, list[int]], *, is_exact: bool) -> None:
        total, rounded, still = (sum(column) for column in zip(*counts.values(), strict=True))
        if not total:
            return
        found = kinds(counts)
        if rounded / total > 0.01 or any(each.share >= MOST for each in found):
            shares = {f"rounded_updates/{each.name}": each.share for each in found if each.share > 0}
            self.row = {"rounded_updates": rounded / total, **shares}
        if still:
            text = (
                "numbers  step %d: %.1f %% of the updates round to zero in the masters; %.1f %% change the masters only"
            )
            LOG.info(text, iteration, 100 * rounded / total, 100 * still / total, extra=FILE)
        if is_exact and lr < min(LEAST_RATE, self.peak / 2):
            return
        for each in found:
            if each.share >= MOST and each.name not in self.reported:
                self.reported.add(each.name)
                LOG.warning("%s", _warning(iteration, lr, self.peak, each))


def kinds(counts: dict[str, list[int]]) -> list[Kind]:
    """Return the kinds of weights that have updates: names that differ in the number of the layer are one."""
    names: dict[str, list[str]] = {}
    for name, (total, *_) in counts.items():
        if total:
            names.setdefault(re.sub(r"\.\d+\.", ".*.", name), []).append(name)
    found = []
    for kind, members in names.items():
        share = sum(counts[name][1] for name in members) / sum(counts[name][0] for name in members)
        found.append(Kind(kind, share, max(members, key=lambda name: counts[name][1] / counts[name][0])))
    return found


def _warning(iteration: int, lr: float, peak: float, found: Kind) -> str:
    rate = f"lr {lr:.3g}" + (f" (peak {peak:.3g})" if lr < peak else "")
    return (
        f"step {iteration}: {found.share:.0%} of the updates of {found.name} round to zero at {rate}, most in "
        f"{found.worst}: these weights do not train; keep their masters in float32, or raise LR"
    )


def _sample(flat: Tensor) -> Tensor:
    """Return evenly spaced elements."""
    plain = flat.detach().view(-1)
    return plain[:: max(1, plain.numel() // SAMPLE)]


def _copy(slot: Slot) -> Tensor | None:
    """Return the elements of :func:`_sample` in the model's own weight, a new tensor; None where it has no other."""
    parameter = slot.parameter.detach()
    if parameter.dtype == slot.weight.dtype or parameter.numel() != slot.shape.numel():
        return None
    if not parameter.untyped_storage().nbytes():  # ZeRO 3
        return None
    return _sample(parameter.reshape(-1)[slot.first : slot.first + slot.count]).clone()
