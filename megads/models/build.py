"""Build a model whose initial weights do not depend on the layout."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from megads.config.schema import RunConfig
from megads.config.stages import stage_steps
from megads.dist.groups import Groups
from megads.dist.rng import RngStreams
from megads.models.gpt import GPT
from megads.parallel.recompute import Recompute
from megads.parallel.tensor import Shard


def build_model(
    run: RunConfig, groups: Groups, rng: RngStreams | None = None, recompute: Recompute | None = None
) -> GPT:
    """Return this rank's part of the model, float32 on the CPU, with its initial weights.

    Args:
        run: derived settings.
        groups: which part is this rank's.
        rng: stream for dropout in split regions.
        recompute: what is computed again in the backward pass.

    Raises:
        ConfigError, DependencyError: see :class:`megads.models.gpt.GPT`.
    """
    module = GPT(
        run.model,
        groups,
        rng=rng,
        steps=stage_steps(run)[groups.pipe_rank],
        scatter_norms=run.parallel.scatter_norms,
        recompute=recompute,
    )
    initialise(module, run.train.seed, groups)
    return module


BLOCK = 64
"""Slices of a matrix that are drawn together, from a generator of their own."""


@torch.no_grad()
def initialise(module: GPT, seed: int, groups: Groups) -> None:
    """Fill every parameter from ``(seed, its name)``, so that every layout starts from the same numbers.

    A rank draws little more than its own part, float32 on the CPU, one parameter at a time.
    Norms are 1, biases 0, matrices normal with ``init_std``, and the projections back into
    the residual stream narrower by ``sqrt(2 num_layers)`` (GPT-2's rule).
    """
    for name, weight in module.named_parameters():
        if weight.ndim == 1:
            weight.fill_(1.0 if name.endswith("norm.weight") else 0.0)
            continue
        shard: Shard = weight.shard or Shard(0, (weight.shape[0],))  # type: ignore[attr-defined]
        rank, degree = (groups.tensor_rank, groups.tensor_size) if weight.shard is not None else (0, 1)  # type: ignore[attr-defined]
        shape = list(weight.shape)
        shape[shard.dim] = sum(shard.parts)
        first, pieces = 0, []
        for part, size in zip(shard.parts, shard.local_parts(degree), strict=True):
            mine = range(first + rank * size, first + (rank + 1) * size)
            pieces.append(draw(name, shape, std_of(name, module), seed, dim=shard.dim, only=mine))
            first += part
        weight.copy_(torch.cat(pieces, dim=shard.dim))


def std_of(name: str, module: GPT) -> float:
    """Return the standard deviation of a matrix's initial weights."""
    model = module.config
    narrow = name.endswith(("attention.out.weight", "mlp.down.weight"))
    return model.init_std / math.sqrt(2 * model.num_layers) if narrow else model.init_std


def draw(name: str, shape: list[int], std: float, seed: int, *, dim: int = 0, only: range | None = None) -> Tensor:
    """Return the initial tensor of a parameter, or the slices ``only`` of it along ``dim``.

    The slices along ``dim``, which is the dimension that layouts cut, come in blocks of
    :data:`BLOCK`; block ``b`` is normal numbers from ``(seed, name, b)`` alone.
    """
    wanted = range(shape[dim]) if only is None else only
    width = math.prod(shape) // shape[dim]
    pieces = []
    for block in range(wanted.start // BLOCK, -(-wanted.stop // BLOCK)):
        first = block * BLOCK
        digest = hashlib.blake2b(f"{seed}/{name}/{block}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
        numbers = torch.empty(min(BLOCK, shape[dim] - first), width).normal_(0.0, std, generator=generator)
        pieces.append(numbers[max(wanted.start - first, 0) : wanted.stop - first])
    rest = shape[:dim] + shape[dim + 1 :]
    return torch.cat(pieces).view(len(wanted), *rest).movedim(0, dim)
