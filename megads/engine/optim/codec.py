"""What a library's optimizer keeps of one parameter, as tensors and plain numbers by key, and back.

Keys are ``<key>`` for tensors and numbers, ``<key>.<i>`` for those of lists (``<key>.count`` tells how
many), ``group.<key>`` for what the whole group counts, and ``projector.*`` for GaLore's object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

COUNT = ".count"
GROUP = "group."
PROJECTOR = "projector"
SETTINGS = ("precondition_frequency", "shampoo_beta")
"""What SOAP keeps besides a parameter although it is set for all; it is what is set now that counts."""
COUNTED = ("step",)
"""Of a parameter group: what moves with every step."""

Value = Tensor | float | int | bool | None


def pack(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Value]:
    """Return the state of ``parameter``; empty before its first step."""
    state = optimizer.state.get(parameter)
    if not state:
        return {}
    found: dict[str, Value] = {}
    for key, value in state.items():
        if key == PROJECTOR:
            found[f"{PROJECTOR}.ortho_matrix"] = value.ortho_matrix
        elif isinstance(value, (list, tuple)):
            found[f"{key}{COUNT}"] = len(value)
            found |= {f"{key}.{i}": each for i, each in enumerate(value) if isinstance(each, Tensor)}
        elif value is None or isinstance(value, (Tensor, float, int)):
            found[key] = value
        else:
            raise AssertionError(f"{type(optimizer).__name__} keeps a {type(value).__name__} under {key}")
    group = _group_of(optimizer, parameter)
    found |= {f"{GROUP}{key}": group[key] for key in COUNTED if key in group}
    return found


def unpack(
    optimizer: torch.optim.Optimizer, parameter: nn.Parameter, found: Mapping[str, Value], is_galore: bool = False
) -> None:
    """Set the state of ``parameter`` to what :func:`pack` gave, on the parameter's device."""
    optimizer.state.pop(parameter, None)
    group = _group_of(optimizer, parameter)
    for key in COUNTED:
        group.pop(key, None)
    if not found:
        return
    state: dict[str, Any] = {}
    for key, value in found.items():
        here = value.to(parameter.device) if isinstance(value, Tensor) else value
        name, _, last = key.rpartition(".")
        if key.startswith(GROUP):
            group[key.removeprefix(GROUP)] = here
        elif name == PROJECTOR:
            state[PROJECTOR] = _projector(group, here)
        elif key.endswith(COUNT):
            state.setdefault(name, [[]] * int(found[key] or 0))
        elif name:
            parts = list(state.get(name) or [[]] * int(found[f"{name}{COUNT}"] or 0))
            parts[int(last)] = here
            state[name] = parts
        else:
            state[key] = here
    for key in SETTINGS:
        if key in state:
            state[key] = group["betas"][1] if group[key] is None else group[key]
    optimizer.state[parameter] = state


def settle(optimizer: torch.optim.Optimizer) -> None:
    """Have every tensor of the state lie as a checkpoint would give it back: products of others round otherwise.

    Decompositions return transposed matrices, and the same numbers in another order of memory
    are multiplied in another order.
    """
    for state in optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, Tensor):
                state[key] = value.contiguous()
            elif isinstance(value, list):
                state[key] = [each.contiguous() if isinstance(each, Tensor) else each for each in value]
            elif key == PROJECTOR and value.ortho_matrix is not None:
                value.ortho_matrix = value.ortho_matrix.contiguous()


def _group_of(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    return next(group for group in optimizer.param_groups if any(each is parameter for each in group["params"]))


def _projector(group: Mapping[str, Any], matrix: Value) -> Any:
    from galore_torch.galore_projector import GaLoreProjector

    made = GaLoreProjector(
        group["rank"],
        update_proj_gap=group["update_proj_gap"],
        scale=group["scale"],
        proj_type=group["proj_type"],
    )
    made.ortho_matrix = matrix
    return made
