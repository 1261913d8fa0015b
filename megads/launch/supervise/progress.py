"""Whether starting a run again makes sense, after what its starts so far have reached."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from megads.errors import EXIT_WRONG
from megads.monitor.run_state.attempts import Attempt


def reason_against(past: Sequence[Attempt], max_restarts: int) -> str:
    """Return why another attempt after ``past`` makes no sense, or nothing.

    An attempt makes progress when it gets further than every one before it, since the ranks last had
    to resume from an older checkpoint than before.
    """
    last = past[-1]
    if last.exit_code == EXIT_WRONG or last.kind == "wrong":
        return "the same would happen again"
    if last.kind == "import":
        return "a package is missing or broken"
    if last.exit_code == 128 + signal.SIGINT:
        return "interrupted"
    if len(past) > max_restarts:
        return f"MAX_RESTARTS={max_restarts} is used up"
    before = past[-2] if len(past) > 1 else None
    if before and last.kind == before.kind == "memory" and last.reached == before.reached:
        return f"out of memory twice after iteration {last.reached}; lower MICRO_BATCH or raise ZERO_STAGE"
    if before and not _progressed(past) and not _progressed(past[:-1]):
        return f"two attempts in a row did not get beyond iteration {last.reached}"
    return ""


def _progressed(past: Sequence[Attempt]) -> bool:
    first = max(i for i, each in enumerate(past) if i == 0 or each.began < past[i - 1].began)
    furthest = max([past[first].began, *(each.reached for each in past[first:-1])])
    return past[-1].reached > furthest
