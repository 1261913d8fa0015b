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
CLOSING_S = 0.2
"""For a process that was killed to close its sockets, one after the other."""
STOPPED_S = 1.0
"""Within which all ranks are asked to end, if they are."""
CLOSED_S = 10.0
"""For all ranks to let go of the store of a rank 0 that ends: torch prints a trace where it is gone while one asks."""
_STOPS, _EXCUSED, _CLOSES, _FREE = (f"presence/{what}" for what in ("stops", "excused", "closes", "free"))


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

    Attributes:
        is_excused: whether a rank has said that it is about to end with an error of its own.
    """

    def __init__(
        self,
        open_store: Callable[[], dist.Store],
        rank: int,
        hosts: Sequence[str],
        listens: Callable[[], bool] = lambda: True,
    ):
        self._open_store, self.rank, self.hosts, self._listens = open_store, rank, tuple(hosts), listens
        self.is_excused = False
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
        time.sleep(CLOSING_S)
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

    def excuse(self) -> None:
        """Let the other ranks know that this one ends with an error that it reports itself."""
        with suppress(RuntimeError):
            if not self._listens():
                return
            store = self._open_store()
            store.add(_EXCUSED, 1)
            if self.rank:
                time.sleep(2 * BEAT_S)  # all have read it
            else:
                store.add(_CLOSES, 1)
                self._counted(store, _FREE, len(self.hosts) - 1, CLOSED_S)

    def all_stop(self) -> bool:
        """Return whether all ranks are asked to end, after :data:`STOPPED_S` at most. Each that is asked calls it.

        A launcher asks those that are left after one was killed, too; nothing else tells the two apart.
        """
        if not self._listens():
            return False
        with suppress(RuntimeError):
            store = self._open_store()
            store.add(_STOPS, 1)
            if self._counted(store, _STOPS, len(self.hosts), STOPPED_S):
                store.add(_STOPS, 1)
                if self.rank == 0:  # the others still ask its store
                    self._counted(store, _STOPS, 2 * len(self.hosts), STOPPED_S)
                return True
        return False

    def _counted(self, store: dist.Store, key: str, count: int, limit_s: float) -> bool:
        """Wait until ranks have counted so far; return whether they did in time."""
        give_up_at = time.monotonic() + limit_s
        while store.add(key, 0) < count:
            if time.monotonic() > give_up_at:
                return False
            time.sleep(BEAT_S / 10)
        return True

    def _beat(self) -> None:
        with suppress(RuntimeError):  # the store is gone with its rank, and nobody is there to read signs
            store = self._open_store()
            while not self._ended.is_set() and self._listens():  # torch would print that it is gone
                store.add(_key(self.rank), 1)
                self.is_excused = self.is_excused or store.add(_EXCUSED, 0) > 0
                if self.rank and store.add(_CLOSES, 0):
                    store.add(_FREE, 1)
                    return
                self._ended.wait(BEAT_S)


def _key(rank: int) -> str:
    return f"presence/{rank}"
