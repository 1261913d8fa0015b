"""Micro-batches from the host to the device: one copy of each, which the host does not wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from megads.device.host_copies import upload
from megads.engine.micro_batches import MicroBatch


def to_device(parts: Sequence[MicroBatch], device: torch.device) -> list[MicroBatch]:
    """Return ``parts`` with their tokens, labels and documents on ``device``.

    What a micro-batch has on the host is sent in one piece, as int64.
    """
    return [_sent(part, device) for part in parts]


def _sent(part: MicroBatch, device: torch.device) -> MicroBatch:
    here = [tensor for tensor in _tensors(part) if tensor.device.type == "cpu"]
    if device.type == "cpu" or not here:
        return part
    assert all(not tensor.is_floating_point() for tensor in here)
    flat = upload(torch.cat([tensor.reshape(-1).to(torch.int64) for tensor in here]), device)
    pieces = iter(flat.split([tensor.numel() for tensor in here]))

    def there(tensor: Tensor) -> Tensor:
        return next(pieces).view(tensor.shape).to(tensor.dtype) if tensor.device.type == "cpu" else tensor

    sent: MicroBatch = _mapped(part, there)
    return sent


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for each in fields(value):
            if each.init:  # what follows from others is where they are
                yield from _tensors(getattr(value, each.name))


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return ``value`` with every tensor in it changed, in the order of :func:`_tensors`."""
    if isinstance(value, Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        now = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        made = {name: _mapped(old, change) for name, old in now.items()}
        return replace(value, **{name: new for name, new in made.items() if new is not now[name]})
    return value
