"""What parameters say of themselves, kept and checked where a model moves.

How a parameter is cut (``shard``) decides whether it counts in the gradient norm, how it is saved and what a rank
sends. ``nn.Module.to`` writes into the parameters of devices that torch knows well; for others it makes new ones,
without what was set on the old ones, and with TP=2 the norm is then wrong without an error.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from megads.engine.base import is_copy, whole_shape
from megads.errors import DeviceError
from megads.families.spec import Parameter
from megads.models.gpt import GPT
from megads.parallel.tensor import Shard, full_shape


def move(module: GPT, device: torch.device, dtype: torch.dtype | None = None) -> GPT:
    """Move ``module`` in place, its parameters with all that was set on them, and return it.

    Call it before anything refers to the parameters: on some devices they are new objects.

    Raises:
        DeviceError: see :func:`check_marks`.
    """
    before = dict(module.named_parameters())
    module.to(device, dtype)
    for name, parameter in module.named_parameters():
        if parameter is not before[name]:
            vars(parameter).update(vars(before[name]))
    check_marks(module)
    return module


def check_marks(module: GPT) -> None:
    """Check that every parameter says what the model's description says: how it is cut, and its whole shape.

    Raises:
        DeviceError: one does not.
    """
    for name, parameter in module.named_parameters():
        expected = _shard_of(module.spec.of(name))
        found = getattr(parameter, "shard", "nothing")
        if found != expected:
            raise DeviceError(
                f"parameter {name} on {parameter.device}: its mark says {found}, the model's description {expected}; "
                f"torch {torch.__version__} or DeepSpeed replaced it without the mark, use versions of setup.cfg"
            )
        shape = tuple(full_shape(whole_shape(parameter), found))
        if shape != module.spec.of(name).shape:
            raise DeviceError(
                f"parameter {name} on {parameter.device}: of the whole shape {shape}, "
                f"the model's description says {module.spec.of(name).shape}"
            )


def mark_counted(module: nn.Module, tensor_rank: int) -> None:
    """Mark the parameters that this rank adds to the gradient norm.

    ``tensor_model_parallel``, DeepSpeed's name for it, says "count here": a shard counts on every
    tensor rank, a replicated parameter only on the first, and a stage's copy of another
    stage's parameter nowhere. Without the marks the norm, and with it clipping, is wrong and
    nothing says so.
    """
    for parameter in module.parameters():
        sharded = parameter.shard is not None  # type: ignore[attr-defined]
        counted = (sharded or tensor_rank == 0) and not is_copy(parameter)
        parameter.tensor_model_parallel = counted  # type: ignore[attr-defined]


def check_same(names: dict[Any, str], module: GPT) -> None:
    """Check that ``module`` still has the parameters of ``names``, with their marks and that for the gradient norm.

    Raises:
        DeviceError: it does not.
    """
    check_marks(module)
    for name, parameter in module.named_parameters():
        if names.get(parameter) != name or not hasattr(parameter, "tensor_model_parallel"):
            raise DeviceError(
                f"parameter {name} on {parameter.device} was replaced while DeepSpeed was set up; "
                "use versions of torch and DeepSpeed from setup.cfg"
            )


def _shard_of(described: Parameter) -> Shard | None:
    return None if described.dim is None else Shard(described.dim, described.parts)
