"""Why one layout is slower than another: what of the step grew most."""

from __future__ import annotations

from megads.plan.search.search import Candidate

WHAT = {
    "compute": "computation",
    "memory": "reading and writing memory",
    "communication": "communication",
    "idle": "waiting of stages",
    "host": "the host",
}


def slower(candidate: Candidate, best: Candidate) -> str:
    """Return by how much ``candidate`` is slower than ``best``, and because of what; times are per token."""
    mine, theirs = candidate.timed()[2], best.timed()[2]
    ratio = theirs.tokens_per_s / mine.tokens_per_s
    each, other = mine.tokens / mine.world_size, theirs.tokens / theirs.world_size
    growth = {
        name: sum(line.seconds for line in mine.lines if line.kind == name) / each
        - sum(line.seconds for line in theirs.lines if line.kind == name) / other
        for name in WHAT
    }
    worst = max(growth, key=lambda name: growth[name])
    line = max((each for each in mine.lines if each.kind == worst), key=lambda each: each.seconds)
    shares = f"{mine.share(line.kind):.0%} of the step, not {theirs.share(line.kind):.0%}"
    name = line.name.removeprefix(f"{worst}, ").removeprefix(f"{worst}: ").removesuffix(" of the pipeline")
    return f"{100 * (ratio - 1):.1f} % slower: {WHAT[worst]} takes {shares} ({name})"
