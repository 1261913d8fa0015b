"""Build a model whose initial weights do not depend on the layout."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from megads.comm.groups import Groups
from megads.config.schema import ModelConfig, RunConfig
from megads.config.stages import stage_steps
from megads.families.encoder_decoder import has_decoder
from megads.families.lora import A
from megads.families.spec import Parameter
from megads.families.table import FAMILIES
from megads.models.bert import BERT
from megads.models.classifier import DecoderClassifier, EncoderClassifier
from megads.models.gpt import GPT
from megads.models.retro import Retro
from megads.models.t5 import T5
from megads.parallel.overlap import SYMMETRIC_MEMORY
from megads.parallel.recompute import Recompute
from megads.parallel.tensor import Partition, Shard

FindPartition = Callable[[nn.Parameter], Partition | None]
"""Returns what this rank holds of a parameter; None: it is not partitioned."""


def _not_partitioned(weight: nn.Parameter) -> None:
    return None


def model_class(model: ModelConfig) -> type[GPT]:
    """Return the module of a derived ``model``."""
    is_encoder = FAMILIES[model.family].samples == "bert"
    if model.num_classes:
        return EncoderClassifier if is_encoder else DecoderClassifier
    if has_decoder(model):
        return T5
    if FAMILIES[model.family].samples == "retro":
        return Retro
    return BERT if is_encoder else GPT


def build_model(
    run: RunConfig,
    groups: Groups,
    recompute: Recompute | None = None,
    find_partition: FindPartition = _not_partitioned,
    arrange: Callable[[GPT], None] | None = None,
    steps: range | None = None,
) -> GPT:
    """Return this rank's part of the model with its initial weights.

    They are float32 on the CPU, or what :func:`megads.parallel.tensor.placed` says. ``arrange`` gives hollow
    parameters their memory before they are filled.

    Args:
        steps: of the part, see ``megads.families.spec``; None: those of this rank's pipeline stage.

    Raises:
        ConfigError, DependencyError: see :class:`megads.models.gpt.GPT`.
    """
    symmetric = run.parallel.tp_overlap_with == "symmetric_memory"
    module = model_class(run.model)(
        run.model,
        groups,
        steps=stage_steps(run)[groups.pipe_rank] if steps is None else steps,
        scatter_norms=run.parallel.scatter_norms,
        recompute=recompute,
        tp_overlap=SYMMETRIC_MEMORY if symmetric else run.parallel.tp_overlap,
    )
    freeze(module)
    if arrange is not None:
        arrange(module)
    initialise(module, run.train.seed_of_weights, groups, find_partition)
    return module


def freeze(module: GPT) -> None:
    """Freeze every parameter that is not trained: of a model with adapters all but these."""
    for name, weight in module.named_parameters():
        if not module.spec.is_trained(module.spec.of(name)):
            weight.requires_grad_(False)


AT_ONCE = 1 << 24
"""Elements of a matrix that the host draws, in float32, before they go to their place."""

TILE = 64
"""Rows and columns of a matrix that are drawn together, from a generator of their own."""


@torch.no_grad()
def initialise(module: GPT, seed: int, groups: Groups, find_partition: FindPartition = _not_partitioned) -> None:
    """Fill every parameter from ``(seed, its name)``, so that every layout starts from the same values.

    A rank draws little more than its own part, one parameter at a time: its slice over the
    tensor axis, and of a partitioned parameter the rows that its partition touches. Norms are 1,
    biases 0, matrices normal with ``init_std``, and the projections back into the residual stream
    narrower by ``sqrt(2 num_layers)`` (GPT-2's rule). Drawn in float32 on the CPU, at most :data:`AT_ONCE`
    elements before they are rounded to the parameter's type and copied to its device.
    """
    for name, weight in module.named_parameters():
        if partition := find_partition(weight):
            _fill_partition(partition, weight, name, module, seed, groups)
        else:
            for rows in _blocks(weight.shape):
                weight[rows.start : rows.stop].copy_(_rows(weight, weight.shape, name, module, seed, groups, rows))


def _blocks(shape: Sequence[int]) -> Iterator[range]:
    """Yield the rows of a parameter in blocks of whole tiles, of about :data:`AT_ONCE` elements."""
    step = max(TILE, AT_ONCE // max(1, math.prod(shape[1:])) // TILE * TILE)
    for first in range(0, shape[0], step):
        yield range(first, min(first + step, shape[0]))


def _fill_partition(
    partition: Partition, weight: nn.Parameter, name: str, module: GPT, seed: int, groups: Groups
) -> None:
    shape, mine, first = partition.shape, partition.values, partition.first
    width = math.prod(shape[1:])
    last = max(first, min(first + mine.numel(), math.prod(shape)))
    mine.zero_()
    if last > first:
        rows = range(first // width, -(-last // width))
        drawn = _rows(weight, shape, name, module, seed, groups, rows).flatten()
        mine[: last - first].copy_(drawn[first - rows.start * width : last - rows.start * width])


def _rows(weight: Any, shape: Sequence[int], name: str, module: GPT, seed: int, groups: Groups, rows: range) -> Tensor:
    """Return the initial values of some rows of this tensor-parallel rank's slice, which has the given shape."""
    described = module.spec.of(name)
    if len(shape) == 1:
        return torch.full((len(rows),), 1.0 if described.kind == "norm" else 0.0)
    shard: Shard | None = weight.shard
    std = std_of(described, module.config)
    if shard is None:
        return draw(name, seed, std, rows, range(shape[1]))
    pieces = []
    for mine, whole in _spans(shard, groups.tensor_rank, groups.tensor_size):
        if shard.dim == 1:
            pieces.append(draw(name, seed, std, rows, whole))
            continue
        wanted = range(max(rows.start, mine.start), min(rows.stop, mine.stop))
        if wanted:
            moved = whole.start - mine.start
            pieces.append(draw(name, seed, std, range(wanted.start + moved, wanted.stop + moved), range(shape[1])))
    return torch.cat(pieces, dim=shard.dim)


def _spans(shard: Shard, rank: int, degree: int) -> Iterator[tuple[range, range]]:
    """Yield of every fused part where it is in this rank's slice, and where in the whole parameter."""
    local = whole = 0
    for part, size in zip(shard.parts, shard.local_parts(degree), strict=True):
        first = whole + rank * size
        yield range(local, local + size), range(first, first + size)
        local, whole = local + size, whole + part


def std_of(matrix: Parameter, model: ModelConfig) -> float:
    """Return the standard deviation of a matrix's initial weights.

    Of an adapter's A it is that of peft's, which are even between the square roots of 1 over its columns; B is 0.
    """
    if matrix.kind == "adapter":
        return 1 / math.sqrt(3 * matrix.shape[1]) if matrix.name.endswith(A) else 0.0
    return model.init_std / math.sqrt(2 * model.num_layers) if matrix.into_residual else model.init_std


def draw(name: str, seed: int, std: float, rows: range, columns: range) -> Tensor:
    """Return a rectangle ``[rows, columns]`` of the parameter ``name``, float32.

    A matrix of any size consists of tiles of :data:`TILE` x :data:`TILE`; tile (i, j) is
    normal numbers from ``(seed, name, i, j)`` alone. The cost is that of the tiles touched:
    on one core 7.4 ms per million elements (measured).
    """
    made = torch.empty(len(rows), len(columns))
    tile, generator = torch.empty(TILE, TILE), torch.Generator()
    for i in range(rows.start // TILE, -(-rows.stop // TILE)):
        top, bottom = max(rows.start, i * TILE), min(rows.stop, (i + 1) * TILE)
        for j in range(columns.start // TILE, -(-columns.stop // TILE)):
            left, right = max(columns.start, j * TILE), min(columns.stop, (j + 1) * TILE)
            digest = hashlib.blake2b(f"{seed}/{name}/{i}/{j}".encode(), digest_size=8).digest()
            generator.manual_seed(int.from_bytes(digest, "little") >> 1)
            tile.normal_(0.0, std, generator=generator)
            made[top - rows.start : bottom - rows.start, left - columns.start : right - columns.start] = tile[
                top - i * TILE : bottom - i * TILE, left - j * TILE : right - j * TILE
            ]
    return made
