"""Inputs of recomputed layers, kept in page-locked host memory between the passes.

They go there on a stream of their own while the layers compute, and come back on another one: the input of the segment
that the backward pass needs next is fetched while it works on the one after.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class HostCheckpoints:
    """Where the inputs of one engine's recomputed segments go.

    Args:
        device: an accelerator; on a CPU there is nothing to move.
        module: torch's module of its kind, as ``torch.get_device_module`` gives it.
    """

    def __init__(self, device: torch.device, module: ModuleType):
        self.device, self.module = device, module
        self.out, self.back = module.Stream(device), module.Stream(device)

    def begin(self) -> Chain:
        """Return what keeps the inputs of a micro-batch's segments, in the order of the forward pass."""
        return Chain(self)


class Chain:
    """The inputs of the segments of one micro-batch; the last one that was kept is needed first."""

    def __init__(self, place: HostCheckpoints):
        self.place = place
        self.last: _Kept | None = None

    def keep(self, checkpoint: Callable[..., Tensor], function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Return ``checkpoint(function, *inputs)``, whose inputs go to the host."""
        # What is inside of ``function`` is kept by nobody: the inputs are all that autograd asks to save.
        with saved_tensors_hooks(self._pack, self._unpack):
            return checkpoint(function, *inputs)

    def _pack(self, x: Tensor) -> Any:
        if x.device.type != self.place.device.type or not x.numel():
            return x
        self.last = _Kept(x, self.place, self.last)
        return self.last

    def _unpack(self, kept: Any) -> Tensor:
        return kept.take() if isinstance(kept, _Kept) else kept


class _Kept:
    """A tensor on the host, and the one that the backward pass needs after it."""

    def __init__(self, x: Tensor, place: HostCheckpoints, following: _Kept | None):
        module = place.module
        self.place, self.following = place, following
        self.host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        self.needs_grad = x.requires_grad
        place.out.wait_stream(module.current_stream(place.device))
        with module.stream(place.out):
            self.host.copy_(x.detach(), non_blocking=True)
        x.record_stream(place.out)
        self.left = place.out.record_event()
        self.x: Tensor | None = None
        self.arrived: Any = None

    def fetch(self) -> None:
        """Have the tensor come back; does not wait for it."""
        if self.x is not None:
            return
        place, module = self.place, self.place.module
        self.x = torch.empty(self.host.shape, dtype=self.host.dtype, device=place.device)
        # The memory may be in use by what was asked of the device before.
        place.back.wait_stream(module.current_stream(place.device))
        place.back.wait_event(self.left)
        with module.stream(place.back):
            self.x.copy_(self.host, non_blocking=True)
        self.x.record_stream(place.back)
        self.arrived = place.back.record_event()

    def take(self) -> Tensor:
        """Return the tensor on the device, and let go of it; the next one is on its way from now on."""
        self.fetch()
        if self.following is not None:
            self.following.fetch()
        assert self.x is not None
        x, self.x = self.x, None
        self.place.module.current_stream(self.place.device).wait_event(self.arrived)
        return x.requires_grad_(self.needs_grad)
