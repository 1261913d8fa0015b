"""What is kept from the beginning of a start on, to say why it ended."""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field

from megads.config.run_folder import ENDS_AT
from megads.launch.launchers.plan import LaunchPlan
from megads.launch.supervise.end import Ended
from megads.launch.supervise.processes import memory_kills
from megads.launch.supervise.watch import Watch
from megads.monitor.run_state.outcome import Outcome

TAIL = 1 << 16  # bytes of what was printed


@dataclass
class Evidence:
    """What the host knows of a start before it begins: processes killed for memory, and how much was printed.

    The output of a batch job is a file, which launcher, ranks and scheduler write to; its end
    is read again. A terminal or a pipe keeps nothing.
    """

    kills: int = field(default_factory=memory_kills)
    offsets: dict[int, int] = field(default_factory=lambda: _sizes())

    def ended(self, plan: LaunchPlan, watch: Watch, outcome: Outcome | None) -> Ended:
        """Return how a plan ended whose launcher ``watch`` has waited for."""
        ends = plan.env.get(ENDS_AT, "")
        return Ended(
            watch.family.starter.returncode,
            outcome,
            watch.aborted_by,
            watch.stop_asked,
            out_of_memory=memory_kills() > self.kills,
            said="\n".join(filter(None, (_tail(stream, start) for stream, start in self.offsets.items()))),
            left_s=float(ends) - time.time() if ends.isdigit() else None,
        )


def _sizes() -> dict[int, int]:
    """Return the sizes of the files that stdout and stderr are, once where both are the same."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for stream in (1, 2):
        with suppress(OSError):
            facts = os.fstat(stream)
            if stat.S_ISREG(facts.st_mode):
                found[facts.st_dev, facts.st_ino] = (stream, facts.st_size)
    return dict(found.values())


def _tail(stream: int, start: int) -> str:
    """Return the end of what a stream's file got since it had ``start`` bytes."""
    with suppress(OSError), open(f"/proc/self/fd/{stream}", "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - TAIL, start if start <= size else 0))
        return file.read(TAIL).decode("utf8", "replace")
    return ""
