"""Which ranks are still there, when a collective fails and does not say which one is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch.distributed as dist

from megads.errors import MegadsError

BEAT_S = 0.5
"""Between two signs of a rank."""
SILENT_S = 3.0
"""A rank without a sign for so long is gone."""


class LostRanks(MegadsError):
    """Other ranks are gone: killed, failed, or on a host that is.

    Attributes:
        ranks: those that are gone.
    """

    ranks: tuple[int, ...] = ()


class Presence:
    """A thread on every rank that counts in the store of the run, while the rank lives.

    Args:
        open_store: returns a connection of its own, as ``megads.comm.rendezvous.connect_again`` does.
        rank: of this process.
        hosts: of all ranks, by rank.
        listens: returns whether the store is there; rank 0 holds it.
    """

    def __init__(
        self,
        open_store: Callable[[], dist.Store],
        rank: int,
        hosts: Sequence[str],
        listens: Callable[[], bool] = lambda: True,
    ):
        self._open_store, self.rank, self.hosts, self._listens = open_store, rank, tuple(hosts), listens
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="megads-presence", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def gone(self) -> list[int]:
        """Return the other ranks that gave no sign for :data:`SILENT_S`; rank 0 where its store is gone."""
        if not self._listens():
            self._ended.set()  # torch would print what it finds
            return [0] if self.rank else []
        others = [rank for rank in range(len(self.hosts)) if rank != self.rank]
        try:
            store = self._open_store()
            before = {rank: store.add(_key(rank), 0) for rank in others}
            time.sleep(SILENT_S)
            return [rank for rank in others if store.add(_key(rank), 0) == before[rank]]
        except RuntimeError:
            return [0] if self.rank else []

    def error(self) -> LostRanks | None:
        """Return what to report after a collective failed; None: nobody is gone."""
        gone = self.gone()
        if not gone:
            return None
        named = ", ".join(f"rank {rank} on {self.hosts[rank]}" for rank in gone[:8])
        more = f" and {len(gone) - 8} more" if len(gone) > 8 else ""
        verb = "is" if len(gone) == 1 else "are"
        error = LostRanks(f"{named}{more} {verb} gone (killed, failed, or the host is down); start it again")
        error.ranks = tuple(gone)
        return error

    def _beat(self) -> None:
        with suppress(RuntimeError):  # the store is gone with its rank, and nobody is there to read signs
            store = self._open_store()
            while not self._ended.is_set():
                store.add(_key(self.rank), 1)
                self._ended.wait(BEAT_S)


def _key(rank: int) -> str:
    return f"presence/{rank}"
