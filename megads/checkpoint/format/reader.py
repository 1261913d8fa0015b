"""Any part of any tensor of a checkpoint, of any layout. No torch.

Only the bytes that are wanted are read (and the rest of their blocks, to check them), so
ranks of another layout share the reading, and nobody holds the whole model. What lies
together in a file goes from there right to where it is wanted.
"""

from __future__ import annotations

import math
import os
import resource
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from megads.checkpoint.format.blocks import TYPES, TensorFile
from megads.checkpoint.format.manifest import Manifest, Run, file_name, read_manifest
from megads.checkpoint.format.shard_layout import Box, ShardLayout, boxes, meet
from megads.checkpoint.format.whole_state import STATES
from megads.config.optimizers import OPTIMIZERS
from megads.errors import CheckpointError

VOCABULARY = ("embedding.weight", "head.weight", "lm_head.bias", "output_bias.bias")
"""Their last rows may be padding, of which another run may have more or fewer."""

ITERATE = "z"
"""Kind of state that a schedule-free optimizer steps."""

BAND = 1 << 22
"""Elements that are read together; so much memory a thread takes when only some columns of rows are wanted."""
MAX_THREADS = 4
"""That read at a time; more do not help one process."""

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Want:
    """A run of a slice of a parameter, and where it goes.

    ``out`` is ``[count]`` float32, contiguous.
    """

    name: str
    kind: str  # weight, exp_avg, ...
    cut: ShardLayout
    first: int  # element of the flattened slice
    out: NDArray[np.float32]


@dataclass(frozen=True)
class _Job:
    """Rows that a file holds ``stride`` apart, and that go ``out_stride`` apart to ``out``."""

    file: str
    key: str
    first: int  # element of the tensor in the file
    rows: int
    width: int
    stride: int
    out: NDArray[np.float32]
    out_stride: int

    @property
    def is_one(self) -> bool:
        """Whether it is one run, in the file and where it goes."""
        return self.rows == 1 or self.stride == self.out_stride == self.width

    def bands(self) -> Iterator[_Job]:
        """Yield it in parts that need no more than :data:`BAND` elements, if a row does not."""
        if self.is_one:
            count = self.rows * self.width
            for at in range(0, count, BAND):
                part = min(BAND, count - at)
                yield _Job(self.file, self.key, self.first + at, 1, part, part, self.out[at : at + part], part)
            return
        step = max(1, BAND // self.stride)
        for row in range(0, self.rows, step):
            first, out = self.first + row * self.stride, self.out[row * self.out_stride :]
            yield replace(self, first=first, rows=min(step, self.rows - row), out=out)

    def run(self, file: TensorFile) -> None:
        """Copy it from ``file``."""
        if self.is_one:
            file.fill(self.key, self.first, self.out[: self.rows * self.width])
            return
        read = file.read(self.key, self.first, (self.rows - 1) * self.stride + self.width)
        if read.dtype != np.float32:
            raise CheckpointError(f"{file.path}: {self.key} is {read.dtype}, not float32")
        shape = (self.rows, self.width)
        into = np.lib.stride_tricks.as_strided(self.out, shape, (self.out_stride * 4, 4))
        into[...] = np.lib.stride_tricks.as_strided(read, shape, (self.stride * 4, 4))


class Reader:
    """A checkpoint, open for reading.

    Args:
        path: of the checkpoint.
        manifest: of it, if it is known already.
        threads: that read at a time; 0: as many as the process has cores, up to :data:`MAX_THREADS`.
        in_use: give weights as they are for use, which a schedule-free optimizer does not train with.

    Raises:
        CheckpointError: see :func:`megads.checkpoint.format.manifest.read_manifest`.
    """

    def __init__(self, path: Path, manifest: Manifest | None = None, threads: int = 0, *, in_use: bool = False):
        self.path = path
        self.manifest = manifest or read_manifest(path)
        self.average = _average_weight(self.manifest) if in_use else None
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.threads = threads or min(MAX_THREADS, cores)
        # A rank may want something of thousands of files; others of the process need theirs, too.
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_files = 4096 if allowed == resource.RLIM_INFINITY else max(8, allowed // 4)
        self._files: dict[str, TensorFile] = {}
        self._known: tuple[str, int, list[tuple[Run, ShardLayout, list[Box]]]] = ("", -1, [])

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def cut(self, name: str) -> ShardLayout:
        """Return the whole parameter ``name``, and how it may be cut.

        Raises:
            CheckpointError: the checkpoint has no such parameter.
        """
        if name not in self.manifest.tensors:
            raise CheckpointError(f"{self.path}: holds no {name}; it is a checkpoint of another model")
        return self.manifest.tensors[name]

    def whole(self, name: str, kind: str = "weight") -> NDArray[np.float32]:
        """Return a whole tensor, float32."""
        cut = self.cut(name)
        return self.read(name, kind, cut, 0, cut.count).reshape(cut.shape)

    def read(self, name: str, kind: str, cut: ShardLayout, first: int, count: int) -> NDArray[np.float32]:
        """Return ``[count]`` elements from ``first`` on of the flattened slice ``cut`` of a parameter, float32.

        Padding rows of the vocabulary that the checkpoint has not are zeros.

        Raises:
            CheckpointError: the checkpoint has another tensor under the name, or is damaged.
        """
        out = np.empty(count, np.float32)
        self.fill([Want(name, kind, cut, first, out)])
        return out

    def fill(self, wants: Iterable[Want]) -> None:
        """Read all of ``wants`` in the order of the files, several at a time.

        The more is wanted together the better: each file is opened once, and gone through from
        its beginning to its end. See :meth:`read`.

        Raises:
            CheckpointError: as :meth:`read`; what was wanted is then partly there.
        """
        jobs: dict[str, list[_Job]] = {}
        wants = list(wants)
        for want in wants:
            for job in self._jobs(want):
                jobs.setdefault(job.file, []).append(job)
        files = sorted(jobs)
        for at in range(0, len(files), self._most_files):
            together: list[tuple[TensorFile, list[_Job]]] = []
            for name in files[at : at + self._most_files]:
                file = self.open(name)
                bands = [band for job in jobs[name] for band in job.bands()]
                # A key that is missing is reported before anything is read.
                bands.sort(key=lambda band: file.where(band.key) + 4 * band.first)
                together += ((file, group) for group in _groups(bands))
            if len(together) == 1 or self.threads == 1:
                for work in together:
                    _run_group(work)
            else:
                run_in_threads(_run_group, together, self.threads, "megads-read")
        if self.average is not None:
            for want in wants:
                if want.kind == "weight":
                    iterate = np.empty_like(want.out)
                    self.fill([replace(want, kind=ITERATE, out=iterate)])
                    np.add(want.out, np.float32(self.average) * (iterate - want.out), out=want.out)

    def state(
        self, name: str, cut: ShardLayout | None = None
    ) -> dict[str, NDArray[np.generic] | float | int | bool | None]:
        """Return what the optimizer keeps of a whole parameter, by key; empty where it keeps nothing.

        ``cut`` is that of the run, whose vocabulary may be padded to other rows; None: as the checkpoint has it.

        Raises:
            CheckpointError: the checkpoint is damaged, or its state cannot be given other rows.
        """
        state = self.manifest.states.get(name)
        if state is None:
            return {}
        found: dict[str, NDArray[np.generic] | float | int | bool | None] = dict(state.numbers)
        for key, (dtype, shape) in state.tensors.items():
            file = self.open(file_name(state.rank))
            read = file.read(f"{STATES}{name}/{key}")
            if read.dtype != TYPES[dtype] or read.size != math.prod(shape):
                raise CheckpointError(f"{file.path}: {key} of {name} is not the {dtype} {list(shape)} of the manifest")
            found[key] = self._with_rows(name, key, read.reshape(shape), cut)
        return found

    def _with_rows(
        self, name: str, key: str, tensor: NDArray[np.generic], cut: ShardLayout | None
    ) -> NDArray[np.generic]:
        """Return a tensor of state with the rows of ``cut``: what is padding has no moments."""
        stored = self.cut(name)
        if cut is None or cut.shape == stored.shape or not tensor.ndim:
            return tensor
        self._check_shape(name, stored, cut)
        if tensor.shape != stored.shape:
            raise CheckpointError(
                f"{self.path}: {key} of {name} belongs to {stored.shape[0]} rows, this run's vocabulary has "
                f"{cut.shape[0]}; set VOCAB_MULTIPLE so that the sizes agree, or NO_LOAD_OPTIM=1"
            )
        rows = min(stored.shape[0], cut.shape[0])
        fitted = np.zeros(cut.shape, tensor.dtype)
        fitted[:rows] = tensor[:rows]
        return fitted

    def _jobs(self, want: Want) -> Iterator[_Job]:
        """Yield what is to be read of the files, and make what no file has zero."""
        stored = self.cut(want.name)
        self._check_shape(want.name, stored, want.cut)
        if want.kind not in self.manifest.kinds:
            raise CheckpointError(f"{self.path}: holds no {want.kind}, only {', '.join(self.manifest.kinds)}")
        first, count = want.first, want.out.size
        fits = 0 <= first <= first + count <= want.cut.count
        if want.out.dtype != np.float32 or not want.out.flags.c_contiguous or not fits:
            raise AssertionError(f"{want.name}: {count} {want.out.dtype} from {first} of {want.cut.count}")
        if stored.shape != want.cut.shape:
            want.out[:] = 0
        key = f"{want.kind}/{want.name}"
        targets = boxes(want.cut, first, count)
        for run, cut, sources in self._sources(want.name, want.cut):
            for source in sources:
                for target in targets:
                    common = meet(source, target)
                    for name, begin, part in _shares(run, cut, source, common) if common else ():
                        top, bottom, left, right = part
                        rows, width = bottom - top, right - left
                        out = want.out[target.at(top, left) - first :]
                        yield _Job(
                            name, key, source.at(top, left) - begin, rows, width, source.stride, out, target.stride
                        )

    def _sources(self, name: str, wanted: ShardLayout) -> list[tuple[Run, ShardLayout, list[Box]]]:
        """Return the runs of a tensor, with their slices and rectangles; the last one's are kept."""
        degree, whole = self.manifest.layout["tensor"], self.manifest.tensors[name]
        # Where slices are those that were written, only one can have it.
        only = wanted.rank if wanted.degree == degree and wanted.shape == whole.shape and not wanted.is_whole else -1
        if self._known[:2] != (name, only):
            runs = [run for run in self.manifest.runs[name] if only in (-1, run.tensor)]
            found = [(run, whole.of(run.tensor, degree)) for run in runs]
            self._known = (name, only, [(run, cut, boxes(cut, run.first, run.end - run.first)) for run, cut in found])
        return self._known[2]

    def _check_shape(self, name: str, stored: ShardLayout, cut: ShardLayout) -> None:
        same = stored.shape == cut.shape
        tokens = self.manifest.model.get("vocab_size")
        if not same and name in VOCABULARY and isinstance(tokens, int):
            same = stored.shape[1:] == cut.shape[1:] and tokens <= min(stored.shape[0], cut.shape[0])
        if not same:
            raise CheckpointError(
                f"{self.path}: {name} has shape {list(stored.shape)}, this run's has {list(cut.shape)}; "
                "it is a checkpoint of another model"
            )

    def open(self, name: str) -> TensorFile:
        """Return a file, good until others were opened: of many, the one unused for longest is closed."""
        file = self._files.pop(name, None) or TensorFile(self.path / name, self.manifest.files[name].crc32)
        self._files[name] = file
        if len(self._files) > self._most_files:
            self._files.pop(next(iter(self._files))).close()
        return file


def _shares(
    run: Run, cut: ShardLayout, source: Box, common: tuple[int, int, int, int]
) -> Iterator[tuple[str, int, tuple[int, int, int, int]]]:
    """Yield what each file has of ``common``, which is in ``source``: name, its tensor's first element, rectangle."""
    if len(run.ranks) == 1:
        yield file_name(run.ranks[0]), run.first, common
        return
    top, bottom, left, right = common
    wanted = Box(*common, 0, 0)
    first, last = ((source.at(*corner) - run.first) // run.count for corner in ((top, left), (bottom - 1, right - 1)))
    # Of thousands of files only those between the two corners.
    for i in range(first, last + 1):
        begin = run.first + i * run.count
        for box in boxes(cut, begin, run.count):
            part = meet(box, wanted)
            if part is not None:
                yield file_name(run.ranks[i]), begin, part


def _groups(bands: list[_Job]) -> Iterator[list[_Job]]:
    """Yield neighbours together, so that small ones share blocks and a thread has enough to do."""
    group: list[_Job] = []
    size = 0
    for band in bands:
        group.append(band)
        size += band.rows * band.stride
        if size >= BAND:
            yield group
            group, size = [], 0
    if group:
        yield group


def _run_group(work: tuple[TensorFile, list[_Job]]) -> None:
    file, group = work
    for job in group:
        job.run(file)


def run_in_threads(
    work: Callable[[_Task], _Result],
    tasks: Iterable[_Task],
    threads: int,
    name: str,
    stop: threading.Event | None = None,
) -> list[_Result]:
    """Return what ``work`` gives for each task, several at a time. After a failure no further one begins.

    ``stop`` is set in the end, and as soon as one fails by the thread in which it does: tasks that run, and one that
    this thread may begin before the failure is known, see it.
    """

    errors: list[BaseException] = []  # the first one is the cause: others may have stopped because of it

    def stopping(task: _Task) -> _Result:
        try:
            return work(task)
        except BaseException as error:
            errors.append(error)
            if stop is not None:
                stop.set()
            raise

    with ThreadPoolExecutor(threads, name) as pool:
        futures = [pool.submit(stopping, task) for task in tasks]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            if errors:
                raise errors[0]
            return [future.result() for future in futures]
        finally:
            if stop is not None:
                stop.set()
            pool.shutdown(wait=False, cancel_futures=True)


def _average_weight(manifest: Manifest) -> float | None:
    """Return how far the weights for use are from those in the checkpoint to its iterates; None: they are the same.

    A schedule-free optimizer saves the point at which gradients are taken, ``y = (1 - beta) z +
    beta x``; the model is ``x`` (arXiv 2405.15682).
    """
    optim = manifest.settings.get("optim", {})
    row = OPTIMIZERS.get(str(optim.get("optimizer", "")))
    if row is None or not row.is_averaged or ITERATE not in manifest.kinds:
        return None
    return 1 - 1 / float(optim[row.averages_by])
