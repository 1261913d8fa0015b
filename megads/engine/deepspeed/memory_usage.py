"""What DeepSpeed's engine holds on this rank, in bytes by kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from megads.engine.base import MemoryUsage
from megads.engine.memory_count import MemoryCounter
from megads.engine.optim.whole_parameters import WholeOptimizer

MASTERS = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups_flat_partition")
"""Attributes of DeepSpeed's optimizers (0.16 to 0.19) with the float32 copies of weights."""

GRADIENTS = ("averaged_gradients", "grad_partitions_flat_buffer", "fp32_groups_gradients_flat", "all_grad_tensors")
"""Attributes of DeepSpeed's optimizers with gradients or their sums."""

DEEPEST = 6  # levels of containers in which tensors are looked for


def memory_usage(engine: Any, module: nn.Module, device: torch.device) -> MemoryUsage:
    """Return what DeepSpeed's ``engine`` and the model hold now; see :class:`megads.engine.base.Engine`."""
    wrapper, basic = engine.optimizer, engine.basic_optimizer
    counter = MemoryCounter(device.type)
    masters = [*_tensors([getattr(wrapper, name, None) for name in MASTERS])]
    groups = getattr(basic, "param_groups", ())
    masters += [each for group in groups for each in group["params"] if isinstance(each, Tensor)]
    counter.add("weights", _weights(module))
    counter.add_covered("gradients", _gradients(module, masters, wrapper))
    counter.add("optimizer", iter(masters))
    for each in basic.inner() if isinstance(basic, WholeOptimizer) else (basic,):
        counter.add("optimizer", _tensors(dict(getattr(each, "state", {}))))
    counter.add("buffers", _tensors(wrapper))
    return counter.found


def _weights(module: nn.Module) -> Iterator[Tensor]:
    for parameter in module.parameters():
        # Under ZeRO 3 the parameter is empty, and its partition is an attribute.
        yield parameter.data
        for name in ("ds_tensor", "ds_secondary_tensor"):
            if isinstance(partition := getattr(parameter, name, None), Tensor):
                yield partition
    yield from module.buffers()


def _gradients(module: nn.Module, masters: list[Tensor], wrapper: Any) -> Iterator[Tensor]:
    for tensor in (*module.parameters(), *masters):
        for gradient in (tensor.grad, getattr(tensor, "grad_accum", None)):
            if isinstance(gradient, Tensor):
                yield gradient
    yield from _tensors([getattr(wrapper, name, None) for name in GRADIENTS])
    # Where the reduction is ours (megads.engine.deepspeed.zero), so is its buffer.
    reducer = getattr(getattr(wrapper, "process_gradients", None), "__self__", None)
    yield from _tensors(getattr(reducer, "flats", None))


def _tensors(where: Any, depth: int = 0, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Yield the tensors in ``where``: in containers, and in objects of DeepSpeed and of the engine."""
    seen = set() if seen is None else seen
    if isinstance(where, Tensor):
        yield where
        return
    if depth > DEEPEST or id(where) in seen or isinstance(where, (nn.Module, type)):
        return
    seen.add(id(where))
    inside: Any = ()
    if isinstance(where, Mapping):
        inside = where.values()
    elif isinstance(where, (list, tuple, set)):
        inside = where
    elif type(where).__module__.startswith(("deepspeed.", "megads.engine.")):
        inside = [each for name, each in vars(where).items() if name != "mpu"] if hasattr(where, "__dict__") else ()
    for each in list(inside):
        yield from _tensors(each, depth + 1, seen)
