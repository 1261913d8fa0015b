"""What an engine holds on this rank, in bytes by kind, counted from its tensors.

Every storage counts once, under the first kind that it belongs to: float32 masters that are
the weights themselves count as weights, and a flat buffer counts whole, padding included. Of a
bucket that gradients lie in, what they cover counts as gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from megads.engine.optim.whole_parameters import WholeOptimizer

MASTERS = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups_flat_partition")
"""Attributes of DeepSpeed's optimizers (0.16 to 0.19) with the float32 copies of weights."""

GRADIENTS = ("averaged_gradients", "grad_partitions_flat_buffer", "fp32_groups_gradients_flat", "all_grad_tensors")
"""Attributes of DeepSpeed's optimizers with gradients or their sums."""

DEEPEST = 6  # levels of containers in which tensors are looked for


@dataclass
class MemoryUsage:
    """Bytes by kind.

    Attributes:
        weights: those the model computes with, ZeRO's partitions of them, and module buffers.
        gradients: of parameters and partitions, with what they are summed in.
        optimizer: its state, and float32 masters besides the weights.
        buffers: other tensors that the engine keeps, such as buckets.
        on_host: of all of these, those in host memory although the model is on a device.
    """

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    buffers: int = 0
    on_host: int = 0
    seen: set[int] = field(default_factory=set, repr=False, compare=False)

    @property
    def total(self) -> int:
        """Of all kinds."""
        return self.weights + self.gradients + self.optimizer + self.buffers

    def count(self, kind: str, tensors: Iterator[Tensor], device: str) -> None:
        """Add the storages of ``tensors`` that were not counted yet to ``kind``; the model is on ``device``."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            where = storage.data_ptr()
            if not where or where in self.seen:
                continue
            self.seen.add(where)
            setattr(self, kind, getattr(self, kind) + storage.nbytes())
            if tensor.device.type != device:
                self.on_host += storage.nbytes()

    def count_parts(self, kind: str, tensors: list[Tensor], device: str) -> None:
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
                self.count("buffers", iter([whole[where]]), device)
                self.buffers -= used
                setattr(self, kind, getattr(self, kind) + used)


def held(engine: Any) -> MemoryUsage:
    """Return what ``engine``, a :class:`megads.engine.deepspeed.engine.DeepSpeedEngine`, holds now. Not collective.

    Gradients are all there between the last backward pass and the update only, and some
    optimizers' state only after their first update.
    """
    wrapper, basic, module = engine.engine.optimizer, engine.engine.basic_optimizer, engine.module
    found, device = MemoryUsage(), engine.device.type
    masters = [*_tensors([getattr(wrapper, name, None) for name in MASTERS])]
    groups = getattr(basic, "param_groups", ())
    masters += [each for group in groups for each in group["params"] if isinstance(each, Tensor)]
    found.count("weights", _weights(module), device)
    found.count_parts("gradients", list(_gradients(module, masters, wrapper)), device)
    found.count("optimizer", iter(masters), device)
    for each in basic.inner() if isinstance(basic, WholeOptimizer) else (basic,):
        found.count("optimizer", _tensors(dict(getattr(each, "state", {}))), device)
    found.count("buffers", _tensors(wrapper), device)
    return found


def watch_updates(engine: Any, look: Callable[..., None]) -> Callable[[], None]:
    """Have ``look`` called whenever the optimizer is about to update; return what ends that."""
    register = getattr(engine.engine.basic_optimizer, "register_step_pre_hook", None)
    if register is None:
        return lambda: None
    remove: Callable[[], None] = register(look).remove
    return remove


def _weights(module: nn.Module) -> Iterator[Tensor]:
    for parameter in module.parameters():
        # Under ZeRO 3 the parameter is empty, and its partition is an attribute.
        yield parameter.data
        for name in ("ds_tensor", "ds_secondary_tensor"):
            if isinstance(piece := getattr(parameter, name, None), Tensor):
                yield piece
    yield from module.buffers()


def _gradients(module: nn.Module, masters: list[Tensor], wrapper: Any) -> Iterator[Tensor]:
    for tensor in (*module.parameters(), *masters):
        for gradient in (tensor.grad, getattr(tensor, "grad_accum", None)):
            if isinstance(gradient, Tensor):
                yield gradient
    yield from _tensors([getattr(wrapper, name, None) for name in GRADIENTS])
    # Where the reduction is ours (megads.engine.deepspeed.zero_traffic), so is its buffer.
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
