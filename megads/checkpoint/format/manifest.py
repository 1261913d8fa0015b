"""What a checkpoint contains: ``manifest.json``. No torch.

::

    {"crc32": "89abcdef",              of this file with eight zeros in that place
     "format": 3,
     "iteration": 50,
     "kinds": ["weight", "exp_avg", "exp_avg_sq"],
     "layout": {"pipe": 1, "data": 2, "seq": 1, "tensor": 2, "zero_stage": 1},
     "model": {...},                   settings that decide the shape and the meaning of the weights
     "settings": {...},                of the whole run; empty in what was imported
     "progress": {...}, "scalars": {...},
     "about": {"megads": "...", "torch": "...", "data": "..."},
     "tensors": {"layers.0.attention.qkv.weight": [[48, 16], 0, [16, 16, 16]], ...},   see ShardLayout
     "runs": {"layers.0.attention.qkv.weight": [[0, 384, 0, 4, 2], [0, 384, 1, 4, 2]], ...},     see Run
     "files": {"rank-00000.safetensors": {
         "bytes": 1234, "crc32": "01234567",   of its header, which holds those of its blocks
         "tensor": 0,                  the slice that its runs are of
         "generators": "0-0-0"}},      older versions: it holds generator states of this place in pipe, seq, tensor
     "states": {"layers.0.mlp.up.weight": {"rank": 0, "tensors": {...}, "numbers": {...}}}}      see ``whole_state``

A manifest with states has format 4, so that a program that does not know them does not continue
without; one that has none has format 3.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from megads.checkpoint.format.shard_layout import ShardLayout
from megads.checkpoint.format.whole_state import WholeParamState
from megads.comm.grid import AXES
from megads.errors import CheckpointError
from megads.release.versions import FORMATS
from megads.storage.checksums import NO_CRC, is_sealed, seal
from megads.storage.durable import write_synced
from megads.storage.reading import parse_json, read_bytes

FORMAT, WITH_STATES = FORMATS["checkpoint"].reads
MANIFEST = "manifest.json"
NAME = re.compile(r"^iter_([0-9]{7,})$")
"""Of a checkpoint's folder: the iteration after which it was written."""
GENERATORS = "rng/"
"""What a key begins with that is no parameter but the states of generators."""
MAX_BYTES = 1 << 30
"""Of a manifest; one of ten thousand ranks has about a megabyte."""
_FILE = re.compile(r"rank-([0-9]{5,9})\.safetensors", re.ASCII)
_PLACE = re.compile(r"[0-9]+-[0-9]+-[0-9]+", re.ASCII)
_CRC = re.compile(r"[0-9a-f]{8}")


def file_name(rank: int) -> str:
    """Return the name of the file of ``rank``."""
    return f"rank-{rank:05d}.safetensors"


@dataclass(frozen=True)
class Run:
    """Consecutive elements of a slice of a parameter, shared evenly by files.

    The file of ``ranks[i]`` holds ``count`` elements of the flattened slice from ``first + i * count`` on.
    In the manifest: ``[first, count, start, stop, step]``, the last three those of ``ranks``.
    """

    tensor: int  # tensor-parallel rank of the slice
    first: int
    count: int
    ranks: range

    @property
    def end(self) -> int:
        """The element behind the last one."""
        return self.first + self.count * len(self.ranks)


def in_order(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Return runs of one parameter slice by slice, and in order."""
    return tuple(sorted(runs, key=lambda run: (run.tensor, run.first)))


@dataclass(frozen=True)
class File:
    """One file of a checkpoint."""

    bytes: int
    crc32: int  # of the header
    tensor: int  # tensor-parallel rank of the slices that it holds elements of
    generators: str = ""  # "pipe-seq-tensor": where the generators stand whose states it holds; empty: none


@dataclass(frozen=True)
class Manifest:
    """Everything that is known of a checkpoint without reading its tensors."""

    iteration: int
    kinds: tuple[str, ...]
    layout: Mapping[str, int]
    model: Mapping[str, Any]
    tensors: Mapping[str, ShardLayout]
    files: Mapping[str, File]
    runs: Mapping[str, tuple[Run, ...]]  # of every tensor, slice by slice and in order
    settings: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    states: Mapping[str, WholeParamState] = field(default_factory=dict)  # of an optimizer that steps whole parameters

    @property
    def has_optimizer(self) -> bool:
        """Whether the optimizer's state is there too."""
        # One that has made no step yet may have nothing but its counts.
        return len(self.kinds) > 1 or bool(self.states) or bool(self.scalars)

    @property
    def has_generators(self) -> bool:
        """Whether a version wrote it whose dropout followed the states of generators; they are there too."""
        return any(file.generators for file in self.files.values())

    @property
    def bytes(self) -> int:
        """Of all its files but the manifest."""
        return sum(file.bytes for file in self.files.values())

    @cached_property
    def _by_ranks(self) -> Mapping[range, list[tuple[str, Run]]]:
        """The runs of the same ranks; where ranks share evenly, these are few."""
        found: dict[range, list[tuple[str, Run]]] = {}
        for name, runs in self.runs.items():
            for run in runs:
                found.setdefault(run.ranks, []).append((name, run))
        return found

    @cached_property
    def _shared(self) -> list[range]:
        return [ranks for ranks in self._by_ranks if len(ranks) > 1]

    def contents(self, file: str) -> list[tuple[str, int, int]]:
        """Return what a file holds: name of the parameter, first element of the flattened slice, count."""
        rank = int(file[5:].partition(".")[0])
        alone = range(rank, rank + 1)
        return [
            (name, run.first + run.count * ranks.index(rank), run.count)
            for ranks in (alone, *(each for each in self._shared if rank in each))
            for name, run in self._by_ranks.get(ranks, ())
        ]

    def check(self) -> None:
        """Raise ValueError unless its parts agree, and every element of every tensor is in exactly one file."""
        degree = self.layout["tensor"]
        if unknown := self.runs.keys() - self.tensors.keys():
            raise ValueError(f"it has runs of {min(unknown)!r:.40}, and no shape")
        self._check_files(degree)
        for name, cut in self.tensors.items():
            if any(part % degree for part in cut.parts):
                raise ValueError(f"{name} cannot be split over {degree} tensor-parallel ranks")
            _check_runs(name, self.runs.get(name, ()), cut.of(0, degree))
        for name, state in self.states.items():
            if name not in self.tensors or (state.tensors and file_name(state.rank) not in self.files):
                raise ValueError(f"it has state of {name!r:.40}, and not that parameter or not its file")

    def _check_files(self, degree: int) -> None:
        counts = dict.fromkeys(self.files, 0)
        for ranks, named in self._by_ranks.items():
            count, tensors = sum(run.count for _, run in named), {run.tensor for _, run in named}
            # There may be more ranks in a range than any loop could go through: the first that has no file ends it.
            for name in map(file_name, ranks):
                if name not in counts or {self.files[name].tensor} != tensors:
                    raise ValueError(f"{named[0][0]} is in {name:.40}, which does not hold slice {min(tensors)}")
                counts[name] += count
        for name, file in self.files.items():
            if file.tensor >= degree:
                raise ValueError(f"{name} holds slice {file.tensor} of {degree}")
            # Nobody makes room for more elements than there can be.
            if file.bytes < 4 * counts[name] * len(self.kinds):
                raise ValueError(f"{name} has {file.bytes} bytes, too few for {counts[name]} elements")

    def dump(self) -> str:
        """Return the text of the file."""
        content = {
            "crc32": NO_CRC,
            "format": WITH_STATES if self.states else FORMAT,
            **{key: getattr(self, key) for key in _PLAIN},
            "kinds": list(self.kinds),
            "tensors": {name: [list(cut.shape), cut.dim, list(cut.parts)] for name, cut in self.tensors.items()},
            "runs": {
                name: [[run.first, run.count, run.ranks.start, run.ranks.stop, run.ranks.step] for run in runs]
                for name, runs in self.runs.items()
            },
            "files": {
                name: {
                    **{"bytes": file.bytes, "crc32": f"{file.crc32:08x}", "tensor": file.tensor},
                    **({"generators": file.generators} if file.generators else {}),
                }
                for name, file in self.files.items()
            },
            **({"states": {name: state.dump() for name, state in self.states.items()}} if self.states else {}),
        }
        return seal(json.dumps(content))

    @staticmethod
    def parse(text: str) -> Manifest:
        """Return what :meth:`dump` wrote.

        Raises:
            ValueError, KeyError, TypeError, RecursionError: it is something else.
        """
        content = _of(dict, parse_json(text))
        if content["format"] != (WITH_STATES if content.get("states") else FORMAT):
            raise _OtherFormat(f"{content['format']!r:.20}")
        if not is_sealed(text.encode(), _of(str, content["crc32"])):
            raise ValueError("its content changed since it was written, its CRC-32 differs")
        layout = _of(dict, content["layout"])
        for axis in AXES:
            _number(layout[axis], least=1)
        _number(layout["zero_stage"])
        files = {_checked_name(name): _file(_of(dict, each)) for name, each in _of(dict, content["files"]).items()}
        manifest = Manifest(
            iteration=_number(content["iteration"]),
            layout=layout,
            **{key: _of(dict, content[key]) for key in ("model", "settings", "progress", "scalars", "about")},
            kinds=tuple(_of(str, kind) for kind in _of(list, content["kinds"])),
            tensors={name: _layout(each) for name, each in _of(dict, content["tensors"]).items()},
            files=files,
            runs={
                name: in_order(_run(each, files) for each in _of(list, runs))
                for name, runs in _of(dict, content["runs"]).items()
            },
            states={
                name: WholeParamState.parse(_of(dict, each))
                for name, each in _of(dict, content.get("states", {})).items()
            },
        )
        if manifest.kinds[:1] != ("weight",):
            raise ValueError("it lists no weights")
        manifest.check()
        return manifest


_PLAIN = ("iteration", "layout", "model", "settings", "progress", "scalars", "about")
_Kind = TypeVar("_Kind")


class _OtherFormat(ValueError):
    pass


def _check_runs(name: str, runs: tuple[Run, ...], cut: ShardLayout) -> None:
    """Check that ``runs``, which are in order, are all slices of a parameter, each element once."""
    slices = 1 if cut.is_whole else cut.degree
    if runs and runs[-1].tensor >= slices:
        raise ValueError(f"{name} is replicated on every tensor-parallel rank, but stored by more than the first")
    ends = [0] * slices
    for run in runs:
        if run.first != ends[run.tensor]:
            what = "missing" if run.first > ends[run.tensor] else "there twice"
            raise ValueError(f"elements of {name} before {run.first} of slice {run.tensor} are {what}")
        ends[run.tensor] = run.end
    for rank, end in enumerate(ends):
        if end != cut.count:
            raise ValueError(f"{name} has {end} of {cut.count} elements of slice {rank}")


def _of(kind: type[_Kind], value: object) -> _Kind:
    if not isinstance(value, kind):
        raise ValueError(f"{value!r:.40} where a {kind.__name__} belongs")
    return value


def _number(value: object, least: int = 0) -> int:
    # True is an int, and NaN is what json takes for a float.
    if type(value) is not int or value < least:
        raise ValueError(f"{value!r:.40} is not an integer of at least {least}")
    return value


def _layout(value: object) -> ShardLayout:
    shape, dim, parts = _of(list, value)
    cut = ShardLayout(
        tuple(_number(size, least=1) for size in _of(list, shape)),
        None if dim is None else _number(dim),
        tuple(_number(part, least=1) for part in _of(list, parts)),
    )
    if not 1 <= len(cut.shape) <= 2:
        raise ValueError(f"shape {cut.shape!r:.40} where a matrix or a vector belongs")
    along = () if cut.dim is None else cut.shape[cut.dim : cut.dim + 1]
    # No dimension: no parts. One that there is: its parts are all of it.
    if sum(cut.parts) != sum(along) or len(along) != (cut.dim is not None):
        raise ValueError(f"parts {cut.parts!r:.40} of shape {cut.shape} along {cut.dim}")
    return cut


def _checked_name(name: str) -> str:
    match = _FILE.fullmatch(name)
    if not match or file_name(int(match[1])) != name:
        raise ValueError(f"{name!r:.40} where the name of a file of this folder belongs")
    return name


def _file(each: dict[str, object]) -> File:
    crc, place = _of(str, each["crc32"]), _of(str, each.get("generators", ""))
    if not _CRC.fullmatch(crc):
        raise ValueError(f"{crc!r:.40} where a CRC-32 belongs")
    if place and not _PLACE.fullmatch(place):
        raise ValueError(f"{place!r:.40} where a place in the grid belongs")
    return File(_number(each["bytes"]), int(crc, 16), _number(each["tensor"]), place)


def _run(value: object, files: Mapping[str, File]) -> Run:
    first, count, start, stop, step = (_number(each) for each in _of(list, value))
    ranks, name = range(start, stop, step), file_name(start)
    if not ranks or not count or name not in files:
        raise ValueError(f"{value!r:.40} where a run belongs, of {name:.40}")
    return Run(files[name].tensor, first, count, ranks)


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of the checkpoint ``path`` after checking the size of its files.

    Raises:
        CheckpointError: the manifest or a file is missing, damaged or has another size, or the
            checkpoint has the name of another one.
    """
    manifest = _parse_named(path)
    for name, facts in manifest.files.items():
        try:
            status = os.stat(path / name)
        except OSError as error:
            raise CheckpointError(f"{path / name}: {error.strerror}; the manifest says {facts.bytes} bytes") from None
        if not stat.S_ISREG(status.st_mode) or status.st_size != facts.bytes:
            actual = f"{status.st_size} bytes" if stat.S_ISREG(status.st_mode) else "no file"
            raise CheckpointError(f"{path / name}: {actual}, the manifest says {facts.bytes}")
    return manifest


def is_complete(path: Path) -> bool:
    """Return whether the checkpoint ``path`` has a valid manifest, and the names of all files that it lists.

    Two questions to the file system for any number of files; :func:`read_manifest` looks at each one.
    """
    try:
        return _parse_named(path).files.keys() <= set(os.listdir(path))
    except (CheckpointError, OSError):
        return False


def _parse_named(path: Path) -> Manifest:
    manifest, match = _parse_file(path), NAME.match(path.name)
    if match and int(match[1]) != manifest.iteration:
        raise CheckpointError(
            f"{path}: is of iteration {manifest.iteration}, its name says {int(match[1])}; rename it back"
        )
    return manifest


def _parse_file(path: Path) -> Manifest:
    try:
        return Manifest.parse(read_bytes(path / MANIFEST, MAX_BYTES).decode("utf8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: has no {MANIFEST}; it is not a complete checkpoint") from None
    except _OtherFormat as error:
        raise CheckpointError(
            f"{path}: checkpoint format {error}, this version reads {FORMAT}, {WITH_STATES}; use the version of megads "
            "that wrote it"
        ) from None
    except (KeyError, OSError, ValueError, TypeError, RecursionError) as error:
        what = error.strerror if isinstance(error, OSError) else error
        what = f"it has no {error}" if isinstance(error, KeyError) else what
        raise CheckpointError(f"{path / MANIFEST}: not a readable manifest ({what})") from None


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest of the checkpoint ``path``, to the disk itself.

    Raises:
        OSError: it cannot be written, or would be longer than one that is read.
    """
    content = manifest.dump().encode()
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"its manifest has {len(content)} bytes, more than {MAX_BYTES}", path / MANIFEST)
    write_synced(path / MANIFEST, content)
