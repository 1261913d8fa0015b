"""Models for comparisons."""

from __future__ import annotations

import zlib

import torch

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.schema import ModelConfig
from megads.models.build import initialise, model_class
from megads.models.gpt import GPT
from megads.parallel.tensor import Shard, take_shard

ONE = Groups(Grid(), 0)


def build(model: ModelConfig, groups: Groups = ONE, **more: object) -> GPT:
    """Return the float64 model; norms and biases are no ones and zeros, which would hide mistakes."""
    module = model_class(model)(model, groups, **more)
    initialise(module, 7, groups)
    module.double()
    for name, weight in module.named_parameters():
        if weight.ndim == 1:
            shard: Shard | None = weight.shard
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            noise = 0.3 * torch.randn(sum(shard.parts) if shard else len(weight), generator=generator)
            weight.data += take_shard(noise, shard, groups.tensor_rank, groups.tensor_size)
    return module
