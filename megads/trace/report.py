"""A trace as a person reads it, and as JSON."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from megads.comm.grid import Grid
from megads.config.engine_choice import choose
from megads.config.schema import RunConfig
from megads.plan.memory import Memory
from megads.text.plural import plural
from megads.text.units import size
from megads.trace.calls import Call
from megads.trace.compare import Comparison, Line
from megads.trace.memory import Peak
from megads.trace.step import Trace

PHASES = ("forward", "backward", "update")


def report(run: RunConfig, trace: Trace, found: Comparison) -> list[str]:
    """Return the lines that ``megads plan --trace`` prints."""
    lines = [*_head(run, trace), "", *_calls(trace), "", *_axes(trace), "", *_formulas(found)]
    return [*lines, "", *_memory(trace.peak, found.estimate)] if trace.peak else lines


def content(run: RunConfig, trace: Trace, found: Comparison) -> dict[str, Any]:
    """Return everything, for JSON."""
    calls = [{**_fields(call), "ranks": list(call.ranks), "count": trace.calls[call]} for call in _ordered(trace.calls)]
    peak = trace.peak
    return {
        "rank": trace.rank,
        "world_size": trace.world_size,
        "stage": trace.stage,
        "engine": choose(run, trace.world_size).kind,
        "collectives": calls,
        "axes": {axis: {"messages": count, "bytes": total} for axis, (count, total) in _totals(trace).items()},
        "formulas": [_line(line) for line in found.lines],
        "not_in_formulas": [{**_fields(call), "count": count} for call, count in found.small],
        "equal": found.is_equal,
        "memory": {"peak": vars(peak), "peak_total": peak.total, "estimate": planned(found.estimate)} if peak else None,
        "seconds": round(trace.seconds, 2),
    }


def as_json(run: RunConfig, trace: Trace, found: Comparison) -> str:
    """Return :func:`content` as text."""
    return json.dumps(content(run, trace, found), indent=2)


def planned(memory: Memory) -> dict[str, int]:
    """Return the estimate by the kinds of a peak; the program and a copy that is being saved are not in a trace."""
    return {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "buffers": memory.buffers,
        "activations": memory.activations + memory.logits,
    }


def ranks_text(ranks: Sequence[int]) -> str:
    """Return the ranks of a group in a few words."""
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    if len(ranks) <= 4 or any(b - a != step for a, b in itertools.pairwise(ranks)):
        shown = ", ".join(map(str, ranks[:4]))
        return shown if len(ranks) <= 4 else f"{shown}, .. {ranks[-1]}"
    return f"{ranks[0]}-{ranks[-1]}" if step == 1 else f"{ranks[0]}, {ranks[1]}, .. {ranks[-1]}"


def _head(run: RunConfig, trace: Trace) -> list[str]:
    grid = run.parallel
    place = Grid(grid.pipeline, grid.data, grid.sequence, grid.tensor).coordinate(trace.rank)
    where = ", ".join(f"{axis} {place[axis]}" for axis in ("pipe", "data", "seq", "tensor"))
    layout = f"TP={grid.tensor} PP={grid.pipeline} SP={grid.sequence} DP={grid.data} ZeRO={grid.zero_stage}"
    batches = plural(run.train.grad_acc_steps, "micro-batch")
    return [
        f"rank     {trace.rank} of {trace.world_size}: {where} ({layout})",
        f"engine   {choose(run, trace.world_size)}",
        f"traced   a step of {batches}, without data, in {trace.seconds:.1f} s",
    ]


def _ordered(calls: Iterable[Call]) -> list[Call]:
    return sorted(calls, key=lambda call: (PHASES.index(call.phase), call.axis, call.kind, -call.num_bytes))


def _calls(trace: Trace) -> list[str]:
    lines = [f"{'phase':<9}{'axis':<8}{'collective':<15}{'count':>6}{'each':>10}{'all':>10}  ranks"]
    for call in _ordered(trace.calls):
        count = trace.calls[call]
        ranks = f"{len(call.ranks)}: {ranks_text(call.ranks)}"
        each, total = size(call.num_bytes), size(count * call.num_bytes)
        lines.append(f"{call.phase:<9}{call.axis:<8}{call.kind:<15}{count:>6}{each:>10}{total:>10}  {ranks}")
    return lines


def _totals(trace: Trace) -> dict[str, tuple[int, int]]:
    messages, totals = Counter[str](), Counter[str]()
    for call, count in trace.calls.items():
        messages[call.axis] += count
        totals[call.axis] += count * call.num_bytes
    return {axis: (messages[axis], totals[axis]) for axis in sorted(messages)}


def _axes(trace: Trace) -> list[str]:
    found = _totals(trace).items()
    return [f"{axis:<9}{size(total):>10} in {plural(count, 'message')}" for axis, (count, total) in found]


def _formulas(found: Comparison) -> list[str]:
    head = f"{'axis':<8}{'collective':<15}{'each':>10}{'formula':>18}{'traced':>18}  difference"
    lines = [head, *(_formula(line) for line in found.lines)]
    if found.small:
        count, total = sum(n for _, n in found.small), sum(n * call.num_bytes for call, n in found.small)
        lines.append(f"not in the formulas: {plural(count, 'message')} of losses, norms and counts, {size(total)}")
    return lines


def _formula(line: Line) -> str:
    each = size(line.num_bytes) if line.num_bytes or not any(line.totals) else "several"
    by, traced = (f"{n} x, {size(total)}" for n, total in zip(line.counts, line.totals, strict=True))
    difference = f"none ({line.what})" if line.is_equal else f"{line.totals[1] - line.totals[0]:+,} bytes ({line.what})"
    return f"{line.axis:<8}{line.kind:<15}{each:>10}{by:>18}{traced:>18}  {difference}"


def _memory(peak: Peak, estimate: Memory) -> list[str]:
    by = planned(estimate)
    traced = {**vars(peak), "activations": peak.activations + peak.temporary}
    traced.pop("temporary")
    lines = [f"{'memory':<14}{'estimate':>10}{'traced':>10}"]
    lines += [f"{kind:<14}{size(by[kind]):>10}{size(traced[kind]):>10}" for kind in by]
    total, share = sum(by.values()), (sum(by.values()) - peak.total) / max(1, peak.total)
    lines.append(f"{'peak':<14}{size(total):>10}{size(peak.total):>10}  {share:+.1%}")
    others = estimate.program + estimate.copy
    lines.append(f"and {size(others)} of the program and what it saves, which a trace does not have")
    return lines


def _fields(call: Call) -> dict[str, Any]:
    return {"phase": call.phase, "axis": call.axis, "kind": call.kind, "num_bytes": call.num_bytes}


def _line(line: Line) -> dict[str, Any]:
    names = ("formula", "traced")
    return {
        **{name: getattr(line, name) for name in ("axis", "kind", "ranks", "num_bytes", "what")},
        "counts": dict(zip(names, line.counts, strict=True)),
        "bytes": dict(zip(names, line.totals, strict=True)),
        "equal": line.is_equal,
    }
