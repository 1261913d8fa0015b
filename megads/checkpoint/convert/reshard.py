"""Reshard a checkpoint for another layout, so that each of its ranks finds in one file what it owns. No torch.

Nothing needs this: a run of any layout reads what any other wrote. It is for many ranks that
would open many files, and for taking the weights along without the optimizer. Numbers are
read, checked and written a chunk at a time, so memory depends neither on the model nor on the
layouts.
"""

from __future__ import annotations

import math
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from megads.checkpoint.format.blocks import TYPES, Entry, write_file
from megads.checkpoint.format.commit import commit, new_checkpoint, part_of
from megads.checkpoint.format.folders import CheckpointRef, checkpoint_name
from megads.checkpoint.format.manifest import MANIFEST, File, Manifest, file_name
from megads.checkpoint.format.reader import Reader, run_in_threads
from megads.checkpoint.format.runs import Contents, with_files
from megads.checkpoint.format.shard_layout import ShardLayout, saved_parameters
from megads.checkpoint.format.whole_state import WholeParamState
from megads.comm.grid import AXES, Grid
from megads.config.rules import layout as layout_rules
from megads.config.rules.advice import Attempt, Change, Layout, Problem, put, refusal
from megads.config.schema import ModelConfig, ParallelConfig, RunConfig
from megads.config.setting import Origin
from megads.config.settings.engine import EngineConfig
from megads.config.stages import SPLITS, chunk_steps
from megads.errors import CheckpointError, ConfigError
from megads.families.decoder import spec_of

OPTIONS = {
    "parallel.tensor": "--tp",
    "parallel.pipeline": "--pp",
    "parallel.sequence": "--sp",
    "parallel.data": "--dp",
    "parallel.zero_stage": "--zero-stage",
    "parallel.pipeline_split": "--pipeline-split",
}
_RULES = (layout_rules.tensor, layout_rules.stages, layout_rules.sequence, layout_rules.zero)
_MOST_RANKS = 1 << 17
_ALIGNED = 2
"""ZeRO 1 and 2 give each rank a multiple of this of a group of parameters laid end to end."""
CHUNK = 1 << 22
"""Elements that a worker reads and writes together."""


@dataclass(frozen=True)
class Share:
    """A run of a parameter that one file gets."""

    name: str
    cut: ShardLayout
    first: int
    count: int


def layout_text(had: Mapping[str, int]) -> str:
    """Return a manifest's layout as ``TP=2 x PP=1 x SP=1 x DP=4, ZeRO 1``."""
    return f"TP={had['tensor']} x PP={had['pipe']} x SP={had['seq']} x DP={had['data']}, ZeRO {had['zero_stage']}"


def target_of(manifest: Manifest, **wanted: int | str | None) -> RunConfig:
    """Return a run of a checkpoint's model in a wanted layout.

    ``wanted`` are ``tensor``, ``pipeline``, ``sequence``, ``data``, ``zero_stage`` and ``pipeline_split``; None: as the
    checkpoint has it.

    Raises:
        ConfigError: the model cannot be laid out so; the line says what would work.
        CheckpointError: the model is of a later version of megads.
    """
    had, settings = manifest.layout, manifest.settings
    given = {name: value for name, value in wanted.items() if value is not None}
    saved = settings.get("parallel", {})
    layout = {
        "tensor": had["tensor"],
        "pipeline": had["pipe"],
        "sequence": had["seq"],
        "data": had["data"],
        "zero_stage": had["zero_stage"],
        "pipeline_split": saved.get("pipeline_split", "layers"),
        **given,
    }
    if layout["pipeline"] == had["pipe"] and "pipeline_split" not in given:
        layout |= {name: saved.get(name, 0) for name in ("virtual_stages", "layers_per_virtual_stage")}
    if "pipeline_split" not in given and layout["pipeline"] != had["pipe"] and layout["pipeline_split"] not in SPLITS:
        layout["pipeline_split"] = "layers"  # the list was of other stages
    model = {key: value for key, value in manifest.model.items() if key in ModelConfig.model_fields}
    # Nothing in a checkpoint depends on the length of the samples.
    model["seq_length"] = settings.get("model", {}).get("seq_length", layout["sequence"])
    try:
        engine = EngineConfig(kind=settings.get("engine", {}).get("kind", "auto"))
        run = RunConfig(model=ModelConfig(**model), parallel=ParallelConfig(**layout), engine=engine)
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(f"the checkpoint's {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    ranks = run.parallel.tensor * run.parallel.pipeline * run.parallel.sequence * run.parallel.data
    if ranks > (most := min(_MOST_RANKS, sum(math.prod(cut.shape) for cut in manifest.tensors.values()))):
        text = layout_text({**layout, "pipe": layout["pipeline"], "seq": layout["sequence"]})
        raise ConfigError(f"{text}: is {ranks} ranks, each with a file of its own; at most {most} for this checkpoint")
    problem = _problem_of(run)
    if problem is not None:
        raise ConfigError(refusal(problem, _attempt(run)))
    if odd := sorted(manifest.tensors.items() ^ saved_parameters(run.model).items(), key=lambda each: each[0]):
        raise CheckpointError(
            f"the checkpoint's {odd[0][0]} is not what its model has; another version of megads wrote it"
        )
    return run


def _problem_of(run: RunConfig) -> Problem | None:
    for rule in _RULES:
        for problem in rule(run, 1):
            # The model is what it is; only its layout can be another.
            ways = [way for way in problem.ways if way.keys() <= OPTIONS.keys()]
            return replace(problem, ways=ways, rule=rule.__name__)
    return None


def _attempt(run: RunConfig) -> Attempt:
    def derive(change: Change) -> Layout:
        changed = put(run, change)
        return Layout(changed, 1, 1, _problem_of(changed))

    return Attempt(derive, {name: Origin("cli", option) for name, option in OPTIONS.items()})


def grid_of(run: RunConfig) -> Grid:
    """Return the grid of ranks that :func:`target_of` wants."""
    grid = run.parallel
    return Grid(pipe=grid.pipeline, data=grid.data, seq=grid.sequence, tensor=grid.tensor)


def shares_of(run: RunConfig) -> list[list[Share]]:
    """Return what every rank's file holds: each number of the model in one of them, and in its owner's.

    A pipeline stage owns the parameters of its steps, a tied embedding the first. What is whole on
    every tensor-parallel rank is in the file of the first. Ranks of data x seq share evenly
    as the ZeRO stage does: 0 and 3 each parameter, 1 and 2 matrices and vectors laid end to end.
    """
    grid, spec = grid_of(run), spec_of(run.model)
    parameters = [each for each in spec.parameters() if spec.is_trained(each)]
    stages = [set(chain(*chunks)) for chunks in chunk_steps(run)]
    size = grid.data * grid.seq
    flat = run.parallel.zero_stage in (1, 2)
    files = []
    for rank in range(grid.world_size):
        at = grid.coordinate(rank)
        tensor, place = at["tensor"], at["data"] * grid.seq + at["seq"]
        owned = {
            each.name: ShardLayout(each.shape, each.dim, each.parts, tensor, grid.tensor)
            for each in parameters
            if each.step in stages[at["pipe"]]
        }
        groups = _together(owned) if flat else [[each] for each in owned.items()]
        shares = [share for group in groups for share in _cut_evenly(group, place, size, _ALIGNED if flat else 1)]
        files.append([share for share in shares if tensor == 0 or not share.cut.is_whole])
    return files


def _together(owned: Mapping[str, ShardLayout]) -> list[list[tuple[str, ShardLayout]]]:
    """Return the optimizer's groups: matrices decay, vectors do not."""
    matrices = [each for each in owned.items() if len(each[1].shape) > 1]
    vectors = [each for each in owned.items() if len(each[1].shape) <= 1]
    return [matrices, vectors]


def _cut_evenly(group: Sequence[tuple[str, ShardLayout]], place: int, size: int, aligned: int) -> Iterator[Share]:
    """Yield the ``place``-th of ``size`` even shares of parameters laid end to end."""
    total = sum(cut.count for _, cut in group)
    step = -(-total // (size * aligned)) * aligned
    begin, end = place * step, (place + 1) * step
    start = 0
    for name, cut in group:
        first, last = max(begin - start, 0), min(end - start, cut.count)
        if first < last:
            yield Share(name, cut, first, last - first)
        start += cut.count


def reshape(
    source: Path,
    manifest: Manifest,
    folder: Path,
    run: RunConfig,
    *,
    weights_only: bool = False,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
    open_reader: Callable[[], Reader] | None = None,
) -> CheckpointRef:
    """Reshard the checkpoint ``source`` into ``folder``, in the layout of ``run``.

    Weights, moments, scalars, progress and settings are the same. It becomes visible when all of it is on disk.

    For ``run`` see :func:`target_of`. ``weights_only`` skips the optimizer; ``workers`` files are written at the same
    time; ``progress`` is called with the bytes that are written and their total; ``open_reader`` returns what reads
    ``source`` otherwise than as it is.

    Raises:
        CheckpointError: the source is damaged, there is a checkpoint of this iteration already,
            or the folder cannot be written. Nothing is left then.
    """
    final = folder / checkpoint_name(manifest.iteration)
    kinds = ("weight",) if weights_only else manifest.kinds
    plan = {rank: shares for rank, shares in enumerate(shares_of(run)) if shares}
    # Without its optimizer's state a checkpoint's weights are those for use.
    in_use = tuple(kinds) != manifest.kinds
    job = _Job(
        open_reader or (lambda: Reader(source, manifest, threads=1, in_use=in_use)),
        manifest,
        part_of(final),
        kinds,
        progress,
    )
    job.total = 4 * len(kinds) * sum(share.count for shares in plan.values() for share in shares)
    if not weights_only:
        job.total += sum(_bytes_of(state) for state in manifest.states.values())
        # State is written by the ranks in turn: any rank finds it, wherever it is.
        ranks = list(plan)
        job.state_ranks = {name: ranks[i % len(ranks)] for i, name in enumerate(manifest.states)}
    if os.path.lexists(folder / MANIFEST):
        raise CheckpointError(f"{folder}: is a checkpoint; pass the folder in which {final.name} is to be made")
    with new_checkpoint(final) as part:
        free = shutil.disk_usage(part).free
        if free < job.total:
            raise CheckpointError(
                f"{folder}: {free / 1e9:.4g} GB free, {job.total / 1e9:.4g} GB needed; free some space "
                "or use another folder"
            )
        files = job.run(plan, workers)
        grid = grid_of(run)
        made = replace(
            manifest,
            kinds=kinds,
            layout={**{axis: grid.degree(axis) for axis in AXES}, "zero_stage": run.parallel.zero_stage},
            scalars={} if weights_only else manifest.scalars,
            about={**manifest.about, "reshaped_from": dict(manifest.layout)},
            states={name: replace(manifest.states[name], rank=rank) for name, rank in job.state_ranks.items()},
        )
        made = with_files(made, files)
        commit(final, made)
    return CheckpointRef(final, made)


def _bytes_of(state: WholeParamState) -> int:
    return sum(TYPES[dtype].itemsize * math.prod(shape) for dtype, shape in state.tensors.values())


@dataclass
class _Job:
    """Writes the files, several at a time."""

    open_reader: Callable[[], Reader]
    manifest: Manifest
    part: Path
    kinds: Sequence[str]
    progress: Callable[[int, int], None]
    total: int = 0
    done: int = 0
    state_ranks: dict[str, int] = field(default_factory=dict)  # parameter -> the rank whose file gets its state
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)
    readers: SimpleQueue[Reader] = field(default_factory=SimpleQueue)

    def run(self, plan: Mapping[int, Sequence[Share]], workers: int) -> dict[int, tuple[File, Contents]]:
        """Write the file of every rank and return what they hold."""
        # Files are read and written, and their checksums made, while Python's lock is free: threads are enough.
        workers = max(1, min(workers, len(plan)))
        for _ in range(workers):
            self.readers.put(self.open_reader())
        files = run_in_threads(lambda each: self._write(*each), plan.items(), workers, "megads-reshape", self.stop)
        return dict(zip(plan, files, strict=True))

    def _write(self, rank: int, shares: Sequence[Share]) -> tuple[File, Contents]:
        reader = self.readers.get()
        try:
            entries = [
                Entry(f"{kind}/{share.name}", np.dtype("<f4"), share.count, partial(self._read, reader, kind, share))
                for kind in self.kinds
                for share in shares
            ]
            for name, writer in self.state_ranks.items():
                entries += self._state(reader, name) if writer == rank else ()
            file = File(*write_file(self.part / file_name(rank), entries), shares[0].cut.rank)
        finally:
            reader.close()  # a thousand files of the source may be more than a process may have open
            self.readers.put(reader)
        return file, [(share.name, share.first, share.count) for share in shares]

    def _state(self, reader: Reader, name: str) -> Iterator[Entry]:
        state = self.manifest.states[name]
        for key, count in state.counts(name).items():
            dtype = TYPES[state.tensors[key.rpartition("/")[2]][0]]
            yield Entry(key, dtype, count, partial(self._copy, reader, state.rank, key, count))

    def _copy(self, reader: Reader, rank: int, key: str, count: int) -> Iterator[NDArray[np.generic]]:
        for at in range(0, count, CHUNK):
            chunk = reader.open(file_name(rank)).read(key, at, min(CHUNK, count - at))
            yield chunk
            self._report(chunk.nbytes)

    def _report(self, num_bytes: int) -> None:
        with self.lock:
            self.done += num_bytes
            self.progress(self.done, self.total)

    def _read(self, reader: Reader, kind: str, share: Share) -> Iterator[NDArray[np.float32]]:
        for at in range(0, share.count, CHUNK):
            if self.stop.is_set():
                raise CheckpointError(f"{self.part}: given up")
            count = min(CHUNK, share.count - at)
            yield reader.read(share.name, kind, share.cut, share.first + at, count)
            self._report(4 * count)
