"""Write a run's state: every rank its own shards to its own file, all at once, all or nothing.

A save has four steps: every rank writes its file into a folder that nobody takes for a checkpoint,
and to the disk itself; rank 0 gathers what all have written; rank 0 writes the manifest and renames
the folder; every rank gets the outcome. In the background, a thread does the first, from a copy in
host memory; the others are collective.
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
from megads.checkpoint.format.folders import checkpoint_name, later, retire, surplus, sweep
from megads.checkpoint.format.manifest import File, Manifest, file_name
from megads.checkpoint.format.runs import Collector, Table, pack, table, unpack
from megads.checkpoint.format.shard_layout import ShardLayout
from megads.checkpoint.format.whole_state import STATES, WholeParamState
from megads.checkpoint.host_writers import HostWriters
from megads.checkpoint.owned_shard import OwnedShard
from megads.checkpoint.resume.progress import Progress
from megads.comm.groups import Groups
from megads.comm.messages import broadcast_value, gather_values
from megads.device.host_copies import HostMemory, copies_done
from megads.errors import CheckpointError

LOG = logging.getLogger("megads")

IDLE, WRITING, FAILED = 0, 1, 2
"""State of a rank's thread; the highest of all ranks is what they do next."""

CHUNK = 1 << 24
"""Bytes that are copied from a device to the host at a time."""
_DTYPES = {torch.float32: ("F32", "<f4"), torch.uint8: ("U8", "u1")}
"""Name in the manifest and type in the file."""


@dataclass(frozen=True)
class Snapshot:
    """Everything that goes into a checkpoint on one rank."""

    progress: Progress
    shards: Iterable[OwnedShard]  # of this rank; gone through once
    scalars: Mapping[str, float]  # of the engine
    tensors: Mapping[str, ShardLayout]  # every parameter of the model, the same on every rank
    model: Mapping[str, Any]  # settings that decide the shape of the weights
    settings: Mapping[str, Any]  # of the run, section by section
    about: Mapping[str, Any]  # versions and the like
    layout: Mapping[str, int]  # degrees of the grid, and the ZeRO stage
    states: Iterable[tuple[str, Mapping[str, Any]]] = ()
    """What the optimizer keeps of parameters as a whole on this rank: tensors or numbers by key."""


class HostCopy:
    """Host tensors that are allocated once and copied to for every save.

    From a device the copies are queued behind the step: later steps come after them, and the host does not wait.
    """

    def __init__(self) -> None:
        self._memory = HostMemory()
        self._tensors: dict[str, Tensor] = {}
        self._device = torch.device("cpu")

    @property
    def bytes(self) -> int:
        """Memory of all tensors."""
        return self._memory.bytes

    @property
    def problem(self) -> str:
        """Why the memory is not page-locked, so that copies from a device wait; empty: it is, or need not be."""
        return self._memory.problem

    def hold(self, key: str, tensor: Tensor) -> Tensor:
        """Return a flat copy of ``tensor`` on the host, complete after :meth:`done`, good until ``key`` comes again."""
        flat, copy = tensor.detach().reshape(-1), self._tensors.get(key)
        if copy is None or copy.shape != flat.shape or copy.dtype != flat.dtype:
            copy = self._tensors[key] = self._memory.like(flat)
        if flat.device.type != "cpu":
            self._device = flat.device
        return copy.copy_(flat, non_blocking=True)

    def done(self) -> Callable[[], None]:
        """Return what waits until all copies so far are complete, in any thread."""
        return copies_done(self._device)


@dataclass
class _Written:
    """What one rank has put on disk. Rank 0 gets that of all ranks, so it is short."""

    kinds: tuple[str, ...] = ()
    shards: bytes = b""  # packed
    states: dict[str, WholeParamState] = field(default_factory=dict)
    file: File | None = None
    problem: str = ""
    seconds: float = 0.0


class _GivenUp(Exception):
    pass


@dataclass
class _Job:
    """A save on one rank; writing needs no other rank."""

    snapshot: Snapshot
    final: Path
    name: str
    tensor_rank: int
    entries: list[Entry]
    shards: Table
    written: _Written
    given_up: threading.Event
    writers: HostWriters
    ready: Callable[[], None] = lambda: None  # waits until what is written is in host memory
    error: BaseException | None = None
    thread: threading.Thread | None = None  # that works on it, of a save in the background

    @staticmethod
    def of(saver: Saver, snapshot: Snapshot, hold: Callable[[str, Tensor], Tensor]) -> _Job:
        """Return this rank's part of ``snapshot``; ``hold`` gives the tensor that is written for the one at hand."""
        groups = saver.groups
        mine = [shard for shard in snapshot.shards if shard.is_mine and shard.count]
        kinds = tuple(dict.fromkeys(kind for shard in mine for kind in shard.tensors))
        keyed = [(f"{kind}/{shard.name}", shard.tensors[kind]) for kind in kinds for shard in mine]
        states: dict[str, WholeParamState] = {}
        given_up = threading.Event()
        for name, found in snapshot.states:
            tensors = {key: value for key, value in found.items() if isinstance(value, Tensor)}
            keyed += [(f"{STATES}{name}/{key}", tensor) for key, tensor in tensors.items()]
            states[name] = WholeParamState(
                groups.rank,
                {key: (_DTYPES[tensor.dtype][0], tuple(tensor.shape)) for key, tensor in tensors.items()},
                {key: value for key, value in found.items() if key not in tensors},
            )
        return _Job(
            snapshot,
            saver.folder / checkpoint_name(snapshot.progress.iteration),
            file_name(groups.rank),
            groups.tensor_rank,
            [_entry(key, hold(key, tensor), given_up) for key, tensor in keyed],
            table([(shard.name, shard.first, shard.count) for shard in mine], snapshot.tensors),
            _Written(kinds, states=states),
            given_up,
            saver.writers,
        )

    def write(self) -> None:
        """Write the file, to the disk itself; a rank without shards writes none. A problem is stored, not raised."""
        started, written = time.perf_counter(), self.written
        try:
            self.ready()
            if self.entries:
                part = part_of(self.final)
                part.mkdir(parents=True, exist_ok=True)
                with self.writers.turn(self.given_up.is_set):
                    size, crc = write_file(part / self.name, self.entries)
                written.file, written.shards = File(size, crc, self.tensor_rank), pack(self.shards)
        except OSError as error:
            written.problem = f"{part_of(self.final)}: {error.strerror}"
        except _GivenUp:
            pass
        except BaseException as error:  # a thread has nobody to raise to
            self.error, written.problem = error, repr(error)
        written.seconds = time.perf_counter() - started


def _entry(key: str, tensor: Tensor, given_up: threading.Event) -> Entry:
    """Return what writes a tensor to a file; from an accelerator it comes in chunks."""
    flat = tensor.detach().reshape(-1)

    def chunks() -> Iterator[NDArray[np.generic]]:
        step = max(1, CHUNK // flat.element_size())
        for at in range(0, flat.numel(), step):
            if given_up.is_set():
                raise _GivenUp
            yield flat[at : at + step].cpu().numpy()

    return Entry(key, np.dtype(_DTYPES[flat.dtype][1]), flat.numel(), chunks)


class Saver:
    """Saves the state of one run. All ranks call each method that is collective in the same order.

    Args:
        folder: of the run's checkpoints; created if needed.
        groups: the grid's process groups.
        keep: newest checkpoints to keep; 0: all.
        keep_every: checkpoints of multiples of this iteration stay; 0: none.
        writers: ranks of a host that write at the same time; 0: all.
        gives_up_later: whether the run went back, so that those of later iterations go when a new one is complete.
        check: called on rank 0 before a checkpoint is published; raises CheckpointError when the folder is not ours.
    """

    def __init__(
        self,
        folder: Path,
        groups: Groups,
        *,
        keep: int = 0,
        keep_every: int = 0,
        writers: int = 0,
        gives_up_later: bool = False,
        check: Callable[[], None] = lambda: None,
    ):
        self.folder, self.groups, self.gives_up_later = folder, groups, gives_up_later
        self.keep, self.keep_every, self.check = keep, keep_every, check
        # A world that small needs no turns.
        self.writers = HostWriters(folder, writers if writers < groups.grid.world_size else 0)
        self.pinned = 0  # the iteration of a checkpoint that stays; 0: none
        self.work_s = 0.0  # of the last save: what the slowest rank wrote for, and what made it a checkpoint
        self.copy = HostCopy()
        self._background: _Job | None = None
        self._sweeper: threading.Thread | None = None

    @property
    def is_writing(self) -> bool:
        """Whether a save was started that is not finished yet; the same on every rank."""
        return self._background is not None

    @property
    def state(self) -> int:
        """What this rank's thread is doing: IDLE (also: its file is on disk), WRITING or FAILED."""
        job = self._background
        if job is None or job.thread is None:
            return IDLE
        return WRITING if job.thread.is_alive() else FAILED if job.written.problem else IDLE

    def save(self, snapshot: Snapshot) -> Path:
        """Write one checkpoint and return its path. Collective; all or nothing.

        Raises:
            CheckpointError: on every rank, when one could not write. The older checkpoints are untouched.
        """
        assert self._background is None, "the save before this one is not finished"
        job = _Job.of(self, snapshot, lambda key, tensor: tensor)
        job.write()
        return self._complete(job)

    def reserve(self, shards: Iterable[OwnedShard]) -> int:
        """Take the memory that :meth:`start` copies to, and return its bytes.

        Memory that was never written to takes the system much longer to give than to copy
        to (0.5 against 13 GB/s measured), so it is taken before the first step.
        """
        for shard in shards:
            if shard.is_mine:
                for kind, tensor in shard.tensors.items():
                    self.copy.hold(f"{kind}/{shard.name}", tensor)
        return self.copy.bytes

    def start(self, snapshot: Snapshot) -> None:
        """Copy this rank's part of ``snapshot`` and have a thread write it; :meth:`finish` makes it a checkpoint."""
        assert self._background is None, "the save before this one is not finished"
        job = self._background = _Job.of(self, snapshot, self.copy.hold)
        job.ready = self.copy.done()
        job.thread = threading.Thread(target=job.write, name="megads-save", daemon=True)
        job.thread.start()

    def finish(self, state: int = IDLE) -> Path:
        """Complete the save that was started, wait for it if need be, and return its path. Collective.

        ``state`` is the highest :attr:`state` of all ranks, if they know; where one FAILED, nobody continues writing.

        Raises:
            CheckpointError: as :meth:`save`.
        """
        job, self._background = self._background, None
        assert job is not None, "no save was started"
        assert job.thread is not None
        if state == FAILED:
            job.given_up.set()
        job.thread.join()
        return self._complete(job)

    def _complete(self, job: _Job) -> Path:
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
                    self.check()
                    abandoned = later(self.folder, job.final) if self.gives_up_later else []
                    gone = commit(job.final, _manifest(job.snapshot, written), abandoned)
            except OSError as error:
                problem = f"rank 0: {job.final}: {error.strerror}"
            except CheckpointError as error:
                problem = f"rank 0: {error}"
            if problem:
                # Before anybody hears of it: every rank has reported, so nobody writes there any more.
                shutil.rmtree(part_of(job.final), ignore_errors=True)
        took = max((each.seconds for each in written), default=0.0) + time.perf_counter() - started
        if self.groups.grid.world_size > 1:  # also a barrier
            problem, took = broadcast_value((problem, took))
        self.work_s = took
        if problem:
            raise CheckpointError(f"the checkpoint was not saved: {problem}; older checkpoints are unchanged")
        if self.groups.rank == 0:
            self._remove_old(job.final, gone)
        return job.final

    def _remove_old(self, newest: Path, gone: list[Path]) -> None:
        """Have old checkpoints removed in the background: it may be a million files."""
        self.join_sweeper()
        try:
            gone = gone + retire(surplus(self.folder, newest, self.keep, self.keep_every, self.pinned))
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
            collector.add(rank, each.file, unpack(each.shards))
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
        states={name: state for each in written for name, state in each.states.items()},
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
