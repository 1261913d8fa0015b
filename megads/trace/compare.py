"""What a trace found, line by line against the formulas of ``megads.plan``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from megads.config.engine_choice import choose
from megads.config.schema import RunConfig
from megads.families.decoder import spec_of
from megads.plan.memory import Memory, stage_memories, stages
from megads.plan.parts.activations import Stage
from megads.plan.parts.stacks import head_tokens
from megads.plan.traffic import loss_traffic, traffic
from megads.trace.calls import Call
from megads.trace.step import Trace

SMALL = 4096
"""Bytes of what no formula has: numbers of a step, losses, counts of tokens."""


@dataclass(frozen=True)
class Line:
    """Collectives of one kind on one axis: by the formulas, and as they were asked for.

    Attributes:
        num_bytes: of one; 0: of several sizes, whose sums are compared (DeepSpeed chooses what it sends together).
        counts: by the formulas, and in the trace; of several sizes that of the trace may be another.
        totals: bytes of all of them, likewise.
    """

    axis: str
    kind: str
    ranks: int
    num_bytes: int
    counts: tuple[int, int]
    totals: tuple[int, int]
    what: str

    @property
    def is_equal(self) -> bool:
        """Whether both are the same."""
        return self.totals[0] == self.totals[1] and (not self.num_bytes or self.counts[0] == self.counts[1])


@dataclass(frozen=True)
class Comparison:
    """Lines of the formulas and of what they do not have, and small messages that are in no formula."""

    lines: tuple[Line, ...]
    small: tuple[tuple[Call, int], ...]
    estimate: Memory  # of this rank's stage

    @property
    def is_equal(self) -> bool:
        """Whether the formulas have all messages but small ones, and no others."""
        return all(line.is_equal for line in self.lines)


Key = tuple[str, str, int]
"""Axis, kind and bytes of one."""


def compare(run: RunConfig, trace: Trace) -> Comparison:
    """Return how a trace of ``run`` differs from the formulas."""
    stage = list(stages(run))[trace.stage]
    messages = [*traffic(run, trace.world_size, stage), *loss_traffic(run, stage)]
    # DeepSpeed decides by its buckets what it sends together.
    is_summed = choose(run, trace.world_size).kind == "deepspeed"
    # Losses in chunks are not counted message by message.
    limit = max(SMALL, 8 * head_tokens(run)) if stage.has_head and run.recompute.loss_chunk else SMALL

    def key(axis: str, kind: str, num_bytes: int) -> Key:
        return axis, kind, 0 if is_summed and axis == "data" else num_bytes

    shared = _shared_bytes(run, stage)
    formulas = {key(each.axis, each.kind, each.num_bytes) for each in messages}
    found: dict[Key, Counter[int]] = {}
    small, ranks = [], {each.axis: each.ranks for each in messages}
    for call, count in trace.calls.items():
        if call.kind == "receive":  # what a neighbour sends, as much as this rank does
            continue
        at = key(call.axis, call.kind, call.num_bytes)
        is_known = at in formulas and not (is_summed and call.num_bytes <= 64 and call.kind == "all-reduce")
        most = max(limit, shared) if call.axis == "tensor" and count == 1 else limit
        if not is_known and call.num_bytes <= most and call.kind in ("all-reduce", "broadcast", "reduce"):
            small.append((call, count))
            continue
        ranks.setdefault(call.axis, len(call.ranks))
        found.setdefault(at, Counter())[call.num_bytes] += count
    expected: dict[Key, Counter[int]] = {}
    names: dict[Key, str] = {}
    for each in messages:
        at = key(each.axis, each.kind, each.num_bytes)
        expected.setdefault(at, Counter())[each.num_bytes] += each.count
        names[at] = each.what if each.what in names.get(at, each.what) else f"{names[at]}; {each.what}"
    lines = []
    for at in dict.fromkeys((*expected, *found)):
        by = expected.get(at, Counter()), found.get(at, Counter())
        axis, kind, num_bytes = at
        counts, totals = (sum(each.values()) for each in by), (_total(each.items()) for each in by)
        what = names.get(at, "in no formula")
        lines.append(Line(axis, kind, ranks[axis], num_bytes, _pair(counts), _pair(totals), what))
    estimate = stage_memories(run, trace.world_size)[trace.stage]
    return Comparison(tuple(lines), tuple(sorted(small)), estimate)


def _shared_bytes(run: RunConfig, stage: Stage) -> int:
    """Return the most bytes of gradients of which every tensor rank finds a part: of norms, and of what is whole.

    They are summed once a step. How many of them a rank has depends on its share of the units.
    """
    spec = spec_of(run.model)
    whole = [*(spec.embedding if stage.has_embedding else ()), *(spec.output if stage.has_head else ())]
    whole += [each for number in stage.numbers for each in spec.layer_of(number)]
    return 4 * sum(each.size for each in whole if each.dim is None and spec.is_trained(each))


def _total(sizes: Iterable[tuple[int, int]]) -> int:
    return sum(num_bytes * count for num_bytes, count in sizes)


def _pair(values: Iterable[int]) -> tuple[int, int]:
    first, second = values
    return first, second
