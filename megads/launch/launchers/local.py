"""The ranks of one host, started by a small process.

``python -m megads.launch.launchers.local NUM_RANKS COMMAND...`` starts COMMAND once per rank. Each rank finds its
number in ``MEGADS_RANK`` and ``MEGADS_LOCAL_RANK``. Signals are forwarded to every rank. When one rank
fails, the others get SIGTERM at once and SIGKILL ``KILL_AFTER_S`` later. The exit code is that of the
rank that failed first (128 + n after signal n), else 0.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from megads.cluster.ranks import EXPLICIT
from megads.errors import EXIT_STOPPED
from megads.launch.supervise.processes import FORWARDED, die_with_parent, send

KILL_AFTER_S = 10.0  # for the other ranks to end, once one has failed
POLL_S = 0.5  # a signal wakes it earlier


def start_ranks(num_ranks: int, command: Sequence[str]) -> int:
    """Start ``command`` as ranks 0 to ``num_ranks - 1`` and return the exit code of all once they have ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGCHLD})
    ignored = {number for number in FORWARDED if signal.getsignal(number) == signal.SIG_IGN} - {signal.SIGUSR1}

    def in_rank() -> None:
        # A stop request may come before the rank has its handler: it must not kill.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        die_with_parent(signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    ranks = []
    for rank in range(num_ranks):
        numbers = dict(zip(EXPLICIT, map(str, (rank, num_ranks, rank, num_ranks)), strict=True))
        ranks.append(subprocess.Popen(command, env={**os.environ, **numbers}, preexec_fn=in_rank))
    return _wait(ranks, {*FORWARDED, signal.SIGCHLD} - ignored)


def _wait(ranks: Sequence[subprocess.Popen[bytes]], awaited: set[signal.Signals]) -> int:
    """Forward signals until every rank has ended; end the others once one has failed."""
    running, code, kill_at = list(ranks), 0, float("inf")
    while running:
        heard = signal.sigtimedwait(awaited, POLL_S)
        if heard is not None and heard.si_signo != signal.SIGCHLD:
            for rank in running:
                send(rank.pid, heard.si_signo)
        ended = [rank for rank in running if rank.poll() is not None]
        running = [rank for rank in running if rank.returncode is None]
        failed = next((rank.returncode for rank in ended if rank.returncode), 0)
        if code in (0, EXIT_STOPPED) and failed:
            code = failed
            if failed != EXIT_STOPPED:  # all ranks leave together after a save
                kill_at = time.monotonic() + KILL_AFTER_S
                for rank in running:
                    send(rank.pid, signal.SIGTERM)
        if time.monotonic() >= kill_at:
            for rank in running:
                send(rank.pid, signal.SIGKILL)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(start_ranks(int(sys.argv[1]), sys.argv[2:]))
