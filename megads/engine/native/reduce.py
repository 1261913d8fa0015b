"""Gradients of micro-batches, summed in float32 and reduced to who owns them while the backward pass goes on.

A hook of every parameter adds its gradient to the flat sum of its unit. Under ZeRO 0 and 1 a unit is reduced when the
last gradient of the step's last micro-batch is there; under ZeRO 2 and 3 each micro-batch is reduced, and the sum is
kept of this rank's part only. The units of a chunk are reduced in one order on every rank. Where a parameter gets no
gradient on some rank, it counts as zero there once the backward pass is over (:meth:`Reducer.end_pass`), and units
behind it wait until then. Nothing waits for a reduction before :meth:`Reducer.finish`, except that few
buffers of ZeRO 2 and 3 are in use at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed import get_backend

import megads.timing.collectives as dist
from megads.comm.groups import Groups
from megads.config.schema import RunConfig
from megads.engine.native.units import Place, Unit
from megads.engine.partial_gradients import PartialGradients

WIRES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

IN_FLIGHT = 2
"""Reductions at a time, where each has a buffer."""


def wire_of(run: RunConfig) -> torch.dtype:
    """Return the type in which gradients are sent."""
    return WIRES[run.deepspeed.communication_data_type]


class _Arrivals:
    """A parameter's gradients in the flat sum of its unit."""

    __slots__ = ("count", "place", "view")

    def __init__(self, place: Place, flat: Tensor | None):
        self.place, self.count = place, 0
        self.view = None if flat is None else place.of(flat)


class _Sum:
    """The flat sum of one unit: of a step (ZeRO 0 and 1), or of a micro-batch."""

    def __init__(self, unit: Unit):
        self.unit, self.flat = unit, unit.sums
        self.arrivals = [_Arrivals(place, unit.sums) for place in unit.places]
        self.missing = len(self.arrivals)  # parameters of which not every gradient is there
        self.is_held = self.is_sent = False
        self.is_ready = False  # of ZeRO 2 and 3: to be reduced once those before it are
        self.reductions = 0  # in this step


@dataclass
class _Reduction:
    """One that is under way. ``finished`` is called once the collective is done."""

    work: dist.Work | None
    finish: Callable[[], None]


class _Order:
    """The sums of a chunk in the order in which every rank reduces them, and the next one of the pass that runs."""

    def __init__(self) -> None:
        self.sums: list[_Sum] = []
        self.next = 0
        self.is_over = False  # whether all sums of the pass were reduced before its end

    def restart(self) -> None:
        """Begin a pass."""
        self.next = 0
        for each in self.sums:
            each.is_ready = False


class Reducer:
    """Reduces the gradients of ``units``.

    Args:
        wire: what is sent; below float32 sums are rounded.

    Attributes:
        completed: called with a unit when all its gradients of a backward pass are there.
        issued: called with a unit when its reduction begins.
        is_later: whether weights' gradients are computed behind the backward pass (zb-h1).
    """

    def __init__(self, units: Sequence[Unit], groups: Groups, stage: int, partial: PartialGradients, wire: torch.dtype):
        self.units, self.groups, self.stage, self.wire = units, groups, stage, wire
        self.group = groups.data_seq
        self.is_gloo = self.group is not None and get_backend(self.group) == "gloo"
        self.partial = partial
        self.partial.take()
        places = [(unit, place) for unit in units for place in unit.places]
        shared = [(unit, unit.piece(place)[1]) for unit, place in places if place.parameter in partial]
        self.shared = [unit.reduced[here] for unit, here in shared if here.stop > here.start]
        self.completed: Callable[[Unit], None] = lambda unit: None
        self.issued: Callable[[Unit], None] = lambda unit: None
        self.expected, self.is_later = 1, False
        self._sums = [_Sum(unit) for unit in reversed(units)]
        self._next = 0  # of these, to be reduced
        self._orders = {each.unit.chunk: _Order() for each in self._sums}
        for each in self._sums:
            self._orders[each.unit.chunk].sums.append(each)
        self._under_way: list[_Reduction] = []
        self._spare: dict[int, list[Tensor]] = {}  # buffers, by their number of elements
        for each in self._sums:
            for arrivals in each.arrivals:
                arrivals.place.parameter.register_post_accumulate_grad_hook(self._hook(each, arrivals))

    def begin(self, micro_batches: int) -> None:
        """Begin a step whose parameters get a gradient of each of so many micro-batches."""
        while self._under_way:  # of a step that ended early
            self._settle()
        self.expected, self._next = micro_batches, 0
        for order in self._orders.values():
            order.restart()
            order.is_over = False
        for each in self._sums:
            self._reset(each)
            each.is_sent, each.reductions = False, 0
            if self.stage > 1:
                each.flat = None

    def _reset(self, each: _Sum) -> None:
        each.missing = len(each.arrivals)
        for arrivals in each.arrivals:
            arrivals.count = 0

    def hold(self, unit: Unit) -> None:
        """Do not reduce ``unit`` before :meth:`finish`: something is added to its sum."""
        next(each for each in self._sums if each.unit is unit).is_held = True

    @torch.no_grad()
    def add(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Add to the gradient of a parameter, whose unit is held, before :meth:`finish`."""
        for each in self._sums:
            for arrivals in each.arrivals:
                if arrivals.place.parameter is parameter:
                    if each.flat is None:
                        each.flat = self._buffer(each.unit)
                    view = arrivals.place.of(each.flat)
                    view.add_(gradient) if arrivals.count else view.copy_(gradient)
                    arrivals.count += 1

    def _hook(self, each: _Sum, arrivals: _Arrivals) -> Callable[[Tensor], None]:
        def arrive(parameter: Tensor) -> None:
            grad = parameter.grad
            if grad is None:  # a pass that computes it later
                return
            assert self.stage > 1 or not each.is_sent, f"{arrivals.place.name}: a gradient after the last one"
            parameter.grad = None
            if each.flat is None:
                each.flat = self._buffer(each.unit)
            view = arrivals.place.of(each.flat) if arrivals.view is None else arrivals.view
            if arrivals.count:
                view.add_(grad)
            else:
                view.copy_(grad)
            arrivals.count += 1
            if arrivals.count == (self.expected if self.stage < 2 else 1):
                each.missing -= 1
                if not each.missing:
                    self._complete(each)

        return arrive

    def _complete(self, each: _Sum) -> None:
        self.completed(each.unit)
        if self.stage > 1:
            each.is_ready = True
            self._reduce_ready(self._orders[each.unit.chunk])
            return
        # In one order on every rank, whatever order their gradients come in.
        while self._next < len(self._sums):
            first = self._sums[self._next]
            if first.missing or first.is_held:
                return
            self._next += 1
            self._reduce(first)

    def _reduce_ready(self, order: _Order) -> None:
        while order.next < len(order.sums) and order.sums[order.next].is_ready:
            order.next += 1
            self._reduce(order.sums[order.next - 1])
        if order.next == len(order.sums):
            order.restart()
            order.is_over = True

    @torch.no_grad()
    def end_pass(self, chunk: int = 0) -> None:
        """End the backward pass of a micro-batch: under ZeRO 2 and 3, reduce what has not got every gradient."""
        order = self._orders.get(chunk)
        if self.stage < 2 or order is None:
            return
        if order.is_over:
            order.is_over = False
            return
        for each in order.sums[order.next :]:
            if not each.is_ready:
                self._fill(each)
                each.is_ready = True
        self._reduce_ready(order)
        order.is_over = False

    @torch.no_grad()
    def passed(self, unit: Unit) -> None:
        """Reduce what the backward pass, which comes to ``unit`` now, has left behind.

        Called before weights are gathered (ZeRO 3): ranks send and gather in one order. Not where gradients of the
        pass are computed later.
        """
        order = self._orders[unit.chunk]
        if order.is_over or self.is_later:
            return
        for each in order.sums[order.next :]:
            if each.unit is unit:
                break
            if not each.is_ready:
                self._fill(each)
                each.is_ready = True
        self._reduce_ready(order)

    def _fill(self, each: _Sum) -> None:
        """Set the gradients that never came to zero."""
        if each.flat is None:
            each.flat = self._buffer(each.unit)
        for arrivals in each.arrivals:
            if not arrivals.count:
                arrivals.place.of(each.flat).zero_()

    @torch.no_grad()
    def finish(self) -> None:
        """Reduce what is left, with zeros for gradients that never came, and wait for all. Collective."""
        for each in self._sums:
            if each.is_sent if self.stage < 2 else (each.reductions and each.flat is None):
                continue
            self._fill(each)
            self._reduce(each)
        while self._under_way:
            self._settle()
        self.partial.sum(self.shared)

    def buffers(self) -> list[Tensor]:
        """Return the buffers that are kept from step to step."""
        return [each for spare in self._spare.values() for each in spare]

    # Reductions

    def _reduce(self, each: _Sum) -> None:
        """Begin the reduction of a flat sum."""
        unit, flat = each.unit, each.flat
        assert flat is not None
        self.issued(unit)
        each.is_sent, each.reductions = True, each.reductions + 1
        if self.stage > 1:
            self._reset(each)
            each.flat = None
        if self.group is None:
            return
        while (self.stage > 1 or self.is_gloo) and len(self._under_way) >= IN_FLIGHT:
            self._settle()
        wire = flat if flat.dtype == self.wire else flat.to(self.wire)
        is_first = each.reductions == 1
        if self.stage == 0:
            work = dist.all_reduce(wire, group=self.group, async_op=True)
            self._under_way.append(_Reduction(work, lambda: _keep(unit.reduced, wire, is_first=True)))
            return
        work, found = self._scatter(unit, wire)

        def finish() -> None:
            _keep(unit.reduced, found(), is_first=is_first)
            if self.stage > 1:
                self._give_back(flat)

        self._under_way.append(_Reduction(work, finish))

    def _scatter(self, unit: Unit, wire: Tensor) -> tuple[dist.Work, Callable[[], Tensor]]:
        """Begin to sum ``wire`` over the ranks; once the work is done, the function returns this rank's part."""
        part = wire[unit.owned.start : unit.owned.stop]
        if not self.is_gloo:
            work = dist.reduce_scatter_tensor(part, wire, group=self.group, async_op=True)
            return work, lambda: part
        # gloo reduces to all ranks for a reduce-scatter; exchanged parts are half of that.
        parts = self._spare_of(unit.numel, wire)
        work = dist.all_to_all_single(parts, wire, group=self.group, async_op=True)

        def found() -> Tensor:
            torch.sum(parts.view(-1, len(part)), dim=0, out=part)
            self._give_back(parts)
            return part

        return work, found

    def _settle(self) -> None:
        """Wait for the reduction that began first."""
        reduction = self._under_way.pop(0)
        if reduction.work is not None:
            reduction.work.wait()
        with torch.no_grad():
            reduction.finish()

    def _buffer(self, unit: Unit) -> Tensor:
        flat = self._spare_of(unit.numel, unit.reduced)
        for gap in unit.gaps:
            flat[gap].zero_()
        return flat

    def _give_back(self, buffer: Tensor) -> None:
        if buffer.device.type == "cpu":  # other allocators keep what was freed
            self._spare.setdefault(buffer.numel(), []).append(buffer)

    def _spare_of(self, numel: int, like: Tensor) -> Tensor:
        for i, each in enumerate(found := self._spare.get(numel, [])):
            if each.dtype == like.dtype:
                return found.pop(i)
        return like.new_empty(numel)


def _keep(reduced: Tensor, found: Tensor, *, is_first: bool) -> None:
    """Set or add to what was reduced of a step; nothing where it is the same memory."""
    if not is_first:
        reduced.add_(found)
    elif found.data_ptr() != reduced.data_ptr():
        reduced.copy_(found)
