"""Counts the matrix products of a step as they run, module by module."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

Formula = Callable[..., int]

FUSED = (
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
    "_scaled_dot_product_fused_attention_overrideable",
)
"""Torch's attention kernels; each also with ``_backward``. The registry lacks some, and counts the
products that a backward kernel repeats inside itself."""


def _attention(query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
    """Return the FLOPs of both products over the full square; heads may share keys."""
    batch, heads, length, width = query.shape
    return 2 * batch * heads * length * key.shape[-2] * (width + value.shape[-1])


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
    return 2 * _attention(query, key, value)


def formulas() -> dict[Any, Formula]:
    """Return operator -> its FLOPs by inputs and ``out_val``."""
    found: dict[Any, Formula] = dict(flop_registry)
    for name in FUSED:
        for which, formula in ((name, _attention), (f"{name}_backward", _attention_backward)):
            if operator := getattr(torch.ops.aten, which, None):
                found[operator] = formula
    return found


@dataclass
class Count:
    """What one module did in its forward passes, those of modules inside included.

    Attributes:
        calls: times it ran; again in the backward pass counts too.
        flops: of its matrix products.
        seconds: by the host's clock.
    """

    calls: int = 0
    flops: int = 0
    seconds: float = 0.0


@dataclass
class Counted:
    """What one step did on this rank, in FLOPs.

    Attributes:
        forward: of first forward passes.
        again: of forward passes that were done again in the backward pass.
        backward: of backward passes.
        modules: by name, ``""`` for the whole; in the order of the model.
        seconds: of the block that was counted.
    """

    forward: int = 0
    again: int = 0
    backward: int = 0
    modules: dict[str, Count] = field(default_factory=dict)
    seconds: float = 0.0


@contextmanager
def counted(module: nn.Module, synchronize: Callable[[], None]) -> Iterator[Counted]:
    """Count what runs in the block; the numbers it computes stay as they are.

    Args:
        module: whose modules are told apart.
        synchronize: waits for the device, so that a module's time is its own.
    """
    found = Counted(modules={name: Count() for name, _ in module.named_modules()})
    inside: list[tuple[str, float]] = []

    def enter(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            synchronize()
            inside.append((name, time.perf_counter()))

        return hook

    def leave(*_: Any) -> None:
        synchronize()
        name, began = inside.pop()
        found.modules[name].calls += 1
        found.modules[name].seconds += time.perf_counter() - began

    hooks: list[Any] = []
    for name, each in module.named_modules():
        hooks.append(each.register_forward_pre_hook(enter(name)))
        # Also when torch's checkpoint stops a module in the middle, because it has all it needs.
        hooks.append(each.register_forward_hook(leave, always_call=True))
    began = time.perf_counter()
    try:
        with _Counting(found, inside, next(module.parameters()).device):
            yield found
        synchronize()
    finally:
        found.seconds = time.perf_counter() - began
        for hook in hooks:
            hook.remove()


class _Counting(TorchDispatchMode):
    """Sees every operator, forwards and backwards, on whatever thread autograd calls it."""

    def __init__(self, found: Counted, inside: list[tuple[str, float]], device: torch.device):
        super().__init__()
        self.found, self.inside, self.formulas = found, inside, formulas()
        self.key = getattr(torch._C.DispatchKey, torch._C._dispatch_key_for_device(device.type))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = self.formulas.get(func._overloadpacket)
        # An operator that is made of others comes whole without autograd. One that has a kernel of its own on this
        # device may have a decomposition too (silu_backward), which rounds otherwise: it must not be taken apart.
        has_kernel = func.has_kernel_for_dispatch_key(self.key)
        if formula is None and not has_kernel and func is not torch.ops.prim.device.default:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if formula is not None:
            self.add(formula(*args, **kwargs, out_val=result))
        return result

    def add(self, flops: int) -> None:
        """Count an operator where it belongs."""
        # Not public: the number of the backward pass that this thread is in, -1 outside.
        in_backward = torch._C._current_graph_task_id() != -1
        if in_backward and not self.inside and not torch.is_grad_enabled():
            self.found.backward += flops
            return
        if in_backward:
            self.found.again += flops
        else:
            self.found.forward += flops
        for name in {name for name, _ in self.inside}:
            self.found.modules[name].flops += flops
