"""What would help a plan most that its search may not change: the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from megads.errors import ConfigError
from megads.plan.search.ask import TOKENS_PER_STEP
from megads.plan.search.hosts import MOST_TIMED
from megads.plan.search.search import Found, search_for
from megads.text.units import count

LONG_WAITS, WORTH = 0.3, 1.2
"""Share of a step in messages and waits from which a larger batch is tried; the gain from which it is proposed."""


def advice_lines(found: Found) -> Iterator[str]:
    """Yield a line where the batch is too small for the ranks: what a larger one would reach."""
    ask, (run, _, time) = found.ask, found.best[0].timed()
    if not ask.batch or time.share("communication") + time.share("idle") < LONG_WAITS:
        return
    batch = ask.batch
    while 2 * batch * run.model.seq_length <= TOKENS_PER_STEP:
        batch *= 2
    if batch == ask.batch:
        return
    try:
        larger = search_for(replace(ask, global_batch=batch), 1, MOST_TIMED).best
    except ConfigError:  # of the settings only this batch breaks a rule
        return
    if larger and (mfu := larger[0].timed()[2].mfu_full) >= WORTH * time.mfu_full:
        tokens = count(batch * run.model.seq_length)
        yield (
            f"advice   the batch is small for {ask.world_size:,} ranks: GLOBAL_BATCH={batch}, {tokens} tokens per step,"
            f" would reach {mfu:.0%} MFU instead of {time.mfu_full:.0%}; it changes the training"
        )
