"""Build a model whose initial weights do not depend on the layout."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from megads.config.schema import RunConfig
from megads.dist.groups import Groups
from megads.dist.rng import RngStreams
from megads.models.gpt import GPT
from megads.parallel.tensor import Shard, take_shard


def build_model(run: RunConfig, groups: Groups, rng: RngStreams | None = None) -> GPT:
    """Return this rank's part of the model, float32 on the CPU, with its initial weights.

    Args:
        run: derived settings.
        groups: which part is this rank's.
        rng: stream for dropout in split regions.

    Raises:
        ConfigError, DependencyError: see :class:`megads.models.gpt.GPT`.
    """
    module = GPT(run.model, groups, rng=rng)
    initialise(module, run.train.seed, groups)
    return module


@torch.no_grad()
def initialise(module: GPT, seed: int, groups: Groups) -> None:
    """Fill every parameter from ``(seed, its name)``.

    The full float32 tensor is drawn on the CPU and then cut, one parameter at a time, so
    that every layout starts from the same numbers. Norms are 1, biases 0, matrices normal
    with ``init_std``, and the projections back into the residual stream narrower by
    ``sqrt(2 num_layers)`` (GPT-2's rule).
    """
    for name, weight in module.named_parameters():
        shard: Shard | None = weight.shard  # type: ignore[attr-defined]
        if weight.ndim == 1:
            weight.fill_(1.0 if name.endswith("norm.weight") else 0.0)
            continue
        shape = list(weight.shape)
        if shard is not None:
            shape[shard.dim] = sum(shard.parts)
        full = draw(name, shape, std_of(name, module), seed)
        weight.copy_(take_shard(full, shard, groups.tensor_rank, groups.tensor_size))


def std_of(name: str, module: GPT) -> float:
    """Return the standard deviation of a matrix's initial weights."""
    model = module.config
    narrow = name.endswith(("attention.out.weight", "mlp.down.weight"))
    return model.init_std / math.sqrt(2 * model.num_layers) if narrow else model.init_std


def draw(name: str, shape: list[int], std: float, seed: int) -> Tensor:
    """Return the full initial tensor of a parameter: normal numbers from ``(seed, name)`` alone."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.empty(shape).normal_(0.0, std, generator=generator)
