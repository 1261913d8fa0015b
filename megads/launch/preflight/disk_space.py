"""What the checkpoints of a run take on disk, before it starts. No torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from megads.config.schema import RunConfig
from megads.plan.costs.saves import saves_of, saves_until
from megads.text.plural import plural
from megads.text.units import size


@dataclass(frozen=True)
class DiskRoom:
    """What a run will have written at its end."""

    each: int  # bytes of a checkpoint
    kept: int  # checkpoints that stay at the end
    at_once: int  # checkpoints that are there while one is being written
    free: int  # bytes on the disk of the checkpoints, 0: not known
    there: int  # bytes of it that checkpoints of this run take already
    why: str  # which settings say how many are kept

    @property
    def needed(self) -> int:
        """Bytes that the run still needs at most."""
        return max(0, self.each * self.at_once - self.there)

    def line(self) -> str:
        """Return the line of the banner."""
        free = f", {size(self.free)} free" if self.free else ""
        total = f" = {size(self.each * self.kept)}" if self.kept > 1 else ""
        return f"{plural(self.kept, 'checkpoint')} of about {size(self.each)}{total} ({self.why}){free}"

    def warnings(self, folder: Path) -> Iterator[str]:
        """Yield a line when the disk of ``folder`` is too small."""
        if self.free and self.needed > self.free:
            *others, last = self._ways()
            ways = f"{', '.join(others)}, or {last}" if others else last
            yield f"{folder}: the checkpoints need about {size(self.needed)} and {size(self.free)} are free; set {ways}"

    def _ways(self) -> Iterator[str]:
        """Yield what would help: one more than is kept is there while it is written."""
        fitting = (keep for keep in (2, 1) if keep + 1 < self.at_once and self._fits(keep + 1))
        if keep := next(fitting, 0):
            yield f"CKPT_KEEP={keep}"
        if self.at_once > 1 and self._fits(1):
            yield "a larger SAVE_INTERVAL"
        yield "CKPT_DIR on another disk"

    def _fits(self, count: int) -> bool:
        return self.each * count - self.there <= self.free


def disk_room(run: RunConfig, folder: Path, begun: int = 0) -> DiskRoom:
    """Return what the checkpoints of a derived run take in ``folder``.

    Args:
        folder: of its checkpoints, which need not exist yet.
    """
    last, every, wanted = run.train.train_iters, run.checkpoint.save_interval, run.checkpoint
    saves = saves_of(run)
    why = f"every {plural(every, 'step')}" if every else "at the end"
    why += f", CKPT_KEEP={wanted.keep}" if wanted.keep else ", all are kept"
    place = next((path for path in (folder.absolute(), *folder.absolute().parents) if os.path.isdir(path)), Path("/"))
    try:
        free = shutil.disk_usage(place).free
    except OSError:
        free = 0
    there = saves_until(min(begun, last), every, last) if not wanted.keep else min(saves.written, int(begun > 0))
    return DiskRoom(saves.each, saves.kept, saves.at_once, free, there * saves.each, why)
