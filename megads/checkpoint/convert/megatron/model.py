"""The model in Megatron's files, read when it is needed: any slice of a parameter of ours, from slices of theirs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from megads.checkpoint.convert.megatron.architecture import ShapeFacts, model_of
from megads.checkpoint.convert.megatron.merge import Floats, cut_out, kv_to_ours, qkv_to_ours
from megads.checkpoint.convert.megatron.names import ENCODER_NORM, TIED_COPY, Kind, Place, kind_of, ours_of
from megads.checkpoint.convert.megatron.read_files import Chunk, Source, open_source
from megads.checkpoint.convert.torch_files.read import TensorSums
from megads.checkpoint.convert.writer import common_dtype
from megads.checkpoint.format.reader import VOCABULARY as _PADDED
from megads.checkpoint.format.shard_layout import ShardLayout, boxes, meet, parameters_of
from megads.config.schema import ModelConfig
from megads.config.settings.data import TokenizerType
from megads.errors import CheckpointError

TOKENIZER_FILES = ("tokenizer_model", "vocab_file", "merge_file")
_COPIED = ("embedding.weight", "positions.weight", "output_bias.bias", "head.weight")
"""What T5's first stage of the decoder, and core's T5 under a second name, hold again."""

_ROWS = 1024
"""Rows of queries, keys and values that are put in order together."""


@dataclass(frozen=True)
class Sharded:
    """A tensor of the source: every tensor-parallel rank's slice and file, and Megatron's name."""

    slices: tuple[Tensor, ...]
    files: tuple[Path, ...]
    name: str

    @property
    def file(self) -> Path:
        """Of the first slice."""
        return self.files[0]

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


class MegatronModel:
    """A model in Megatron's files; of today's zip form a tensor is in memory while it is read.

    Attributes:
        source: the files.
        model: its settings.
        about: what else the files say: where they lie, iteration, type of the weights, tokenizer.

    Args:
        place: the checkpoint or the folder with its tracker.
        stated: settings of the model that the files lack or have wrong.
        version: that of the order of queries, keys and values; None: the file's.
        step: the iteration to take; None: the newest by the tracker.
        are_tensors_verified: whether checksums of all tensors are compared at once, or of each when it is read.

    Raises:
        CheckpointError: the source is incomplete, damaged, or of a model that megads does not have.
    """

    def __init__(
        self,
        place: Path,
        stated: Mapping[str, Any] | None = None,
        *,
        version: float | None = None,
        step: int | None = None,
        are_tensors_verified: bool = True,
    ):
        self.source = source = open_source(place, step, are_tensors_verified=are_tensors_verified)
        if version is not None:
            source.version = version
        self._found = found = _collect(source)
        self._sharded = found.tensors
        try:
            self.model, self._notes = model_of(source.args, _shape_facts(found), stated or {})
        except CheckpointError as error:
            raise CheckpointError(f"{source.path}: {error}") from None
        if source.version < 2 and self.model.num_kv_heads != self.model.num_heads:
            raise CheckpointError(
                f"{source.path}: has checkpoint_version {source.version:g}, which had no shared key/value heads; "
                "state --checkpoint-version or --num-heads"
            )
        _check(source, self._sharded, parameters_of(self.model))
        self.about = _about(source, self._sharded)
        self._drift = Drift()
        self._sums = None if are_tensors_verified else {file: TensorSums(file) for file in source.files}

    def read(self, name: str, cut: ShardLayout) -> Floats:
        """Return the slice ``cut`` of one of our parameters; zeros pad the vocabulary to its rows.

        Of copies that should be the same on every tensor-parallel rank it is the mean.

        Raises:
            CheckpointError: what is read of the files is damaged.
        """
        tensor = self._sharded[_source_name(name)]
        if cut.dim is None:
            return self._drift.mean(
                tensor.name, [self._of(tensor, rank).to(torch.float32).numpy() for rank in range(self.source.tensor)]
            )
        out = np.zeros(cut.local_shape, np.float32)
        if ".attention.qkv." in name or ".cross_attention.kv." in name:
            self._fill_heads(out, tensor, cut)
            return out
        rows = tensor.shape[0] * self.source.tensor
        theirs = ShardLayout((rows, *cut.shape[1:]), 0, (rows,)) if name in _PADDED else cut
        self._fill(out.reshape(len(out), -1), tensor, theirs, cut)
        return out

    def notes(self) -> list[str]:
        """Return lines worth showing: what was assumed, and what is strange in that which was read."""
        found = (*self._notes, *_notes(self._drift, self._found, self.model))
        return [f"{self.source.path}: {note}" for note in found]

    def _of(self, tensor: Sharded, rank: int) -> Tensor:
        """Return the slice of a tensor-parallel rank of the source, verified."""
        found = tensor.slices[rank].detach()
        if self._sums is not None:
            self._sums[tensor.files[rank]].verify(tensor.name, found)
        return found.contiguous()

    def _fill(self, out: Floats, tensor: Sharded, theirs: ShardLayout, cut: ShardLayout) -> None:
        """Copy to the matrix ``out``, which is the slice ``cut``, what the ranks of the source have of it."""
        own = boxes(cut, 0, cut.count)
        for rank in range(self.source.tensor):
            part = theirs.of(rank, self.source.tensor)
            hits = [
                (one, other, hit)
                for one in boxes(part, 0, part.count)
                for other in own
                if (hit := meet(one, other)) is not None
            ]
            for one, other, (top, bottom, left, right) in hits:
                row, column = divmod(one.at(top, left), one.stride)
                to, at = divmod(other.at(top, left), other.stride)
                high, wide = bottom - top, right - left
                read = self._of(tensor, rank).reshape(part.local_shape[0], -1)[row : row + high, column : column + wide]
                torch.from_numpy(out[to : to + high, at : at + wide]).copy_(read)

    def _fill_heads(self, out: Floats, tensor: Sharded, cut: ShardLayout) -> None:
        """Copy to ``out``, rows of (queries,) keys and values, each row from where the source has it."""
        model, degree, version = self.model, self.source.tensor, self.source.version
        rows = np.split(np.arange(cut.shape[0]), degree)
        if len(cut.parts) == 2:
            order = kv_to_ours(rows, version, model.num_heads, model.head_dim)
        else:
            order = qkv_to_ours(rows, version, model.num_heads, model.num_kv_heads, model.head_dim)
        wanted = cut_out(order, cut, cut.rank, cut.degree)
        ranks, places = np.divmod(wanted, cut.shape[0] // degree)
        into = torch.from_numpy(out)
        for rank in np.unique(ranks):
            found = np.flatnonzero(ranks == rank)
            for part in np.array_split(found, -(-len(found) // _ROWS)):
                read = self._of(tensor, int(rank))[torch.from_numpy(places[part])]
                into[torch.from_numpy(part)] = read.to(torch.float32)


@dataclass
class Collected:
    """The tensors of all stages."""

    kind: Kind
    tensors: dict[str, Sharded] = field(default_factory=dict)  # by our names, layers counted through all chunks
    copies: list[tuple[str, Sharded]] = field(default_factory=list)  # of some of them, with the names of these
    num_layers: list[int] = field(default_factory=lambda: [0, 0])  # of the stacks
    num_chunks: int = 1

    def add(self, name: str, tensor: Sharded) -> None:
        """Add a tensor by our name; CheckpointError when it is there twice and no copy."""
        if name in self.tensors and (name == "embedding.weight" or (self.kind == "t5" and name in _COPIED)):
            self.copies.append((name, tensor))
        elif name == TIED_COPY:
            self.copies.append(("embedding.weight", tensor))
        elif name in self.tensors:
            raise CheckpointError(f"{tensor.file}: {tensor.name} is there twice; is this a checkpoint of one model?")
        else:
            self.tensors[name] = tensor


def _collect(source: Source) -> Collected:
    """Return every tensor by our name."""
    kind = kind_of(name for chunk in source.chunks for name in chunk[0][1])
    found = Collected(kind, num_chunks=len(source.chunks))
    if kind == "t5" and len(source.chunks) > 1 and any(each.startswith("encoder.") for each in source.chunks[0][0][1]):
        raise CheckpointError(
            f"{source.path}: is of Megatron-core's T5 in {len(source.chunks)} pipeline stages, whose stages hold heads "
            "that are not used; save it again with one"
        )
    later: list[tuple[Place, int, Sharded]] = []  # of T5's decoder, counted on from the encoder's layers
    for chunk in source.chunks:
        layers: tuple[set[int], set[int]] = (set(), set())
        for name, place in _names(chunk, kind):
            tensor = _of_all_ranks(name, chunk)
            if place.layer is not None:
                layers[place.stack].add(place.layer)
                later.append((place, found.num_layers[place.stack] + place.layer, tensor))
            elif place.name.startswith(f"{ENCODER_NORM}."):
                later.append((place, -1, tensor))
            else:
                found.add(place.name, tensor)
        for stack, numbers in enumerate(layers):
            if numbers != set(range(len(numbers))):
                missing = min(set(range(max(numbers) + 1)) - numbers)
                raise CheckpointError(f"{chunk[0][0]}: layer {missing} is missing between others")
            found.num_layers[stack] += len(numbers)
    for place, number, tensor in later:
        index = number + found.num_layers[0] if place.stack or number < 0 else number
        found.add(f"layers.{index}.{place.name}", tensor)
    return found


def _names(chunk: Chunk, kind: Kind) -> Iterator[tuple[str, Place]]:
    """Yield Megatron's name of every tensor, and where it is among ours."""
    file, first = chunk[0]
    for other, tensors in chunk[1:]:
        differing = sorted(set(first) ^ set(tensors))
        if differing:
            raise CheckpointError(f"{other}: {differing[0]} is in one of it and {file}, not in both")
    for name in first:
        try:
            place = ours_of(name, kind)
        except CheckpointError as error:
            raise CheckpointError(f"{file}: {error}") from None
        if place is not None:
            yield name, place


def _of_all_ranks(name: str, chunk: Chunk) -> Sharded:
    file, first = chunk[0]
    for other, tensors in chunk[1:]:
        if tensors[name].shape != first[name].shape:
            raise CheckpointError(
                f"{other}: {name} has shape {list(tensors[name].shape)}, in {file} it has {list(first[name].shape)}; "
                "the ranks are not of one run"
            )
    return Sharded(tuple(tensors[name] for _, tensors in chunk), tuple(file for file, _ in chunk), name)


def _shape_facts(found: Collected) -> ShapeFacts:
    """Return what the shapes say of the model; CheckpointError when a tensor that every model has is missing."""
    sharded = found.tensors
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
        num_layers=found.num_layers[0],
        decoder_layers=found.num_layers[1],
        hidden_size=hidden,
        vocab_rows=rows * degree,
        positions=sharded["positions.weight"].shape[0] if "positions.weight" in sharded else None,
        qkv_rows=sharded["layers.0.attention.qkv.weight"].shape[0] * degree,
        fc1_rows=sharded["layers.0.mlp.up.weight"].shape[0] * degree,
        ffn_hidden_size=sharded["layers.0.mlp.down.weight"].shape[1] * degree,
        bias="layers.0.attention.qkv.bias" in sharded,
        norm_bias="layers.0.input_norm.bias" in sharded,
        has_head="head.weight" in sharded,
        is_encoder=found.kind == "bert",
        is_single=found.num_chunks == 1,
        qk_norm="layers.0.attention.q_norm.weight" in sharded,
        token_types=sharded["token_types.weight"].shape[0] if "token_types.weight" in sharded else 0,
        binary_head="binary_head.weight" in sharded,
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
        if name == "head.weight" and name not in wanted:
            continue
        if name not in wanted:
            raise CheckpointError(f"{each.file}: {each.name} has no place in the model that the rest is of")
        cut = wanted[name].of(0, source.tensor)
        rows = [each.shape[0]] if name in _PADDED else list(cut.local_shape[:1])
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


def _notes(drift: Drift, found: Collected, model: ModelConfig) -> list[str]:
    notes = []
    if drift.names:
        notes.append(
            f"{len(drift.names)} tensors that should be the same on every tensor-parallel rank differ by up to "
            f"{drift.farthest:.3g} ({drift.names[0]}{', ...' if len(drift.names) > 1 else ''}); their mean was taken"
        )
    copies = list(found.copies)
    if model.tied_embeddings and "head.weight" in found.tensors:
        copies.append(("embedding.weight", found.tensors["head.weight"]))
    for name, copy in copies:
        own = found.tensors[name]
        if not (copy.shape == own.shape and all(map(torch.equal, copy.slices, own.slices))):
            what = "the embedding that it is tied to" if name == "embedding.weight" else f"{own.name} of another one"
            notes.append(f"{copy.name} of its last stage differs from {what}, which was taken")
    return notes
