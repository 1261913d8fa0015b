"""A pipeline's timeline in text: a line per stage, a column per unit of time."""

from __future__ import annotations

from megads.config.pipeline.actions import Action, actions
from megads.config.pipeline.clock import Costs, Timeline, simulate
from megads.config.pipeline.idle import idle_time
from megads.text.plural import plural

WIDEST, MOST_STAGES = 100, 16
LEGEND = "0-9 forward, a-j backward, . idle"
LEGEND_W = "0-9 forward, a-j backward of the inputs, w weight gradients, . idle"


def drawn_micro_batches(schedule: str, stages: int, chunks: int, micro_batches: int) -> int:
    """Return how many of the micro-batches fit a line; 0: too few of them to show the schedule."""
    rounds = range(micro_batches // stages * stages, 0, -stages)
    for count in (micro_batches, *rounds):
        if idle_time(schedule, stages, chunks, count) + 3 * chunks * count <= WIDEST:
            return count if stages <= MOST_STAGES else 0
    return 0


def drawing(timeline: Timeline) -> list[str]:
    """Return a line per stage of a timeline in whole units; the last digit of a micro-batch stands for it."""
    lines = []
    for stage, spans in enumerate(timeline.stages):
        line = ["."] * int(timeline.length)
        for span in spans:
            line[int(span.start) : int(span.end)] = _letter(span.action) * int(span.end - span.start)
        lines.append(f"stage {stage:<2} {''.join(line)}")
    return lines


def drawing_of(schedule: str, stages: int, chunks: int, micro_batches: int) -> list[str]:
    """Return title and drawing of a schedule whose chunks take the same time, a backward pass that of two forwards.

    Empty where it does not fit.
    """
    count = drawn_micro_batches(schedule, stages, chunks, micro_batches)
    if not count:
        return []
    legend = LEGEND_W if schedule == "zb-h1" else LEGEND
    shown = f"{count} of {micro_batches} micro-batches" if count < micro_batches else plural(count, "micro-batch")
    lines = drawing(simulate(actions(schedule, stages, chunks, count), Costs()))
    return [f"pipeline  {schedule}, {shown}: {legend}", *(f"  {line}" for line in lines)]


def _letter(action: Action) -> str:
    digit = action.micro_batch % 10
    return {"F": str(digit), "B": chr(ord("a") + digit), "W": "w"}[action.kind]
