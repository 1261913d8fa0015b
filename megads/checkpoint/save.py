"""Write a run's state: every rank its own numbers to its own file, all at once, all or nothing.

A save goes through four hands: every rank writes its file into a folder that nobody takes for
a checkpoint, and to the disk itself; rank 0 learns what all have written; rank 0 writes the
manifest and renames the folder; everybody learns whether it worked. The first may be done by a
thread that writes a copy in host memory in the background; the others are collective.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megads.checkpoint.format.blocks import Entry, write_file
from megads.checkpoint.format.commit import commit, part_of
from megads.checkpoint.format.folders import checkpoint_name
from megads.checkpoint.format.manifest import File, Manifest, file_name
from megads.checkpoint.format.retention import later, retire, surplus, sweep
from megads.checkpoint.format.runs import Collector, Table, pack, table, unpack
from megads.checkpoint.format.shard_layout import ShardLayout
from megads.checkpoint.format.whole_state import STATES, WholeParamState
from megads.checkpoint.owned_shard import OwnedShard, entry, kept_of
from megads.checkpoint.resume.progress import Progress
from megads.comm.groups import Groups
from megads.comm.messages import broadcast_value, gather_values
from megads.errors import CheckpointError

LOG = logging.getLogger("megads")

IDLE, WRITING, FAILED = 0, 1, 2
"""What a rank says of its thread; the highest of all ranks is what they do next."""


@dataclass(frozen=True)
class Snapshot:
    """Everything that goes into a checkpoint on one rank.

    Attributes:
        progress: how far the run is.
        pieces: of this rank, see :class:`megads.checkpoint.owned_shard.OwnedShard`; gone through once.
        scalars: of the engine.
        tensors: every parameter of the model, the same on every rank, see ``megads.checkpoint.format.tensors``.
        model: settings that decide the shape of the weights.
        settings: of the run, section by section.
        about: versions and the like.
        layout: degrees of the grid, and the ZeRO stage.
        states: what the optimizer keeps of parameters as a whole, name and tensors or numbers by key; this rank's.
    """

    progress: Progress
    pieces: Iterable[OwnedShard]
    scalars: Mapping[str, float]
    tensors: Mapping[str, ShardLayout]
    model: Mapping[str, Any]
    settings: Mapping[str, Any]
    about: Mapping[str, Any]
    layout: Mapping[str, int]
    states: Iterable[tuple[str, Mapping[str, Any]]] = ()


class HostCopy:
    """Host tensors that are made once and copied to again and again."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    @property
    def bytes(self) -> int:
        """How much memory it holds."""
        return sum(tensor.nbytes for tensor in self._kept.values())

    def hold(self, key: str, tensor: Tensor) -> Tensor:
        """Return a flat copy of ``tensor`` on the host, good until the next call with the same ``key``."""
        flat, kept = tensor.detach().reshape(-1), self._kept.get(key)
        if kept is None or kept.shape != flat.shape or kept.dtype != flat.dtype:
            kept = self._kept[key] = torch.empty_like(flat, device="cpu")
        return kept.copy_(flat)


@dataclass
class _Written:
    """What one rank has put on disk. Rank 0 gets that of all ranks, so it is short."""

    kinds: tuple[str, ...] = ()
    pieces: bytes = b""  # packed
    states: dict[str, WholeParamState] = field(default_factory=dict)
    file: File | None = None
    problem: str = ""
    seconds: float = 0.0


class _GivenUp(Exception):
    pass


@dataclass
class _Job:
    """What one rank writes, which needs no other rank."""

    final: Path
    name: str
    tensor_rank: int
    entries: list[Entry]
    pieces: Table
    written: _Written
    given_up: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    @staticmethod
    def of(folder: Path, snapshot: Snapshot, groups: Groups, hold: Callable[[str, Tensor], Tensor]) -> _Job:
        """Return this rank's part of ``snapshot``; ``hold`` gives the tensor that is written for the one at hand."""
        mine = [piece for piece in snapshot.pieces if piece.is_mine and piece.count]
        kinds = tuple(dict.fromkeys(kind for piece in mine for kind in piece.tensors))
        keyed = [(f"{kind}/{piece.name}", piece.tensors[kind]) for kind in kinds for piece in mine]
        states: dict[str, WholeParamState] = {}
        for name, found in snapshot.states:
            tensors = {key: value for key, value in found.items() if isinstance(value, Tensor)}
            keyed += [(f"{STATES}{name}/{key}", tensor) for key, tensor in tensors.items()]
            states[name] = kept_of(groups.rank, tensors, {k: v for k, v in found.items() if k not in tensors})
        return _Job(
            folder / checkpoint_name(snapshot.progress.iteration),
            file_name(groups.rank),
            groups.tensor_rank,
            [entry(key, hold(key, tensor)) for key, tensor in keyed],
            table([(piece.name, piece.first, piece.count) for piece in mine], snapshot.tensors),
            _Written(kinds, states=states),
        )

    def write(self) -> None:
        """Write the file, to the disk itself; a rank without numbers writes none. A problem is kept, not raised."""
        started, written = time.perf_counter(), self.written
        try:
            if self.entries:
                part = part_of(self.final)
                part.mkdir(parents=True, exist_ok=True)
                size, crc = write_file(part / self.name, [self._stoppable(each) for each in self.entries])
                written.file, written.pieces = File(size, crc, self.tensor_rank), pack(self.pieces)
        except OSError as error:
            written.problem = f"{part_of(self.final)}: {error.strerror}"
        except _GivenUp:
            pass
        except BaseException as error:  # a thread has nobody to raise to
            self.error, written.problem = error, repr(error)
        written.seconds = time.perf_counter() - started

    def _stoppable(self, each: Entry) -> Entry:
        def chunks() -> Iterator[NDArray[np.generic]]:
            for chunk in each.chunks():
                if self.given_up.is_set():
                    raise _GivenUp
                yield chunk

        return Entry(each.key, each.dtype, each.count, chunks)


@dataclass
class _Flight:
    """A save that a thread works on."""

    snapshot: Snapshot
    job: _Job
    thread: threading.Thread


class Saver:
    """Saves the state of one run. All ranks call each method that is collective in the same order.

    Args:
        folder: of the run's checkpoints; made when it is not there.
        groups: the grid's process groups.
        keep: newest checkpoints to keep; 0: all.
        keep_every: checkpoints of multiples of this iteration stay; 0: none.
        gives_up_later: whether the run went back, so that those of later iterations go when a new one is complete.
    """

    def __init__(
        self, folder: Path, groups: Groups, *, keep: int = 0, keep_every: int = 0, gives_up_later: bool = False
    ):
        self.folder, self.groups, self.gives_up_later = folder, groups, gives_up_later
        self.keep, self.keep_every = keep, keep_every
        self.work_s = 0.0  # of the last save: what the slowest rank wrote for, and what made it a checkpoint
        self.copy = HostCopy()
        self._flight: _Flight | None = None
        self._sweeper: threading.Thread | None = None

    @property
    def is_writing(self) -> bool:
        """Whether a save was started that is not finished yet; the same on every rank."""
        return self._flight is not None

    @property
    def state(self) -> int:
        """What this rank's thread is doing: IDLE (also: its file is on disk), WRITING or FAILED."""
        if self._flight is None:
            return IDLE
        if self._flight.thread.is_alive():
            return WRITING
        return FAILED if self._flight.job.written.problem else IDLE

    def save(self, snapshot: Snapshot) -> Path:
        """Write one checkpoint and return its path. Collective; all or nothing.

        Raises:
            CheckpointError: on every rank, when one could not write. The older checkpoints are untouched.
        """
        assert self._flight is None, "the save before this one is not finished"
        job = _Job.of(self.folder, snapshot, self.groups, lambda key, tensor: tensor)
        job.write()
        return self._complete(snapshot, job)

    def reserve(self, pieces: Iterable[OwnedShard]) -> int:
        """Take the memory that :meth:`start` copies to, and return its bytes.

        Memory that was never written to takes the system much longer to give than to copy
        to (0.5 against 13 GB/s measured), so it is taken before the first step.
        """
        for piece in pieces:
            if piece.is_mine:
                for kind, tensor in piece.tensors.items():
                    self.copy.hold(f"{kind}/{piece.name}", tensor)
        return self.copy.bytes

    def start(self, snapshot: Snapshot) -> None:
        """Copy this rank's part of ``snapshot`` and have a thread write it; :meth:`finish` makes it a checkpoint."""
        assert self._flight is None, "the save before this one is not finished"
        job = _Job.of(self.folder, snapshot, self.groups, self.copy.hold)
        thread = threading.Thread(target=job.write, name="megads-save", daemon=True)
        self._flight = _Flight(snapshot, job, thread)
        thread.start()

    def finish(self, state: int = IDLE) -> Path:
        """Complete the save that was started, wait for it if need be, and return its path. Collective.

        Args:
            state: the highest :attr:`state` of all ranks, if they know; where one FAILED, nobody continues writing.

        Raises:
            CheckpointError: as :meth:`save`.
        """
        flight = self._flight
        assert flight is not None, "no save was started"
        if state == FAILED:
            flight.job.given_up.set()
        flight.thread.join()
        self._flight = None
        return self._complete(flight.snapshot, flight.job)

    def _complete(self, snapshot: Snapshot, job: _Job) -> Path:
        """Make what every rank wrote a checkpoint, or nothing of it. Collective."""
        if job.error is not None:
            raise job.error
        written = _gather(job.written, self.groups)
        started = time.perf_counter()
        problem = next((f"rank {rank}: {each.problem}" for rank, each in enumerate(written) if each.problem), "")
        gone: list[Path] = []
        if self.groups.rank == 0:
            try:
                if not problem:
                    abandoned = later(self.folder, job.final) if self.gives_up_later else []
                    gone = commit(job.final, _manifest(snapshot, written), abandoned)
            except OSError as error:
                problem = f"rank 0: {job.final}: {error.strerror}"
            except CheckpointError as error:
                problem = f"rank 0: {error}"
            if problem:
                # Before anybody hears of it: every rank has reported, so nobody writes there any more.
                shutil.rmtree(part_of(job.final), ignore_errors=True)
        took = max((each.seconds for each in written), default=0.0) + time.perf_counter() - started
        problem, self.work_s = _tell((problem, took), self.groups)
        if problem:
            raise CheckpointError(f"the checkpoint was not saved: {problem}; older checkpoints are unchanged")
        if self.groups.rank == 0:
            self._remove_old(job.final, gone)
        return job.final

    def _remove_old(self, newest: Path, gone: list[Path]) -> None:
        """Have old checkpoints removed in the background: it may be a million files."""
        self.join_sweeper()
        try:
            gone = gone + retire(surplus(self.folder, newest, self.keep, self.keep_every))
        except CheckpointError as error:
            # The others know that the new one is complete, and continue.
            LOG.warning("old checkpoints are kept for now: %s", error)
        if gone:
            self._sweeper = threading.Thread(target=sweep, args=(gone,), name="megads-sweep", daemon=True)
            self._sweeper.start()

    def join_sweeper(self) -> None:
        """Wait until what :meth:`save` or :meth:`finish` had removed is gone."""
        if self._sweeper is not None:
            self._sweeper.join()
            self._sweeper = None


def _manifest(snapshot: Snapshot, written: list[_Written]) -> Manifest:
    collector = Collector(snapshot.tensors)
    for rank, each in enumerate(written):
        if each.file is not None:
            collector.add(rank, each.file, unpack(each.pieces))
    return Manifest(
        iteration=snapshot.progress.iteration,
        kinds=tuple(dict.fromkeys(kind for each in written for kind in each.kinds)),
        layout=snapshot.layout,
        model=snapshot.model,
        tensors=snapshot.tensors,
        files=collector.files,
        runs=collector.runs(),
        settings=snapshot.settings,
        progress=vars(snapshot.progress),
        scalars=snapshot.scalars,
        about=snapshot.about,
        states={name: kept for each in written for name, kept in each.states.items()},
    )


def _gather(mine: _Written, groups: Groups) -> list[_Written]:
    """Return what all ranks wrote, by rank, on rank 0; elsewhere an empty list. Also a barrier for rank 0.

    It receives PP x TP + DP x SP messages, not one of every rank.
    """
    found = [(groups.rank, mine)]
    # First those that share a slice of the model, then one of each slice: nobody hears from all ranks one by one.
    if groups.data_seq is not None:
        first = groups.ranks("data_seq")[0]
        found = [each for rank in gather_values(found, first, groups.data_seq) for each in rank]
    if groups.model is not None and not groups.data_rank and not groups.seq_rank:
        found = [each for rank in gather_values(found, 0, groups.model) for each in rank]
    return [written for _, written in sorted(found, key=lambda each: each[0])] if groups.rank == 0 else []


def _tell(verdict: tuple[str, float], groups: Groups) -> tuple[str, float]:
    """Return rank 0's verdict on every rank. Also a barrier."""
    problem, seconds = broadcast_value(verdict) if groups.grid.world_size > 1 else verdict
    return problem, seconds
