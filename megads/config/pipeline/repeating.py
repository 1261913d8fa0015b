"""Steps of thousands of micro-batches: the simulated clock, without what it would only repeat.

After some rounds every round of micro-batches takes the same time: all stages, messages and links are where they were
a round, or a few, before, so many seconds later. What follows from such a moment is the same, so the rounds in between
count by their length. This is exact: a moment is compared in whole numbers, and where none repeats, all is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from megads.config.pipeline.actions import Action, actions, groups_of, warm_up
from megads.config.pipeline.clock import Costs, Number, Timeline, Wire, simulate

BITS = 44
"""Of the longest time in whole numbers, where times are floats."""


class Window(NamedTuple):
    """From the start to the end of something."""

    start: Number
    end: Number


@dataclass(frozen=True)
class StageEnd:
    """How a stage ends the passes of a step."""

    busy: Number  # time in which it computes
    last: tuple[Window, ...]  # of every chunk: the action that has the last gradient of its weights

    @property
    def end(self) -> Number:
        """Return the end of the last pass."""
        return max(window.end for window in self.last)


def stage_ends(timeline: Timeline) -> tuple[StageEnd, ...]:
    """Return how the stages of a simulated step end."""
    found = []
    for stage, spans in enumerate(timeline.stages):
        last = {span.action.chunk: Window(span.start, span.end) for span in spans if span.action.kind != "F"}
        found.append(StageEnd(timeline.busy(stage), tuple(last[chunk] for chunk in sorted(last))))
    return tuple(found)


def ends_of(
    schedule: str, stages: int, chunks: int, micro_batches: int, costs: Costs | None = None, most: int | None = None
) -> tuple[StageEnd, ...]:
    """Return what ``stage_ends(simulate(...))`` does, in a time that hardly depends on the micro-batches.

    Whole numbers and fractions stay exact. Floats are rounded once, at the start, to a part in 10^13 of the longest.

    Args:
        most: forward passes that are simulated; where nothing has repeated by then, later rounds take as long as those
            before, which is no longer exact. None: any number.

    Raises:
        ConfigError: the schedule does not exist, or not for so many chunks.
    """
    whole, unit = _in_whole_numbers(costs or Costs(), stages, chunks)
    found = _ends(schedule, stages, chunks, micro_batches, whole, most or math.inf)
    return tuple(
        StageEnd(each.busy * unit, tuple(Window(start * unit, end * unit) for start, end in each.last))
        for each in found
    )


def _ends(
    schedule: str, stages: int, chunks: int, micro_batches: int, costs: Costs, most: float
) -> tuple[StageEnd, ...]:
    size = stages if schedule == "interleaved" else 1  # micro-batches of a round
    rest = micro_batches % size
    few = rest + size * (rest + 4) if size > 1 else 2 * stages + 8
    while 2 * few <= micro_batches:
        timeline = simulate(actions(schedule, stages, chunks, few), costs)
        cuts = list(_cuts(schedule, stages, chunks, few))
        repeated = _repeated(timeline, cuts, chunks)
        if repeated is not None:
            rounds, length = repeated
            more = (micro_batches - few) // size % rounds
            if more:
                few += more * size
                timeline = simulate(actions(schedule, stages, chunks, few), costs)
            return _later(stage_ends(timeline), (micro_batches - few) // size // rounds * length, micro_batches, few)
        if 2 * few * stages * chunks > most and len(cuts) > 1:
            return _later(
                stage_ends(timeline), (micro_batches - few) // size * _mean(timeline, cuts), micro_batches, few
            )
        few += (few - rest) // size * size
    return stage_ends(simulate(actions(schedule, stages, chunks, micro_batches), costs))


def _mean(timeline: Timeline, cuts: Sequence[_Cut]) -> Number:
    """Return the time of a round: the mean of the later half of those that were simulated."""
    middle, last = cuts[len(cuts) // 2 - 1], cuts[-1]
    then, now = (timeline.stages[0][cut.done[0] - 1].end for cut in (middle, last))
    return Fraction(now - then) / (len(cuts) - len(cuts) // 2)


def _later(ends: tuple[StageEnd, ...], by: Number, micro_batches: int, few: int) -> tuple[StageEnd, ...]:
    """Return the ends of ``few`` micro-batches for all of them: later, and after more work."""
    return tuple(
        StageEnd(each.busy * micro_batches // few, tuple(Window(start + by, end + by) for start, end in each.last))
        for each in ends
    )


class _Cut(NamedTuple):
    """A moment of every stage after whole rounds: its actions until then, and the micro-batches of these rounds."""

    done: tuple[int, ...]
    micro_batches: int


def _cuts(schedule: str, stages: int, chunks: int, micro_batches: int) -> Iterator[_Cut]:
    """Yield the moments after which a schedule would continue with any number of further rounds."""
    first = [warm_up(schedule, stages, chunks, micro_batches, stage) for stage in range(stages)]
    if schedule == "interleaved":
        count, rest = divmod(micro_batches, stages)
        if rest >= count:
            return  # no group has as many micro-batches as there are stages
        assert [len(group) for group in groups_of(micro_batches, stages)][rest:] == [stages] * (count - rest)
        starts = range(rest * (stages + 1), micro_batches, stages)
    else:
        starts = range(stages, micro_batches)
    for start in starts:
        passes = chunks * start
        if max(first) + passes > chunks * micro_batches:
            return
        each = 3 if schedule == "zb-h1" else 2
        late = stages if schedule == "zb-h1" else 0  # weight gradients that a stage has put off
        yield _Cut(tuple(at + each * passes - (stage if late else 0) for stage, at in enumerate(first)), start)


def _repeated(timeline: Timeline, cuts: Iterable[_Cut], chunks: int) -> tuple[int, int] | None:
    """Return after how many rounds all is as it was, and how much later; None: in none of the cuts."""
    state = _State(timeline, chunks)
    seen: dict[tuple[object, ...], tuple[int, int]] = {}
    for number, cut in enumerate(cuts):
        now, found = state.at(cut)
        if found in seen:
            before, then = seen[found]
            return number - before, now - then
        seen[found] = number, now
    return None


class _State:
    """What decides the rest of a step, at cuts that follow each other. Times count from that of the first stage."""

    def __init__(self, timeline: Timeline, chunks: int):
        self.timeline, self.stages, self.chunks = timeline, len(timeline.stages), chunks
        self.used = [{span.action: at for at, span in enumerate(spans)} for spans in timeline.stages]
        self.sent = [0] * self.stages
        self.links: dict[tuple[int, int], int] = {}
        self.under_way: dict[tuple[int, Action], int] = {}  # stage, action that needs it, when it is there

    def at(self, cut: _Cut) -> tuple[int, tuple[object, ...]]:
        """Return the time of a cut and its state."""
        ends = [spans[done - 1].end for spans, done in zip(self.timeline.stages, cut.done, strict=True)]
        for stage, done in enumerate(cut.done):
            self._send(stage, done)
        for stage, action in list(self.under_way):
            if self.used[stage][action] < cut.done[stage]:
                del self.under_way[stage, action]
        now = ends[0]
        links = {pair: max(left, ends[pair[0]]) - now for pair, left in self.links.items()}
        messages = {
            (stage, action.kind, action.chunk, action.micro_batch - cut.micro_batches): max(ready, ends[stage]) - now
            for (stage, action), ready in self.under_way.items()
        }
        found = tuple(end - now for end in ends), tuple(sorted(links.items())), tuple(sorted(messages.items()))
        return now, found  # type: ignore[return-value]  # whole numbers

    def _send(self, stage: int, done: int) -> None:
        """Note what the first ``done`` actions of a stage send."""
        sent, used = self.timeline.sent[stage], self.used[stage]
        while self.sent[stage] < len(sent):
            each = sent[self.sent[stage]]
            if used[each.action] >= done:
                return
            step = 1 if each.action.kind == "F" else -1
            virtual = each.action.chunk * self.stages + stage + step
            action = Action(each.action.kind, virtual // self.stages, each.action.micro_batch)
            self.links[stage, each.target] = each.left  # type: ignore[assignment]
            self.under_way[each.target, action] = each.end  # type: ignore[assignment]
            self.sent[stage] += 1


def _in_whole_numbers(costs: Costs, stages: int, chunks: int) -> tuple[Costs, Number]:
    """Return costs in whole numbers, and what one is worth."""
    passes = [costs.of(stage, chunk) for stage in range(stages) for chunk in range(chunks)]
    wires = [costs.wire(virtual) for virtual in range(stages * chunks - 1)]
    numbers = [number for each in (*passes, *wires) for number in each]
    unit: Number
    if any(isinstance(number, float) for number in numbers):
        unit = 2.0 ** (math.frexp(max(map(float, numbers)))[1] - BITS)
        whole = {number: round(float(number) / unit) for number in numbers}
    else:
        unit = Fraction(1, math.lcm(*(Fraction(number).denominator for number in numbers)))
        whole = {number: int(number / unit) for number in numbers}
    times = [(whole[f], whole[b], whole[w]) for f, b, w in passes]
    rows = tuple(tuple(times[stage * chunks : (stage + 1) * chunks]) for stage in range(stages))
    return replace(costs, passes=rows, wires=tuple(Wire(whole[a], whole[b]) for a, b in wires)), unit
