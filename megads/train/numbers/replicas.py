"""Compares what several ranks hold copies of, bit by bit, and names the rank whose copy differs.

Memory, devices and networks flip bits without an error, and a copy that differs trains on. Compared are, every
REPLICA_INTERVAL steps and in the step before a save, between backward pass and update:

* over data x seq: the weights that the model computes with, except under ZeRO 3; under ZeRO 0 masters and moments too;
* over the ends of a pipeline: the tied embedding;
* over the tensor axis: weights that are whole on every rank, such as norms. Their ranks update them on their own, so
  they may differ by rounding.

What only one rank holds (masters under ZeRO 1 to 3) has no copy to be compared with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megads.comm.groups import ENDS
from megads.comm.messages import all_gather_values
from megads.config.deepspeed.dictionary import effective_zero_stage
from megads.errors import ReplicaError
from megads.monitor.log import LOG
from megads.text.plural import plural
from megads.train.numbers.checksums import checksums, differing
from megads.train.setup import Training

ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 2**-4, torch.float16: 2**-6}
"""By how much of its largest element a weight may differ between tensor-parallel ranks that update it on their own."""

SHOWN = 3  # tensors in a message


@dataclass(frozen=True)
class Difference:
    """Ranks that hold copies of the same tensors, and those whose copies differ from most others'."""

    ranks: tuple[int, ...]
    odd: tuple[int, ...]  # all of them where no value is that of most
    tensors: tuple[str, ...]
    compared: int  # tensors

    @property
    def is_certain(self) -> bool:
        """Whether most copies agree, so that the others are the wrong ones."""
        return len(self.odd) < len(self.ranks)


@dataclass
class _Set:
    """Tensors of which every rank of a group holds a copy."""

    group: dist.ProcessGroup
    ranks: tuple[int, ...]
    tensors: Callable[[], Mapping[str, Tensor]]
    may_round: bool = False
    told: set[str] = field(default_factory=set)  # of which rounding was reported


class ReplicaCheck:
    """Compares the copies of one run. All ranks call it in the same steps."""

    def __init__(self, training: Training):
        self.training = training
        self.interval = training.run.stability.replica_interval
        self.sets = list(_sets(training)) if self.interval else []
        self.agreed_in = training.progress.iteration  # the last step in which all copies were equal
        self.reported: set[tuple[int, ...]] = set()

    def is_due(self, iteration: int) -> bool:
        """Return whether copies are compared in step ``iteration``, the same on every rank."""
        saves = self.training.run.checkpoint.save_interval
        if not self.interval or self.training.groups.world is None:
            return False
        return bool(iteration % self.interval == 0 or bool(saves and iteration % saves == 0))

    def look(self, iteration: int) -> None:
        """Compare all copies. Collective over all ranks; between the backward pass and the update of a step.

        Raises:
            ReplicaError: on every rank, when some differ and ON_DIVERGENCE=stop.
        """
        device = self.training.device
        wrong = [(each, self._compare(each)) for each in self.sets]
        is_wrong = torch.tensor([int(any(bool(found.any()) for _, found in wrong))], device=device)
        dist.all_reduce(is_wrong, op=dist.ReduceOp.MAX)
        if not int(is_wrong):
            self.agreed_in = iteration
            return
        mine = [each for held, found in wrong if (each := self._explain(held, found)) is not None]
        everyone = {each.ranks: each for rank in all_gather_values(mine) for each in rank}
        if not everyone:  # rounding on the tensor axis
            self.agreed_in = iteration
            return
        self._report(iteration, list(everyone.values()))

    def _compare(self, held: _Set) -> Tensor:
        return differing(checksums(list(held.tensors().values()), self.training.device), held.group)

    def _explain(self, held: _Set, found: Tensor) -> Difference | None:
        """Return who differs. Collective over the group where its checksums differ, which all of its ranks know."""
        if not bool(found.any()):
            return None
        names = [name for name, wrong in zip(held.tensors(), found.tolist(), strict=True) if wrong]
        odd: Counter[int] = Counter()
        wrong = []
        for name in names:
            tensor = held.tensors()[name]
            ranks = self._beyond_rounding(held, name, tensor) if held.may_round else self._minority(held, tensor)
            if ranks:
                odd.update(ranks)
                wrong.append(name)
        return Difference(held.ranks, tuple(sorted(odd)), tuple(wrong), len(found)) if odd else None

    def _minority(self, held: _Set, tensor: Tensor) -> list[int]:
        """Return the ranks whose checksum is not that of most; all ranks where none is. Collective."""
        mine = checksums([tensor], self.training.device)
        everyone = mine.new_empty(len(held.ranks))
        dist.all_gather_into_tensor(everyone, mine, group=held.group)
        value, count = Counter(everyone.tolist()).most_common(1)[0]
        if 2 * count <= len(held.ranks):
            return list(held.ranks)
        return [rank for rank, each in zip(held.ranks, everyone.tolist(), strict=True) if each != value]

    def _beyond_rounding(self, held: _Set, name: str, tensor: Tensor) -> list[int]:
        """Return the ranks whose copy differs from the median copy by more than rounding. Collective."""
        flat = tensor.detach().reshape(-1).float()
        everyone = flat.new_empty(len(held.ranks), len(flat))
        dist.all_gather_into_tensor(everyone.view(-1), flat.contiguous(), group=held.group)
        middle = everyone.median(dim=0).values
        limit = ROUNDING[tensor.dtype] * float(middle.abs().max().nan_to_num(0.0))
        far = ~((everyone - middle).abs().amax(dim=1) <= limit)  # NaN is far, too
        if not bool(far.any()):
            if name not in held.told and self.training.groups.rank == held.ranks[0]:
                LOG.debug("replica check: %s differs by rounding over tensor-parallel ranks %s", name, held.ranks)
            held.told.add(name)
            return []
        # Of two copies the median is one of them: neither is known to be right.
        return (
            list(held.ranks)
            if len(held.ranks) == 2
            else [rank for rank, is_far in zip(held.ranks, far.tolist(), strict=True) if is_far]
        )

    def _report(self, iteration: int, found: Sequence[Difference]) -> None:
        odd = tuple(sorted({rank for each in found for rank in each.odd}))
        text = f"step {iteration}: replica check: " + "; ".join(self._told(each) for each in found[:SHOWN])
        certain = all(each.is_certain for each in found)
        if self.training.run.stability.on_divergence == "stop":
            hosts = self.training.hosts
            host = hosts[odd[0]] if certain and hosts and len({hosts[rank] for rank in odd}) == 1 else ""
            raise ReplicaError(f"{text}; {self._cure(certain=certain)}", odd[0] if certain else -1, host)
        if odd not in self.reported and self.training.groups.rank == 0:
            LOG.warning("%s; ON_DIVERGENCE=report continues", text)
        self.reported.add(odd)

    def _told(self, found: Difference) -> str:
        shown = ", ".join(found.tensors[:SHOWN]) + (", ..." if len(found.tensors) > SHOWN else "")
        which = f"{shown} ({len(found.tensors)} of {plural(found.compared, 'tensor')} compared)"
        if found.is_certain:
            others = len(found.ranks) - len(found.odd)
            verb = "differs" if len(found.odd) == 1 else "differ"
            return f"{self._places(found.odd)} {verb} from {plural(others, 'other copy')} of {which}"
        return f"{self._places(found.odd)} hold different copies of {which}, and none is that of most"

    def _places(self, ranks: Sequence[int]) -> str:
        hosts = self.training.hosts
        told = [f"{rank} ({hosts[rank]})" if hosts else str(rank) for rank in ranks]
        return f"rank{'s' if len(told) > 1 else ''} {' and '.join(told)}"

    def _cure(self, *, certain: bool) -> str:
        before = f"in step {self.agreed_in} all copies were equal, and checkpoints up to there are right"
        if certain:
            return f"{before}; a device, memory or network is damaged: resume without that host (MAX_RESTARTS does)"
        return (
            f"{before}; two copies do not show which one is wrong: run `megads doctor` and `megads bench` on both "
            "hosts, or resume on others"
        )


def _sets(training: Training) -> Iterator[_Set]:
    groups, engine = training.groups, training.engine
    if groups.world is None:
        return
    is_whole = effective_zero_stage(training.run) < 3 or groups.data_seq_size == 1
    chunks: Sequence[nn.Module] = getattr(engine, "chunks", None) or [engine.module]

    def parameters() -> dict[str, nn.Parameter]:
        return {name: each for chunk in chunks for name, each in chunk.named_parameters()}

    def weights() -> dict[str, Tensor]:
        _ = engine.module  # waits for what is on its way
        return {name: each.data for name, each in parameters().items()} if is_whole else {}

    def on_data() -> dict[str, Tensor]:
        return {**weights(), **dict(engine.state.replicated())}

    def on_tensor() -> dict[str, Tensor]:
        known = parameters()
        return {name: each for name, each in weights().items() if getattr(known[name], "shard", None) is None}

    def on_ends() -> dict[str, Tensor]:
        tied = getattr(engine, "tied", None)
        return {"embedding.weight": tied.weight.data} if tied is not None and is_whole else {}

    if groups.data_seq is not None and on_data():
        yield _Set(groups.data_seq, groups.ranks("data_seq"), on_data)
    if groups.ends is not None and on_ends():
        yield _Set(groups.ends, groups.ranks(ENDS), on_ends)
    if groups.tensor is not None and on_tensor():
        yield _Set(groups.tensor, groups.ranks("tensor"), on_tensor, may_round=True)
