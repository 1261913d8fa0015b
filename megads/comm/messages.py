"""Plain values that ranks tell each other, as JSON.

``torch.distributed`` has collectives of objects, which are pickles: whoever can put one in the
place of a rank's has its receivers run what it says. Here nothing is run, and what is no JSON
of the expected form is an error.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist


def broadcast_value(value: Any, src: int = 0) -> Any:
    """Return rank ``src``'s ``value`` on every rank: numbers, texts, lists and dictionaries of them. Collective.

    What comes back is what JSON makes of it: tuples are lists.
    """
    device = _device()
    is_mine = dist.get_rank() == src
    text = _text(value, device) if is_mine else torch.empty(0, dtype=torch.uint8, device=device)
    length = torch.tensor([text.numel()], device=device)
    dist.broadcast(length, src)
    if not is_mine:
        text = torch.empty(int(length), dtype=torch.uint8, device=device)
    dist.broadcast(text, src)
    return _value(text)


def all_gather_values(value: Any) -> list[Any]:
    """Return every rank's ``value``, by rank, on every rank. Collective; see :func:`broadcast_value`."""
    padded, lengths = _padded(value)
    found = padded.new_empty(len(lengths) * padded.numel())
    dist.all_gather_into_tensor(found, padded)
    return [_value(row[:length]) for row, length in zip(found.view(len(lengths), -1), lengths, strict=True)]


def gather_values(value: Any, dst: int = 0) -> list[Any]:
    """Return every rank's ``value``, by rank, on rank ``dst``; elsewhere an empty list. Collective."""
    padded, lengths = _padded(value)
    if dist.get_rank() != dst:
        dist.gather(padded, None, dst)
        return []
    found = [torch.empty_like(padded) for _ in lengths]
    dist.gather(padded, found, dst)
    return [_value(row[:length]) for row, length in zip(found, lengths, strict=True)]


def _padded(value: Any) -> tuple[torch.Tensor, list[int]]:
    """Return the text of ``value``, as long as the longest of all ranks, and the lengths of all. Collective."""
    device = _device()
    text = _text(value, device)
    lengths = torch.empty(dist.get_world_size(), dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(lengths, torch.tensor([text.numel()], device=device))
    longest = int(lengths.max())
    return torch.nn.functional.pad(text, (0, longest - text.numel())), [int(length) for length in lengths.tolist()]


def _device() -> torch.device:
    """Return where the backend of the world takes tensors from."""
    world = dist.group.WORLD
    bound = world.bound_device_id if world is not None else None
    return bound if bound is not None else torch.device("cpu")


def _text(value: Any, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(device)


def _value(text: torch.Tensor) -> Any:
    return json.loads(text.cpu().numpy().tobytes())
