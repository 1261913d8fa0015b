"""Make a checkpoint of ours from Megatron's files: find, join the ranks, rename, write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from megads.checkpoint.convert.megatron.architecture import ShapeFacts, model_of
from megads.checkpoint.convert.megatron.merge import Floats, join, join_rows, qkv_to_ours, with_rows
from megads.checkpoint.convert.megatron.names import TIED_COPY, ours_of
from megads.checkpoint.convert.megatron.read_files import Chunk, Source, open_source
from megads.checkpoint.convert.writer import common_dtype, new_writer
from megads.checkpoint.format.shard_layout import ShardLayout, parameters_of
from megads.checkpoint.resume.compatibility import shape_of
from megads.config.schema import ModelConfig
from megads.config.settings.data import TokenizerType
from megads.errors import CheckpointError

TOKENIZER_FILES = ("tokenizer_model", "vocab_file", "merge_file")
VOCABULARY = ("embedding.weight", "head.weight", TIED_COPY)


@dataclass(frozen=True)
class Imported:
    """The checkpoint that was made, the model it is of, and lines worth showing."""

    path: Path
    model: ModelConfig
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Sharded:
    """A tensor of the source: every tensor-parallel rank's slice, the first one's file, and Megatron's name."""

    slices: tuple[Tensor, ...]
    file: Path
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a slice, the same on every rank."""
        return tuple(self.slices[0].shape)


@dataclass
class Drift:
    """How far copies differ that should be the same on every rank."""

    names: list[str] = field(default_factory=list)
    farthest: float = 0.0

    def mean(self, name: str, copies: list[Floats]) -> Floats:
        """Return the mean of ``copies``; the first as it is if they are the same."""
        if all(np.array_equal(copies[0], other) for other in copies[1:]):
            return copies[0]
        self.names.append(name)
        wide = np.stack(copies).astype(np.float64)
        self.farthest = max(self.farthest, float(np.ptp(wide, axis=0).max()))
        return wide.mean(axis=0).astype(np.float32)


def import_megatron(
    place: Path,
    folder: Path,
    stated: Mapping[str, Any] | None = None,
    *,
    version: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Imported:
    """Write the weights of a Megatron checkpoint as ``iter_0000000`` in ``folder``.

    Of files in today's zip form one tensor is in memory at a time; older ones are in memory as a whole.

    ``place`` is the checkpoint or the folder with its tracker. ``stated`` are settings of the model that the files lack
    or have wrong, ``version`` that of the order of queries, keys and values (None: the file's). ``progress`` is called
    with how many of how many parameters are done.

    Raises:
        CheckpointError: the source is incomplete, damaged, or of a model that megads does not have.
    """
    source = open_source(place)
    if version is not None:
        source.version = version
    sharded = dict(_collect(source))
    try:
        model, notes = model_of(source.args, _shape_facts(sharded), stated or {})
    except CheckpointError as error:
        raise CheckpointError(f"{source.path}: {error}") from None
    if source.version < 2 and model.num_kv_heads != model.num_heads:
        raise CheckpointError(
            f"{source.path}: has checkpoint_version {source.version:g}, which had no shared key/value heads; "
            "state --checkpoint-version or --num-heads"
        )
    tensors = parameters_of(model)
    _check(source, sharded, tensors)
    drift = Drift()
    with new_writer(folder, tensors, shape_of(model), _about(source, sharded)) as writer:
        for done, (name, cut) in enumerate(tensors.items(), start=1):
            writer.add(name, _whole(name, cut, sharded[_source_name(name)], source.version, model, drift))
            progress(done, len(tensors))
    notes += _notes(drift, sharded, model)
    return Imported(writer.final, model, tuple(f"{source.path}: {note}" for note in notes))


def _collect(source: Source) -> Iterator[tuple[str, Sharded]]:
    """Yield every tensor by our name, layers counted through all chunks."""
    before, seen = 0, set()
    for chunk in source.chunks:
        file = chunk[0][0]
        layers: set[int] = set()
        for name, kind, layer in _names(chunk):
            if layer is not None:
                layers.add(layer)
            full = kind if layer is None else f"layers.{before + layer}.{kind}"
            if full == "embedding.weight" and full in seen:
                full = TIED_COPY
            if full in seen and full != TIED_COPY:
                raise CheckpointError(f"{file}: {name} is there twice; is this a checkpoint of one model?")
            seen.add(full)
            yield full, _of_all_ranks(name, chunk)
        if layers != set(range(len(layers))):
            missing = min(set(range(max(layers) + 1)) - layers)
            raise CheckpointError(f"{file}: layer {missing} is missing between others")
        before += len(layers)


def _names(chunk: Chunk) -> Iterator[tuple[str, str, int | None]]:
    """Yield Megatron's name of every tensor, ours, and the layer in the chunk that it is of."""
    file, first = chunk[0]
    for other, tensors in chunk[1:]:
        differing = sorted(set(first) ^ set(tensors))
        if differing:
            raise CheckpointError(f"{other}: {differing[0]} is in one of it and {file}, not in both")
    for name in first:
        try:
            ours = ours_of(name)
        except CheckpointError as error:
            raise CheckpointError(f"{file}: {error}") from None
        if ours is not None:
            yield name, *ours


def _of_all_ranks(name: str, chunk: Chunk) -> Sharded:
    file, first = chunk[0]
    for other, tensors in chunk[1:]:
        if tensors[name].shape != first[name].shape:
            raise CheckpointError(
                f"{other}: {name} has shape {list(tensors[name].shape)}, in {file} it has {list(first[name].shape)}; "
                "the ranks are not of one run"
            )
    return Sharded(tuple(tensors[name] for _, tensors in chunk), file, name)


def _shape_facts(sharded: Mapping[str, Sharded]) -> ShapeFacts:
    """Return what the shapes say of the model; CheckpointError when a tensor that every model has is missing."""
    for name in ("embedding.weight", *(f"layers.0.{each}.weight" for each in ("attention.qkv", "mlp.up", "mlp.down"))):
        if name not in sharded:
            raise CheckpointError(f"holds no {name}; is the checkpoint complete?")
        if len(sharded[name].shape) != 2:
            raise CheckpointError(
                f"its {sharded[name].name} has shape {list(sharded[name].shape)}, and is not a matrix"
            )
    rows, hidden = sharded["embedding.weight"].shape
    degree = len(sharded["embedding.weight"].slices)
    return ShapeFacts(
        num_layers=1 + max(int(name.split(".")[1]) for name in sharded if name.startswith("layers.")),
        hidden_size=hidden,
        vocab_rows=rows * degree,
        positions=sharded["positions.weight"].shape[0] if "positions.weight" in sharded else None,
        qkv_rows=sharded["layers.0.attention.qkv.weight"].shape[0] * degree,
        fc1_rows=sharded["layers.0.mlp.up.weight"].shape[0] * degree,
        ffn_hidden_size=sharded["layers.0.mlp.down.weight"].shape[1] * degree,
        bias="layers.0.attention.qkv.bias" in sharded,
        norm_bias="layers.0.input_norm.bias" in sharded,
        has_head="head.weight" in sharded,
    )


def _source_name(name: str) -> str:
    return name.replace(".mlp.gate_up.", ".mlp.up.")


def _check(source: Source, sharded: Mapping[str, Sharded], tensors: Mapping[str, ShardLayout]) -> None:
    """Reject a source that lacks a parameter, has one too many, or one of another shape."""
    wanted = {_source_name(name): cut for name, cut in tensors.items()}
    missing = [name for name in wanted if name not in sharded]
    if missing:
        raise CheckpointError(f"{source.path}: holds no {missing[0]}; it is incomplete, or of another kind of model")
    for name, each in sharded.items():
        if name in (TIED_COPY, "head.weight") and name not in wanted:
            continue
        if name not in wanted:
            raise CheckpointError(f"{each.file}: {each.name} has no place in the model that the rest is of")
        cut = wanted[name].of(0, source.tensor)
        rows = [each.shape[0]] if name in VOCABULARY else list(cut.local_shape[:1])
        shape = [*rows, *cut.local_shape[1:]]
        if list(each.shape) != shape:
            raise CheckpointError(f"{each.file}: {each.name} has shape {list(each.shape)}, of this model it is {shape}")


def _about(source: Source, sharded: Mapping[str, Sharded]) -> dict[str, str | int]:
    about = {
        "source": str(source.path),
        "source_format": "megatron",
        "source_iteration": source.iteration,
        "consumed_train_samples": source.args.get("consumed_train_samples"),
        "consumed_valid_samples": source.args.get("consumed_valid_samples"),
        "torch_dtype": common_dtype(each.dtype for tensor in sharded.values() for each in tensor.slices),
        **_tokenizer(source.args),
    }
    return {key: value for key, value in about.items() if isinstance(value, str | int)}


def _tokenizer(args: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of the tokenizer where ours reads it as well: it needs no files, or they are here."""
    kind = args.get("tokenizer_type")
    if kind == "NullTokenizer":
        return {"tokenizer_type": kind}
    files = {name: args[name] for name in TOKENIZER_FILES if isinstance(args.get(name), str) and args[name]}
    if kind not in get_args(TokenizerType) or not files or not all(map(os.path.exists, files.values())):
        return {}
    return {"tokenizer_type": str(kind), **{name: os.path.abspath(path) for name, path in files.items()}}


def _whole(name: str, cut: ShardLayout, tensor: Sharded, version: float, model: ModelConfig, drift: Drift) -> Floats:
    slices: list[Floats] = [each.detach().to(torch.float32).contiguous().numpy() for each in tensor.slices]
    if cut.dim is None:
        return drift.mean(tensor.name, slices)
    if ".attention.qkv." in name:
        return qkv_to_ours(slices, version, model.num_heads, model.num_kv_heads, model.head_dim)
    if name in VOCABULARY:
        return with_rows(join_rows(slices), cut.shape[0])
    return join(slices, cut)


def _notes(drift: Drift, sharded: Mapping[str, Sharded], model: ModelConfig) -> list[str]:
    notes = []
    if drift.names:
        notes.append(
            f"{len(drift.names)} tensors that should be the same on every tensor-parallel rank differ by up to "
            f"{drift.farthest:.3g} ({drift.names[0]}{', ...' if len(drift.names) > 1 else ''}); their mean was taken"
        )
    copy = sharded.get(TIED_COPY) or (sharded.get("head.weight") if model.tied_embeddings else None)
    table = sharded["embedding.weight"]
    if copy is not None and not (copy.shape == table.shape and all(map(torch.equal, copy.slices, table.slices))):
        notes.append(f"{copy.name} of its last stage differs from the embedding that it is tied to, which was taken")
    return notes
