"""Why one layout is slower than another: what of the step grew most."""

from __future__ import annotations

from megads.plan.search.search import Candidate
from megads.plan.time.step import StepTime

WHAT = {
    "compute": "computation",
    "memory": "reading and writing memory",
    "communication": "communication",
    "idle": "waiting of stages",
    "host": "the host",
}


LEAST = 0.02
"""By which a share must be larger to be what is said."""


def _of(time: StepTime, name: str) -> float:
    return sum(line.seconds for line in time.lines if line.kind == name)


def slower(candidate: Candidate, best: Candidate) -> str:
    """Return by how much ``candidate`` is slower than ``best``, and because of what; times are per token."""
    mine, theirs = candidate.timed()[2], best.timed()[2]
    ratio = theirs.tokens_per_s / mine.tokens_per_s
    each, other = mine.tokens / mine.world_size, theirs.tokens / theirs.world_size
    longer = {name: _of(mine, name) / each for name in WHAT}
    before = {name: _of(theirs, name) / other for name in WHAT}
    growth = {name: longer[name] - before[name] for name in WHAT}
    worst = max(growth, key=lambda name: growth[name])
    line = max((each for each in mine.lines if each.kind == worst), key=lambda each: each.seconds)
    share, less = f"{mine.share(line.kind):.0%}", f"{theirs.share(line.kind):.0%}"
    if before[worst] and mine.share(line.kind) - theirs.share(line.kind) < LEAST:
        what = f"{longer[worst] / before[worst] - 1:.0%} more time for each token"
    else:
        what = f"{share} of the step, not {less}"
    name = line.name.removeprefix(f"{worst}, ").removeprefix(f"{worst}: ").removesuffix(" of the pipeline")
    return f"{100 * (ratio - 1):.1f} % slower: {WHAT[worst]} takes {what} ({name})"
