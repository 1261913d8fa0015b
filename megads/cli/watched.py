"""Commands that run a model on several ranks: one line says which rank is gone, if one is."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from megads.errors import EXIT_FAILED

if TYPE_CHECKING:
    from megads.comm.presence import LostRanks, Presence
    from megads.inference.session import Session


@contextmanager
def watched(session: Session, *, handles_sigterm: bool = False) -> Iterator[Presence | None]:
    """Run a block on all ranks of ``session``, and end them together. All ranks call it, in their main thread.

    Where a rank is killed, or its host is down, the processes of the others end with :data:`EXIT_FAILED`; the first
    of them says which rank it is. Yields what knows that; None for one rank.

    Args:
        session: of the model.
        handles_sigterm: whether the block does. Else SIGTERM ends the process: a launcher sends it to all ranks when it
            is asked to end, and to the others when one is killed, which must then be found out.
    """
    import torch.distributed as dist

    from megads.comm.presence import LostRanks
    from megads.inference.generate import leave
    from megads.inference.session import watch_ranks

    # Heard from here on: when one rank knows that all are watched, all listen.
    signals = None if handles_sigterm or session.groups.world is None else _Signals()
    presence = watch_ranks(session, os.environ)
    if presence is None:
        yield None
        leave()
        return
    ending = _Ending(presence)
    if signals:
        threading.Thread(target=ending.follow, args=(signals,), name="megads-sigterm", daemon=True).start()
    try:
        yield presence
        dist.barrier()  # a rank that has ended gives no sign either
    except (RuntimeError, LostRanks) as error:  # the first is that of a collective
        lost = error if isinstance(error, LostRanks) else presence.error()
        if lost is None:
            presence.excuse()
            raise
        ending.report(lost)
    except BaseException:
        presence.excuse()
        raise
    finally:
        if signals:
            signals.restore()
    presence.stop()
    leave()


class _Signals:
    """Notes SIGTERM in a pipe, also while the main thread waits in a collective."""

    def __init__(self) -> None:
        self.reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self._before = signal.signal(signal.SIGTERM, lambda number, frame: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def wait(self) -> None:
        """Wait for SIGTERM."""
        while os.read(self.reader, 1)[0] != signal.SIGTERM:
            pass

    def restore(self) -> None:
        """Let SIGTERM do what it did before."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, self._before)


class _Ending:
    """Ends this rank after SIGTERM or the loss of another one, with one line of all ranks."""

    def __init__(self, presence: Presence):
        self.presence = presence
        self._once = threading.Lock()

    def follow(self, signals: _Signals) -> None:
        """End the process after SIGTERM."""
        signals.wait()
        if not self.presence.all_stop() and (lost := self.presence.error()):
            self.report(lost)
        os._exit(128 + signal.SIGTERM)

    def report(self, lost: LostRanks) -> None:
        """Say which ranks are gone, on the first rank that is left, and end this one, once.

        All find it out at about the same time, and those that end first would be taken for gone. Rank 0 ends last:
        torch prints what it finds where the store of rank 0 is gone.
        """
        from megads.comm.presence import BEAT_S, SILENT_S

        with self._once:
            left = sorted({*range(len(self.presence.hosts))} - set(lost.ranks))
            if self.presence.rank == left[0] and not self.presence.is_excused:
                click.echo(f"megads: {lost}", err=True)
            if len(left) > 1:
                time.sleep(SILENT_S + (2 * BEAT_S if self.presence.rank == 0 else 0))
            sys.stdout.flush()
            os._exit(EXIT_FAILED)  # threads of the groups still run
