"""What an engine holds on this rank, in bytes by kind, counted from its tensors.

Every storage counts once, under the first kind that it belongs to: float32 masters that are
the weights themselves count as weights, and a flat buffer counts whole, padding included. Of a
bucket that gradients lie in, what they cover counts as gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from megads.engine.base import MemoryUsage
from megads.engine.optim.whole_parameters import WholeOptimizer

MASTERS = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups_flat_partition")
"""Attributes of DeepSpeed's optimizers (0.16 to 0.19) with the float32 copies of weights."""

GRADIENTS = ("averaged_gradients", "grad_partitions_flat_buffer", "fp32_groups_gradients_flat", "all_grad_tensors")
"""Attributes of DeepSpeed's optimizers with gradients or their sums."""

DEEPEST = 6  # levels of containers in which tensors are looked for


class _Counter:
    """Counts every storage once; ``device`` is the type of the model's device."""

    def __init__(self, device: str):
        self.device, self.found, self.seen = device, MemoryUsage(), set[int]()

    def add(self, kind: str, tensors: Iterator[Tensor]) -> None:
        """Add the storages of ``tensors`` that were not counted yet to ``kind``."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            where = storage.data_ptr()
            if not where or where in self.seen:
                continue
            self.seen.add(where)
            setattr(self.found, kind, getattr(self.found, kind) + storage.nbytes())
            if tensor.device.type != self.device:
                self.found.on_host += storage.nbytes()

    def add_covered(self, kind: str, tensors: Iterator[Tensor]) -> None:
        """Add what ``tensors`` cover of their storages to ``kind``, and the rest of these to ``buffers``.

        Gradients may be views of a bucket, whose size has nothing to do with theirs.
        """
        covered: dict[int, list[tuple[int, int]]] = {}
        whole: dict[int, Tensor] = {}
        for tensor in tensors:
            where = tensor.untyped_storage().data_ptr()
            first, size = int(tensor.storage_offset()) * tensor.element_size(), tensor.numel() * tensor.element_size()
            covered.setdefault(where, []).append((first, first + size))
            whole[where] = tensor
        for where, parts in covered.items():
            if where and where not in self.seen:
                used, reached = 0, 0
                for first, last in sorted(parts):
                    used += max(0, last - max(first, reached))
                    reached = max(reached, last)
                self.add("buffers", iter([whole[where]]))
                self.found.buffers -= used
                setattr(self.found, kind, getattr(self.found, kind) + used)


def memory_usage(engine: Any, module: nn.Module, device: torch.device) -> MemoryUsage:
    """Return what DeepSpeed's ``engine`` and the model hold now; see :class:`megads.engine.base.Engine`."""
    wrapper, basic = engine.optimizer, engine.basic_optimizer
    counter = _Counter(device.type)
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
