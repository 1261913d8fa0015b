"""What would help a plan most that its search may not change: the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from megads.errors import ConfigError
from megads.plan.search.ask import TOKENS_PER_STEP, Ask
from megads.plan.search.hosts import MOST_TIMED
from megads.plan.search.search import Found, search_for
from megads.text.units import count

LONG_WAITS, WORTH = 0.3, 1.2
"""Share of a step in messages and waits from which a larger batch is tried; the gain from which it is proposed."""


def advice_lines(best: Found) -> Iterator[str]:
    """Yield a line where the batch is too small for the ranks: what a larger one would reach."""
    ask, (run, _, time) = best.ask, best.best[0].timed()
    if not ask.batch or time.share("communication") + time.share("idle") < LONG_WAITS:
        return
    for batch in _larger(ask, run.model.seq_length):
        try:
            found = search_for(replace(ask, global_batch=batch), 1, MOST_TIMED)
        except ConfigError:  # of the settings only this batch breaks a rule
            continue
        mfu = found.best[0].timed()[2].mfu_full if found.best else 0.0
        if mfu >= WORTH * time.mfu_full:
            tokens = count(batch * run.model.seq_length)
            yield (
                f"advice   the batch is small for {ask.world_size:,} ranks: GLOBAL_BATCH={batch}, {tokens} tokens per "
                f"step, would reach {mfu:.0%} MFU instead of {time.mfu_full:.0%}; it changes the training"
            )
            return


def _larger(ask: Ask, length: int) -> Iterator[int]:
    """Yield batches that are tried: some times as large with a sample for each rank, and the largest usual one."""
    doubled = [ask.batch << power for power in range(1, TOKENS_PER_STEP.bit_length())]
    usual = [batch for batch in doubled if batch * length <= TOKENS_PER_STEP]
    enough = [batch for batch in usual[1:] if batch >= ask.world_size]
    yield from dict.fromkeys([*enough[:1], *usual[-1:]])
