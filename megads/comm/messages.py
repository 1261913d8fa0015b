"""Plain values that ranks exchange, as JSON.

``torch.distributed`` has collectives of objects, which are pickles: whoever can put one in the
place of a rank's has its receivers run what it says. Here nothing is run, and what is no JSON
of the expected form is an error. Records (dataclasses) and errors of megads arrive as what they are.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from megads.errors import MegadsError


def broadcast_value(value: Any, src: int = 0) -> Any:
    """Return rank ``src``'s ``value`` on every rank. Collective.

    A value is a number, a text, bytes, a path, a range, an array of numbers, a record or an error of megads, or a list,
    a tuple or a dictionary of values.

    Raises:
        TypeError: something else.
    """
    if _is_alone():
        return value
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
    if _is_alone():
        return [value]
    padded = _padded(value)
    found = padded.new_empty(dist.get_world_size() * padded.numel())
    dist.all_gather_into_tensor(found, padded)
    return [_padded_value(row) for row in found.view(-1, padded.numel())]


def first_text(text: str) -> str:
    """Return the text of the lowest rank that has one, on every rank; empty: none has. Collective.

    What a rank sends and holds does not depend on the number of ranks, as that of :func:`all_gather_values` does.
    """
    if _is_alone():
        return text
    size = dist.get_world_size()
    first = torch.tensor([dist.get_rank() if text else size], device=_device())
    dist.all_reduce(first, op=dist.ReduceOp.MIN)
    return str(broadcast_value(text, int(first))) if int(first) < size else ""


def gather_values(value: Any, dst: int = 0, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Return every rank's ``value``, by rank, on rank ``dst``; elsewhere an empty list. Collective over ``group``.

    ``dst`` is its rank in the world. See :func:`broadcast_value`.
    """
    if _is_alone():
        return [value]
    padded = _padded(value, group)
    if dist.get_rank() != dst:
        dist.gather(padded, None, dst, group=group)
        return []
    found = [torch.empty_like(padded) for _ in range(dist.get_world_size(group))]
    dist.gather(padded, found, dst, group=group)
    return [_padded_value(row) for row in found]


def _padded(value: Any, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Return the length and the text of ``value``, padded to that of the rank with the longest. Collective."""
    device = _device()
    text = _text(value, device)
    longest = torch.tensor([text.numel()], device=device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=group)
    length = torch.tensor([text.numel()]).view(torch.uint8).to(device)
    return torch.nn.functional.pad(torch.cat((length, text)), (0, int(longest) - text.numel()))


def _padded_value(row: torch.Tensor) -> Any:
    length = int(row[:8].cpu().clone().view(torch.int64))
    return _value(row[8 : 8 + length])


def _is_alone() -> bool:
    """Return whether there is nobody to exchange with: a rank by itself needs no ``torch.distributed``."""
    return not dist.is_initialized() or dist.get_world_size() == 1


def _device() -> torch.device:
    """Return where the backend of the world takes tensors from."""
    world = dist.group.WORLD
    bound = world.bound_device_id if world is not None else None
    return bound if bound is not None else torch.device("cpu")


def _text(value: Any, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(encode(value).encode()), dtype=torch.uint8).to(device)


def _value(text: torch.Tensor) -> Any:
    return decode(text.cpu().numpy().tobytes())


def encode(value: Any) -> str:
    """Return ``value`` as JSON: what JSON has no form for is a dictionary of one key, its kind."""
    return json.dumps(_plain(value), separators=(",", ":"))


def decode(text: str | bytes) -> Any:
    """Return what :func:`encode` was given.

    Raises:
        ValueError: it is something else, or names what is no record and no error of a loaded module of megads.
    """
    return _built(json.loads(text))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_plain(each) for each in value]
    for kind, (name, form) in _FORMS.items():
        if isinstance(value, kind):
            return {name: form(value)}
    if isinstance(value, MegadsError):
        return {_name(type(value)): str(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value) if each.init}
        return {_name(type(value)): given}
    try:
        return operator.index(value)  # an integer of numpy
    except TypeError:
        raise TypeError(f"{type(value).__name__} is not a message type") from None


_FORMS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    tuple: ("tuple", lambda value: [_plain(each) for each in value]),
    dict: ("dict", lambda value: [[_plain(key), _plain(each)] for key, each in value.items()]),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode()),
    Path: ("path", str),
    range: ("range", lambda value: [value.start, value.stop, value.step]),
    np.ndarray: ("array", lambda value: [value.dtype.str, list(value.shape), _plain(value.tobytes())]),
}
"""What JSON has no form for: its kind there, and how it is written."""


def _built(value: Any) -> Any:
    if isinstance(value, list):
        return [_built(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(_built(each) for each in content)
    if kind == "dict":
        return {_built(key): _built(each) for key, each in content}
    if kind == "bytes":
        return base64.b64decode(content)
    if kind in ("path", "range"):
        return Path(content) if kind == "path" else range(*content)
    if kind == "array":
        dtype, shape, data = content
        return np.frombuffer(_built(data), np.dtype(dtype)).reshape(shape).copy()
    found = _class(kind)
    if issubclass(found, MegadsError):
        return found(content)
    return found(**{name: _built(each) for name, each in content.items()})


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str) -> type:
    module, _, kind = name.partition(":")
    found = getattr(sys.modules.get(module), kind, None) if module.split(".")[0] == "megads" else None
    if not isinstance(found, type) or not (dataclasses.is_dataclass(found) or issubclass(found, MegadsError)):
        raise ValueError(f"{name} is not a message record")
    return found
