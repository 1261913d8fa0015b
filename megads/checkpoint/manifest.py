"""What a checkpoint says of itself: ``manifest.json``. No torch.

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
     "tensors": {"layers.0.attention.qkv.weight": [[48, 16], 0, [16, 16, 16]], ...},   shape, dim, parts: see Cut
     "files": {"rank-00000.safetensors": {
         "bytes": 1234, "crc32": "01234567",   of its header, which holds those of its blocks
         "tensor": 0,                  the slice that its runs are of
         "pieces": [["layers.0.attention.qkv.weight", 0, 384], ...]}}}     name, first number, count
"""

from __future__ import annotations

import json
import os
import re
import stat
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from megads.checkpoint.cut import Cut
from megads.errors import CheckpointError

FORMAT = 3
MANIFEST = "manifest.json"
NAME = re.compile(r"^iter_([0-9]{7,})$")
"""Of a checkpoint's folder: the iteration after which it was written."""
GENERATORS = "rng/"
"""What a piece's name begins with that is no parameter but the states of generators."""
AXES = ("pipe", "data", "seq", "tensor")
MAX_BYTES = 1 << 30
"""Of a manifest; a real one of ten thousand ranks has a few megabytes."""
_NO_CRC = "00000000"
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\.safetensors", re.ASCII)
_CRC = re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True, order=True)
class Run:
    """Consecutive numbers of a slice of a parameter, and the file that holds them."""

    tensor: int  # tensor-parallel rank of the slice
    first: int  # number of the flattened slice
    count: int
    file: str


@dataclass(frozen=True)
class FileFacts:
    """One file of a checkpoint."""

    bytes: int
    crc32: int  # of the header
    tensor: int  # tensor-parallel rank of the slices that its pieces are of
    pieces: tuple[tuple[str, int, int], ...]  # name, first number of the flattened slice, count


@dataclass(frozen=True)
class Manifest:
    """Everything that is known of a checkpoint without reading its tensors."""

    iteration: int
    kinds: tuple[str, ...]
    layout: Mapping[str, int]
    model: Mapping[str, Any]
    tensors: Mapping[str, Cut]
    files: Mapping[str, FileFacts]
    settings: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_optimizer(self) -> bool:
        """Whether the optimizer's state is there too."""
        return len(self.kinds) > 1

    @property
    def has_generators(self) -> bool:
        """Whether the states of the random-number generators are there too."""
        return any(name.startswith(GENERATORS) for facts in self.files.values() for name, *_ in facts.pieces)

    @property
    def bytes(self) -> int:
        """Of all its files but the manifest."""
        return sum(facts.bytes for facts in self.files.values())

    @cached_property
    def runs(self) -> Mapping[str, tuple[Run, ...]]:
        """Of every tensor the runs that its files hold, slice by slice and in order."""
        found: dict[str, list[Run]] = {name: [] for name in self.tensors}
        for file, facts in self.files.items():
            for name, first, count in facts.pieces:
                if not name.startswith(GENERATORS):
                    found[name].append(Run(facts.tensor, first, count, file))
        return {name: tuple(sorted(runs)) for name, runs in found.items()}

    def check(self) -> None:
        """Check that its parts agree, and that every number of every tensor is in exactly one file.

        Raises:
            ValueError: they do not, or it is not; the first that was found.
        """
        degree = self.layout["tensor"]
        for name, facts in self.files.items():
            numbers = sum(count for _, _, count in facts.pieces)
            # Nobody makes room for more numbers than there can be.
            if facts.bytes < 4 * numbers * len(self.kinds):
                raise ValueError(f"{name} has {facts.bytes} bytes, too few for {numbers} numbers")
            unknown = [
                each for each, *_ in facts.pieces if each not in self.tensors and not each.startswith(GENERATORS)
            ]
            if unknown or facts.tensor >= degree:
                raise ValueError(f"{name} holds {unknown[0] if unknown else f'slice {facts.tensor} of {degree}'}")
        for name, cut in self.tensors.items():
            if any(part % degree for part in cut.parts):
                raise ValueError(f"{name} can not be cut for {degree} tensor-parallel ranks")
            _check_runs(name, self.runs[name], cut.of(0, degree))

    def dump(self) -> str:
        """Return the text of the file."""
        content = {
            "crc32": _NO_CRC,
            "format": FORMAT,
            **{key: getattr(self, key) for key in _PLAIN},
            "kinds": list(self.kinds),
            "tensors": {name: [list(cut.shape), cut.dim, list(cut.parts)] for name, cut in self.tensors.items()},
            "files": {
                name: {"bytes": f.bytes, "crc32": f"{f.crc32:08x}", "tensor": f.tensor, "pieces": f.pieces}
                for name, f in self.files.items()
            },
        }
        text = json.dumps(content)
        return text.replace(_NO_CRC, f"{zlib.crc32(text.encode()):08x}", 1)

    @staticmethod
    def parse(text: str) -> Manifest:
        """Return what :meth:`dump` wrote.

        Raises:
            ValueError, KeyError, RecursionError: it is something else.
        """
        content = _of(dict, json.loads(text))
        if content["format"] != FORMAT:
            raise _OtherFormat(f"{content['format']!r:.20}")
        crc = _of(str, content["crc32"])
        if f"{zlib.crc32(text.replace(crc, _NO_CRC, 1).encode()):08x}" != crc:
            raise ValueError("its content changed since it was written, its CRC-32 differs")
        layout = _of(dict, content["layout"])
        for axis in AXES:
            _number(layout[axis], least=1)
        _number(layout["zero_stage"])
        manifest = Manifest(
            iteration=_number(content["iteration"]),
            layout=layout,
            **{key: _of(dict, content[key]) for key in ("model", "settings", "progress", "scalars", "about")},
            kinds=tuple(_of(str, kind) for kind in _of(list, content["kinds"])),
            tensors={name: _cut(each) for name, each in _of(dict, content["tensors"]).items()},
            files={_file(name): _facts(_of(dict, each)) for name, each in _of(dict, content["files"]).items()},
        )
        if manifest.kinds[:1] != ("weight",):
            raise ValueError("it tells of no weights")
        manifest.check()
        return manifest


_PLAIN = ("iteration", "layout", "model", "settings", "progress", "scalars", "about")
_Kind = TypeVar("_Kind")


class _OtherFormat(ValueError):
    pass


def _check_runs(name: str, runs: tuple[Run, ...], cut: Cut) -> None:
    """Check that ``runs``, which are in order, are all slices of a parameter, each number once."""
    slices = 1 if cut.is_whole else cut.degree
    if runs and runs[-1].tensor >= slices:
        raise ValueError(f"{name} is whole on every tensor-parallel rank, and there from more than the first")
    ends = [0] * slices
    for run in runs:
        if run.first != ends[run.tensor]:
            what = "missing" if run.first > ends[run.tensor] else "there twice"
            raise ValueError(f"numbers of {name} before {run.first} of slice {run.tensor} are {what}")
        ends[run.tensor] += run.count
    for rank, end in enumerate(ends):
        if end != cut.count:
            raise ValueError(f"{name} has {end} of {cut.count} numbers of slice {rank}")


def _of(kind: type[_Kind], value: object) -> _Kind:
    if not isinstance(value, kind):
        raise ValueError(f"{value!r:.40} where a {kind.__name__} belongs")
    return value


def _number(value: object, least: int = 0) -> int:
    # True is an int, and NaN is what json takes for a float.
    if type(value) is not int or value < least:
        raise ValueError(f"{value!r:.40} where a whole number from {least} on belongs")
    return value


def _cut(value: object) -> Cut:
    shape, dim, parts = _of(list, value)
    cut = Cut(
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


def _file(name: str) -> str:
    if not _FILE.fullmatch(name):
        raise ValueError(f"{name!r:.40} where the name of a file of this folder belongs")
    return name


def _facts(each: dict[str, object]) -> FileFacts:
    crc = _of(str, each["crc32"])
    if not _CRC.fullmatch(crc):
        raise ValueError(f"{crc!r:.40} where a CRC-32 belongs")
    pieces = []
    for piece in _of(list, each["pieces"]):
        name, first, count = _of(list, piece)
        pieces.append((_of(str, name), _number(first), _number(count)))
    return FileFacts(_number(each["bytes"]), int(crc, 16), _number(each["tensor"]), tuple(pieces))


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of the checkpoint ``path`` after checking the size of its files.

    Raises:
        CheckpointError: the manifest or a file is missing, damaged or has another size, or the
            checkpoint has the name of another one.
    """
    manifest = _parse_file(path)
    match = NAME.match(path.name)
    if match and int(match[1]) != manifest.iteration:
        raise CheckpointError(
            f"{path}: is of iteration {manifest.iteration}, its name says {int(match[1])}; give it its own name back"
        )
    for name, facts in manifest.files.items():
        try:
            status = os.stat(path / name)
        except OSError as error:
            raise CheckpointError(f"{path / name}: {error.strerror}; the manifest says {facts.bytes} bytes") from None
        if not stat.S_ISREG(status.st_mode) or status.st_size != facts.bytes:
            actual = f"{status.st_size} bytes" if stat.S_ISREG(status.st_mode) else "no file"
            raise CheckpointError(f"{path / name}: {actual}, the manifest says {facts.bytes}")
    return manifest


def _parse_file(path: Path) -> Manifest:
    try:
        with open(path / MANIFEST, "rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError("too long for one")
        return Manifest.parse(content.decode("utf8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: has no {MANIFEST}; it is not a whole checkpoint") from None
    except _OtherFormat as error:
        raise CheckpointError(
            f"{path}: checkpoint format {error}, this version reads {FORMAT}; use the version of megads that wrote it"
        ) from None
    except KeyError as error:
        raise CheckpointError(f"{path / MANIFEST}: not a readable manifest (it has no {error})") from None
    except OSError as error:
        raise CheckpointError(f"{path / MANIFEST}: not a readable manifest ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path / MANIFEST}: not a readable manifest ({error})") from None


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest of the checkpoint ``path``, to the disk itself."""
    with open(path / MANIFEST, "wb") as file:
        file.write(manifest.dump().encode())
        file.flush()
        os.fsync(file.fileno())
