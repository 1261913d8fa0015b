"""Checksums of tensors on their device, and whether all ranks of a group have the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor

LANES = 256
"""Elements that are neighbours count differently, so that two changes do not make up for each other."""

WORD = 8
"""Bytes that are added as one number."""


@torch.no_grad()
def checksum(tensor: Tensor) -> Tensor:
    """Return the checksum of a tensor's bits, [] int64 on its device; one bit that differs changes it.

    It reads the tensor once and does not copy it.
    """
    flat = tensor.detach().reshape(-1)
    size = flat.element_size()
    if flat.storage_offset() * size % WORD:
        flat = flat.clone()
    # Words of 8 bytes are added several times as fast as what has to be widened first.
    whole = flat.numel() * size // (WORD * LANES) * (WORD * LANES) // size
    lanes = flat[:whole].view(torch.int64).view(-1, LANES).sum(dim=0)
    rest = flat[whole:].view(torch.uint8).long()
    factors = _multipliers(lanes.device)
    return (lanes * factors[:LANES]).sum() + (rest * factors[: len(rest)]).sum()


@cache
def _multipliers(device: torch.device) -> Tensor:
    """Return an odd number for every byte of the lanes: modulo 2^64 none of them hides a bit."""
    drawn = torch.randint(-(2**62), 2**62, (LANES * WORD,), generator=torch.Generator().manual_seed(1))
    return (drawn * 2 + 1).to(device)


def checksums(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return the checksum of every tensor, ``[n]`` int64 on ``device``."""
    if not tensors:
        return torch.zeros(0, dtype=torch.int64, device=device)
    return torch.stack([checksum(each).to(device) for each in tensors])


def differing(mine: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return which of the numbers ``[n]`` int64 are not the same on all ranks of ``group``, [n] bool. Collective."""
    both = torch.cat([mine, ~mine])
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group)
    most, least = both.chunk(2)
    return most != ~least
