"""What may go wrong with a layout that is proposed, in a few words each."""

from __future__ import annotations

from collections.abc import Iterator

from megads.config.stages import schedule_of
from megads.plan.search.ask import TOKENS_PER_STEP, Ask
from megads.plan.search.search import Candidate

TIGHT, LONG_IDLE = 0.95, 0.2
"""Share of the memory that may be used, and of a step in which stages wait, from which it is said."""


def risks(candidate: Candidate, ask: Ask) -> Iterator[str]:
    """Yield risks of a candidate that fits."""
    run, memory, time = candidate.timed()
    grid = run.parallel
    share = memory.total / ask.device_bytes
    if share > TIGHT * ask.max_memory:
        yield f"memory {share:.0%} full"
    if grid.tensor > ask.ranks_per_host:
        yield "TP across hosts"
    elif grid.tensor * grid.sequence > ask.ranks_per_host and grid.sequence > 1:
        yield "SP across hosts"
    if time.share("idle") > LONG_IDLE:
        yield f"stages wait {time.share('idle'):.0%}"
    if grid.zero_stage == 3 and ask.world_size > ask.ranks_per_host:
        yield "ZeRO 3 across hosts"
    if schedule_of(run) == "zb-h1":
        yield "zb-h1"
    if run.train.global_batch * run.model.seq_length > 2 * TOKENS_PER_STEP:
        yield "large batch"
