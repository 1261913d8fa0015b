"""Find and open the files of a Megatron-LM or Megatron-DeepSpeed checkpoint.

::

    SRC/latest_checkpointed_iteration.txt        500, or release
    SRC/iter_0000500/mp_rank_TT[_PPP]/model_optim_rng.pt
    SRC/latest                                   global_step500
    SRC/global_step500/layer_LL-model_TT-model_states.pt      a run with DeepSpeed's pipeline
    SRC/global_step500/mp_rank_TT_model_states.pt             a run without it
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from megads.checkpoint.convert.torch_files.read import StandIn, load
from megads.errors import CheckpointError

_RANK = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3}))?(?:_(\d{3}))?")
_STATES = re.compile(r"mp_rank_(\d{2,})_model_states\.pt")
_LAYER = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt")
_FILE = "model_optim_rng.pt"
_TRACKERS = ("latest_checkpointed_iteration.txt", "latest")
_CHECKPOINT = re.compile(r"iter_\d{7,}|release|global_step\d+")

Read = Callable[[Path], Mapping[str, Any]]
Chunk = list[tuple[Path, Mapping[str, Tensor]]]
"""Every tensor-parallel rank's file and its tensors by Megatron's names."""


@dataclass
class Source:
    """What the files of a checkpoint hold."""

    path: Path
    chunks: list[Chunk] = field(default_factory=list)  # in the order of depth; layers count from 0 in each
    args: Mapping[str, Any] = field(default_factory=dict)  # Megatron's, empty where they were not saved
    version: float = 0.0  # of the order of queries, keys and values
    iteration: int | None = None  # None: not known

    @property
    def tensor(self) -> int:
        """The tensor-parallel degree."""
        return len(self.chunks[0])

    @property
    def files(self) -> set[Path]:
        """All files with tensors."""
        return {file for chunk in self.chunks for file, _ in chunk}


def open_source(place: Path, step: int | None = None, *, are_tensors_verified: bool = True) -> Source:
    """Open the checkpoint ``place``, or the one of iteration ``step`` in it; None: the newest by its tracker.

    ``are_tensors_verified``: see ``megads.checkpoint.convert.torch_files.read.load``.

    Raises:
        CheckpointError: it does not exist, is incomplete or damaged.
    """
    try:
        path = _find(place) if step is None else _of_step(place, step)
        names = sorted(each.name for each in path.iterdir())
    except OSError as error:
        raise CheckpointError(f"{place}: {error.strerror}; use a folder that you can read") from None
    read = partial(_content, are_tensors_verified=are_tensors_verified)
    if any(_LAYER.fullmatch(name) for name in names):
        return _open_layers(path, names, read)
    if any(_STATES.fullmatch(name) for name in names):
        files = {(int(match[1]), 0): path / name for name in names if (match := _STATES.fullmatch(name))}
        return _open_ranks(path, files, read, is_deepspeed=True)
    if any(_RANK.fullmatch(name) for name in names):
        return _open_ranks(path, _rank_files(path, names), read)
    raise CheckpointError(f"{path}: {_missing(names)}")


def _missing(names: list[str]) -> str:
    if ".metadata" in names or "common.pt" in names:
        return "is in Megatron's torch_dist format; save it again in Megatron with --ckpt-format torch"
    if any(name.startswith("zero_pp_rank") and name.endswith("model_states.pt") for name in names):
        return "the weights are partitioned by ZeRO 3; join them with its zero_to_fp32.py, or save with another stage"
    return (
        "holds no checkpoint of Megatron (mp_rank_00/model_optim_rng.pt, layer_01-model_00-model_states.pt or "
        "mp_rank_00_model_states.pt); pass the folder that does, or the one with latest_checkpointed_iteration.txt"
    )


def _find(place: Path) -> Path:
    if not place.is_dir():
        raise CheckpointError(f"{place}: {'is not a folder' if place.exists() else 'does not exist'}; use a folder")
    for tracker in _TRACKERS:
        if (place / tracker).is_file():
            text = (place / tracker).read_text(encoding="utf8", errors="replace").strip()[:80]
            names = (text, f"iter_{int(text):07d}", f"global_step{text}") if text.isdecimal() else (text,)
            found = next((place / name for name in names if _is_child(place, name)), None)
            if found is None:
                missing = names[1] if len(names) > 1 and tracker.startswith("latest_") else names[-1]
                raise CheckpointError(f"{place / tracker}: names {text!r}, but {missing} is missing")
            return found
    found_here = sorted(each for each in place.iterdir() if _CHECKPOINT.fullmatch(each.name))
    if len(found_here) > 1:
        shown = ", ".join(each.name for each in found_here[:5])
        raise CheckpointError(f"{place}: holds {shown} and no latest_checkpointed_iteration.txt; pass one of them")
    return found_here[0] if found_here else place


def _of_step(place: Path, step: int) -> Path:
    names = (f"iter_{step:07d}", f"global_step{step}")
    if place.name in names:
        return place
    found = next((place / name for name in names if _is_child(place, name)), None)
    if found is None:
        there = sorted(each.name for each in place.iterdir() if _CHECKPOINT.fullmatch(each.name))
        raise CheckpointError(f"{place}: no checkpoint of iteration {step}; the newest are {', '.join(there[-5:])}")
    return found


def _is_child(place: Path, name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and (place / name).is_dir()


def _open_ranks(path: Path, files: Mapping[tuple[int, int], Path], read: Read, *, is_deepspeed: bool = False) -> Source:
    """Open the ``files`` of every (tensor rank, pipeline rank), Megatron-LM's or DeepSpeed's without its pipeline."""
    contents = {place: read(files[place]) for place in sorted(files)}
    file, first = files[min(files)], contents[min(files)]
    args = _attributes(first.get("args"))
    degrees = _degree(args, "tensor_model_parallel_size", "model_parallel_size"), _degree(first, "mp_world_size")
    tensor = max(*degrees, 1 + max(t for t, _ in files))
    stages = 1 if is_deepspeed else _degree(args, "pipeline_model_parallel_size")
    pipe = max(stages, 1 + max(p for _, p in files))
    for p in range(pipe):
        for t in range(tensor):
            if (t, p) not in files:
                folder = f"mp_rank_{t:02d}_{p:03d}" if pipe > 1 else f"mp_rank_{t:02d}"
                name = f"{folder}_model_states.pt" if is_deepspeed else f"{folder}/{_FILE}"
                ranks = f"TP={tensor}" if is_deepspeed else f"TP={tensor} x PP={pipe}"
                raise CheckpointError(f"{path}: {name} is missing, of {ranks} ranks")
    for place, content in contents.items():
        _check_same(file, first, files[place], content)
    source = Source(path, args=args, version=_version(first), iteration=_iteration(first))
    for key in ["module"] if is_deepspeed else _model_keys(file, first):
        for p in range(pipe):
            source.chunks.append([(files[t, p], _tensors(files[t, p], contents[t, p].get(key))) for t in range(tensor)])
    return source


def _rank_files(path: Path, names: list[str]) -> dict[tuple[int, int], Path]:
    """Return Megatron-LM's files by (tensor rank, pipeline rank)."""
    files: dict[tuple[int, int], Path] = {}
    for name in names:
        match = _RANK.fullmatch(name)
        if match and (path / name / _FILE).exists():
            if match[3] is not None and int(match[3]):
                raise CheckpointError(f"{path / name}: is of an expert-parallel rank; megads has no experts")
            files[int(match[1]), int(match[2] or 0)] = path / name / _FILE
    if not files:
        raise CheckpointError(f"{path}: no folder mp_rank_* holds {_FILE}; pass a checkpoint with its weights")
    return files


def _model_keys(file: Path, content: Mapping[str, Any]) -> list[str]:
    """Return where the model is: ``model``, or ``model0``, ``model1``, ... of virtual pipeline stages."""
    if "model" in content:
        return ["model"]
    found = sorted((key for key in content if re.fullmatch(r"model\d+", str(key))), key=lambda key: int(key[5:]))
    if not found:
        raise CheckpointError(f"{file}: holds no model, only {', '.join(map(str, content))[:200]}")
    return found


def _open_layers(path: Path, names: list[str], read: Read) -> Source:
    """Open the files of DeepSpeed's pipeline engine, one of every layer and tensor rank."""
    files: dict[tuple[int, int], Path] = {}
    for name in names:
        if match := _LAYER.fullmatch(name):
            files[int(match[1]), int(match[2])] = path / name
    source = _of_deepspeed(path, names, read)
    known = max(1, 1 + max(tensor for _, tensor in files), _degree(source.args, "tensor_model_parallel_size"))
    roles = _Roles()
    for layer in sorted({layer for layer, _ in files}):
        chunk: Chunk = []
        for tensor in range(known):
            if (layer, tensor) not in files:
                wanted = f"layer_{layer:02d}-model_{tensor:02d}-model_states.pt"
                raise CheckpointError(f"{path}: {wanted} is missing, of TP={known} ranks")
            file = files[layer, tensor]
            tensors = _tensors(file, read(file))
            chunk.append((file, {roles.name(layer, key, file): each for key, each in tensors.items()}))
        source.chunks.append(chunk)
    return source


class _Roles:
    """Finds what a file of DeepSpeed's pipeline is from what it holds: its number depends on the version."""

    def __init__(self) -> None:
        self.embedding: int | None = None
        self.last_block: int | None = None

    def name(self, number: int, key: str, file: Path) -> str:
        """Return Megatron's name of the tensor ``key`` in the file of layer ``number``."""
        if key.startswith(("word_embeddings.", "position_embeddings.", "tokentype_embeddings.")):
            self.embedding = number if self.embedding is None else self.embedding
            return (
                f"language_model.embedding.{key}"
                if number == self.embedding
                else f"word_embeddings_for_head.{key[16:]}"
            )
        if key in ("lm_head.weight", "final_linear.weight"):
            return "language_model.output_layer.weight"
        if key in ("weight", "bias"):
            return f"language_model.encoder.final_layernorm.{key}"
        if self.last_block is not None and number not in (self.last_block, self.last_block + 1):
            raise CheckpointError(f"{file.parent}: the files of layer {self.last_block + 1} are missing")
        self.last_block = number
        return f"language_model.encoder.layers.0.{key}"


def _of_deepspeed(path: Path, names: list[str], read: Read) -> Source:
    """Return what the pipeline engine keeps besides the layers' files."""
    name = next((name for name in names if _STATES.fullmatch(name)), None)
    content = read(path / name) if name else {}
    # DeepSpeed's pipeline is younger than version 2; where its rank files are missing, so is the number.
    version = _version(content) or 3.0
    return Source(path, args=_attributes(content.get("args")), version=version, iteration=_iteration(content))


def _content(file: Path, *, are_tensors_verified: bool) -> Mapping[str, Any]:
    content = load(file, are_tensors_verified=are_tensors_verified)
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{file}: holds a {type(content).__name__}; a checkpoint of Megatron is a dictionary")
    return content


def _tensors(file: Path, model: Any) -> dict[str, Tensor]:
    """Return the tensors of nested dictionaries by their dotted names."""
    if not isinstance(model, Mapping) or not model:
        raise CheckpointError(f"{file}: holds no weights; pass the checkpoint that does")
    return {name.removeprefix("module."): each for name, each in _flat(file, model, "")}


def _flat(file: Path, nested: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Tensor]]:
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(file, value, f"{name}.")
        elif isinstance(value, Tensor):
            yield name, value
        elif not name.endswith("_extra_state"):
            raise CheckpointError(f"{file}: {name} is not a tensor but a {type(value).__name__}")


def _attributes(args: Any) -> Mapping[str, Any]:
    if isinstance(args, StandIn):
        return vars(args)
    return args if isinstance(args, Mapping) else {}


def _degree(of: Mapping[str, Any], *names: str) -> int:
    found = next((of[name] for name in names if isinstance(of.get(name), int)), 1)
    return int(found)


def _version(content: Mapping[str, Any]) -> float:
    version = content.get("checkpoint_version", 0)
    return float(version) if isinstance(version, int | float) else 0.0


def _iteration(content: Mapping[str, Any]) -> int | None:
    found = next((content[key] for key in ("iteration", "global_steps") if isinstance(content.get(key), int)), None)
    return None if found is None else int(found)


def _check_same(first: Path, one: Mapping[str, Any], second: Path, other: Mapping[str, Any]) -> None:
    """Reject two files of one checkpoint that were not saved together."""
    for what, read in (("iteration", _iteration), ("checkpoint_version", _version)):
        if read(one) != read(other):
            raise CheckpointError(
                f"{second}: is of {what} {read(other)}, {first} of {read(one)}; they were not saved together"
            )
