"""Generator states as plain tensors, which is all a safetensors file can hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from megads.errors import CheckpointError

HOST = "python_numpy"


def pack(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the state of ``megads.comm.rng.RngStreams`` as named uint8 tensors."""
    text = json.dumps({"python": state["python"], "numpy": state["numpy"]})
    packed = {HOST: torch.tensor(list(text.encode()), dtype=torch.uint8)}
    packed |= {f"default.{part}": tensor for part, tensor in state["default"].items()}
    for stream, parts in state["streams"].items():
        packed |= {f"stream.{stream}.{part}": tensor for part, tensor in parts.items()}
    return packed


def unpack(packed: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return what :func:`pack` was given.

    Raises:
        CheckpointError: the checkpoint holds no generator states.
    """
    if HOST not in packed:
        raise CheckpointError("the checkpoint holds no random-number states; it can not be resumed exactly")
    state: dict[str, Any] = json.loads(bytes(packed[HOST].tolist()))
    state["default"], state["streams"] = {}, {}
    for name, tensor in packed.items():
        kind, _, rest = name.partition(".")
        if kind == "default":
            state["default"][rest] = tensor
        elif kind == "stream":
            stream, _, part = rest.rpartition(".")
            state["streams"].setdefault(stream, {})[part] = tensor
    return state
