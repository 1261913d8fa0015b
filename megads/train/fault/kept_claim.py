"""Rank 0's part in holding the run folder: it shows that the run is alive, and publishes nothing in a lost folder."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from megads.checkpoint.resume.compatibility import checkpoint_folder
from megads.config.run_files import LEASE
from megads.config.schema import RunConfig
from megads.errors import CheckpointError
from megads.monitor.log import LOG
from megads.storage.lease import RENEWS_S, Lease, LeaseLost, lease_of

ENDS_S = 5.0  # for a renewal that has begun
NOT_OURS = "holds the folder of this run now"


@dataclass
class KeptClaim:
    """The leases that the launcher took for this run; none where nobody launched it."""

    leases: list[Lease] = field(default_factory=list)
    _end: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._keep, name="megads-lease", daemon=True)

    def check(self) -> None:
        """Return when this run may publish a checkpoint.

        Raises:
            CheckpointError: another one holds its folder.
        """
        for lease in self.leases:
            try:
                lease.check()
            except LeaseLost as error:
                folder = lease.path.parent.parent
                raise CheckpointError(f"{folder}: {error.holder.text()} {NOT_OURS}; this one ends") from None
            except OSError:
                continue  # the save itself says what is wrong with the disk

    def keep(self) -> None:
        """Renew the leases from a thread; when one is lost, ask this process to stop until it does."""
        if self.leases:
            self._thread.start()

    def _keep(self) -> None:
        lost = ""
        while not self._end.wait(RENEWS_S):
            for lease in self.leases:
                try:
                    lease.renew()
                except LeaseLost as error:
                    if not lost:
                        lost = error.holder.text()
                        LOG.error("%s %s; this run stops, and saves nothing", lost, NOT_OURS)
                    os.kill(os.getpid(), signal.SIGUSR1)
                except OSError:
                    continue  # the next one may work; until then the lease ages

    def end(self) -> None:
        """End renewing; let the next run have the folders at once where this process itself was the launcher.

        Called again it does nothing. On a file system that hangs the leases run out by themselves.
        """
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(ENDS_S)
        leases, self.leases = self.leases, []
        for lease in leases if not self._thread.is_alive() else ():
            if lease.holder.is_here() and lease.holder.pid == os.getpid():
                lease.release()


def keep_claim(run: RunConfig, run_dir: Path, rank: int, env: Mapping[str, str]) -> KeptClaim:
    """Return the claim that the launcher handed to rank 0, being renewed; other ranks have none."""
    token, found = env.get(LEASE, ""), KeptClaim()
    if rank == 0 and token:
        for folder in dict.fromkeys((run_dir, checkpoint_folder(run, run_dir))):
            with suppress(OSError):
                if lease := lease_of(folder, token):
                    found.leases.append(lease)
        found.keep()
    return found
