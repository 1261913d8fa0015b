"""Weights of all ranks, there when a layer begins and on their way before.

Under ZeRO 1 and 2 every rank sends what it has updated, right after the update; a unit is waited for when the next
forward pass first uses it. Under ZeRO 3 a layer's weights are gathered for its forward and again for its
backward pass, one layer ahead, and their memory is freed behind each; what is no layer stays during a
pass. With a second partition (ZeRO++ hpZ, arXiv 2306.10209) only the first gather after an update leaves the host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

import megads.timing.collectives as dist
from megads.comm.groups import GROUPS, Groups, group_timeout_s
from megads.comm.groups import join as join_group
from megads.config.schema import RunConfig
from megads.engine.native.units import Unit
from megads.models.gpt import GPT


class Gatherer:
    """Gathers the weights of ``units`` for the passes of ``chunks``.

    Units are in *blocks*: under ZeRO 3 what is frozen of a layer and what is not, else each unit is one.

    Attributes:
        passed: called with a unit when the backward pass comes to it, before anything is gathered (ZeRO 3).
        under_way: index of a block -> its gathers, in the order in which they began.
    """

    def __init__(self, chunks: Sequence[GPT], units: Sequence[Unit], run: RunConfig, groups: Groups, stage: int):
        self.units, self.stage, self.group = units, stage, groups.data_seq
        self.blocks = _blocks(units, stage)
        self.index_of = {id(unit): i for i, block in enumerate(self.blocks) for unit in block}
        self.chunk_of: dict[int, int] = {}  # index of a layer's block (ZeRO 3) -> its chunk
        self.is_layer = [block[0].name.startswith("layers.") for block in self.blocks]
        self.is_mixed = [any(unit.is_frozen for unit in block) for block in self.blocks]
        self.looks_ahead = run.deepspeed.prefetch_bucket_size > 0
        self.under_way: dict[int, list[dist.Work]] = {}
        self.present: set[int] = set()  # of ZeRO 3: blocks whose weights are there, or on their way
        self.done: set[int] = set()  # blocks whose backward pass is over, in the pass that runs
        self.in_backward = False
        self.passed: Callable[[Unit], None] = lambda unit: None
        self.second: dict[int, Tensor] = {}  # id of a unit -> this rank's part of it on its host
        self.inner, self.inner_part = _inner_group(run, groups, stage)
        if stage:
            of = {id(place.parameter): self.index_of[id(unit)] for unit in units for place in unit.places}
            for number, chunk in enumerate(chunks):
                self._add_hooks(number, chunk, of)

    def _add_hooks(self, number: int, chunk: GPT, of: dict[int, int]) -> None:
        layers: Any = chunk.layers
        for module in (*(each for each in chunk.children() if each is not layers), *layers.children()):
            used = sorted({of[id(each)] for each in module.parameters() if id(each) in of})
            if not used:
                continue
            if self.stage == 3 and self.is_layer[used[0]]:
                (index,) = used
                self.chunk_of[index] = number
                module.register_forward_pre_hook(lambda module, args, index=index: self._before_forward(index))
                module.register_forward_hook(
                    lambda module, args, output, index=index: self._behind_forward(index, output)
                )
            elif self.stage < 3:
                module.register_forward_pre_hook(lambda module, args, used=used: self._wait_for(used))

    # After an update

    def changed(self) -> None:
        """Send what this rank has updated, or forget what was gathered of it before. Not waited for; collective."""
        self.second.clear()
        if self.stage in (1, 2):
            self.finish()
            for index in range(len(self.blocks)):
                if not self.is_mixed[index]:
                    self._begin(index)

    def send_frozen(self) -> None:
        """Send every rank's share of frozen weights, where each holds all of them. Collective."""
        if self.group is None or self.stage == 3:
            return
        for unit in self.units:
            if unit.is_frozen:
                dist.all_gather_into_tensor(unit.weights, unit.part.clone(), group=self.group)

    def finish(self) -> None:
        """Wait for what is under way."""
        self._wait_for(list(self.under_way))

    def _wait_for(self, indices: Sequence[int]) -> None:
        for index in indices if self.under_way else ():
            for work in self.under_way.pop(index, ()):
                work.wait()

    def _begin(self, index: int) -> None:
        self.under_way[index] = []
        for unit in self.blocks[index]:
            if self.stage == 3:
                unit.weights.untyped_storage().resize_(unit.numel * unit.weights.element_size())
                self.present.add(index)
            second = self.second.get(id(unit))
            part, group = (unit.part, self.group) if second is None else (second, self.inner)
            self.under_way[index].append(dist.all_gather_into_tensor(unit.weights, part, group=group, async_op=True))

    # ZeRO 3

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """Have the weights of what is no layer there in the block, and those of layers when they run."""
        if self.stage < 3:
            yield
            return
        self._free_all()  # of a pass that ended early
        for index, is_layer in enumerate(self.is_layer):
            if not is_layer:
                self._begin(index)
        first = next(iter(self.chunk_of), None)
        if first is not None:
            self._look_ahead(first, first)
        for index, is_layer in enumerate(self.is_layer):
            if not is_layer:
                self._need(index)
        yield
        self._free_all()

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        """Surround a backward pass."""
        self.in_backward = True
        try:
            yield
        finally:
            self.in_backward = False
            self.done.clear()
        if self.stage == 3:
            for index in [each for each in self.present if self.is_layer[each] and not self._is_first(each)]:
                self._free(index)

    def completed(self, unit: Unit) -> None:
        """Free the weights of a unit all of whose gradients of a backward pass are there.

        Those of a layer with frozen weights stay until the backward pass of the layer before begins: adapters may
        have their gradients before the frozen weights have given the layer's input its own.
        """
        if self.stage == 3:
            index = self.index_of[id(unit)]
            if self.is_layer[index]:
                self.done.add(index)
                if not (self._is_first(index) or self.is_mixed[index]):
                    self._free(index)

    def _is_first(self, index: int) -> bool:
        """Return whether a layer is the first one of its chunk: the next micro-batch needs it first, so it stays."""
        return self.chunk_of.get(index - 1) != self.chunk_of[index]

    def _need(self, index: int) -> None:
        if index not in self.present:
            self._begin(index)
        self._wait_for([index])
        for unit in self.blocks[index] if self.inner is not None else ():
            if self.inner is not None and id(unit) not in self.second:
                size = unit.numel // self.inner.size()
                first = self.inner_part * size
                self.second[id(unit)] = unit.weights[first : first + size].clone()

    def _look_ahead(self, index: int, behind: int) -> None:
        """Begin to gather a layer, unless it is another chunk's than ``behind``."""
        chunk = self.chunk_of.get(index)
        if not self.looks_ahead or chunk is None or chunk != self.chunk_of[behind]:
            return
        if index not in self.present and index not in self.done:
            self._begin(index)

    def _before_forward(self, index: int) -> None:
        self._need(index)
        self._look_ahead(index + 1, index)

    def _behind_forward(self, index: int, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda grad: self._before_backward(index))
        if self.in_backward:  # it was computed again, and is needed at once
            return
        is_last = self.chunk_of.get(index + 1) != self.chunk_of[index]
        if not (is_last and output.requires_grad):
            self._free(index)

    def _before_backward(self, index: int) -> None:
        behind = index + 1
        if behind in self.chunk_of and self.is_mixed[behind] and not self._is_first(behind):
            self.done.add(behind)
            self._free(behind)
        for unit in self.blocks[index]:
            if not unit.is_frozen:
                self.passed(unit)
        self._need(index)
        self._look_ahead(index - 1, index)

    def _free(self, index: int) -> None:
        if index in self.present:
            self._wait_for([index])
            self.present.discard(index)
            for unit in self.blocks[index]:
                unit.weights.untyped_storage().resize_(0)

    def _free_all(self) -> None:
        for index in list(self.present):
            self._free(index)

    def wait(self, unit: Unit) -> Tensor:
        """Return the weights of one unit, once they are here; not under ZeRO 3."""
        self._wait_for([self.index_of[id(unit)]])
        return unit.weights

    def whole(self, unit: Unit) -> Tensor:
        """Return ``[numel]``, the weights of ``unit`` that the next forward pass computes with. Collective."""
        if self.stage < 3:
            self.finish()
            return unit.weights
        found = unit.part.new_empty(unit.numel)
        dist.all_gather_into_tensor(found, unit.part, group=self.group)
        return found


def _blocks(units: Sequence[Unit], stage: int) -> list[list[Unit]]:
    """Return what is gathered together, in the order of its use."""
    if stage < 3:
        return [[unit] for unit in units]
    found: dict[str, list[Unit]] = {}
    for unit in units:
        found.setdefault(unit.name, []).append(unit)
    return list(found.values())


def _inner_group(run: RunConfig, groups: Groups, stage: int) -> tuple[dist.ProcessGroup | None, int]:
    """Return the neighbours of data x seq that hold a second copy of the weights together, and this rank's place."""
    size = run.deepspeed.hpz_partition_size
    if stage < 3 or size < 2:
        return None, 0
    lines = groups.grid.groups(*GROUPS["data_seq"])
    everyone = [line[i : i + size] for line in lines for i in range(0, len(line), size)]
    mine = next(ranks for ranks in everyone if groups.rank in ranks)
    return join_group(mine, lambda: everyone, group_timeout_s(run.launch.timeout_s)), mine.index(groups.rank)
