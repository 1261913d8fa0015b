"""Bytes of tensors without data, counted by torch's own tracker: what there is, and the most of it in a step."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from megads.errors import DependencyError


@dataclass(frozen=True)
class Peak:
    """Bytes of a rank at the highest point of a step, without the program's own."""

    weights: int
    gradients: int
    optimizer: int
    buffers: int  # of the engine, and all else that is there between two steps
    activations: int  # made in the forward pass
    temporary: int  # made in the backward pass, or while the weights are updated

    @property
    def total(self) -> int:
        """Return the sum."""
        return sum(vars(self).values())


def tracker_class() -> Any:
    """Return torch's tracker, without its statistics of single modules.

    Raises:
        DependencyError: this version of torch has none that works as expected.
    """
    try:
        from torch.distributed._tools.mem_tracker import MemTracker
    except ImportError as error:
        raise DependencyError(
            f"torch {torch.__version__} has no torch.distributed._tools.mem_tracker.MemTracker ({error}), which counts "
            "the memory of a trace; use torch 2.13"
        ) from None

    class Tracker(MemTracker):
        def __init__(self) -> None:
            super().__init__()
            # Its own follows one forward pass of every module; here micro-batches take turns.
            self._mod_tracker = _NoModules()  # type: ignore[assignment]

    return Tracker


class _NoModules:
    """In place of what follows modules: it only knows whether a backward pass runs."""

    parents: frozenset[str] = frozenset()

    @property
    def is_bw(self) -> bool:
        return torch._C._current_graph_task_id() != -1

    def register_user_hooks(self, *hooks: Any) -> None:
        """Take hooks that are never called."""

    def clear_user_hooks(self) -> None:
        """Forget them."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


class Tracked:
    """What is allocated in :meth:`running`, from the engine's set-up on."""

    def __init__(self, *, is_on: bool):
        self.tracker = tracker_class()() if is_on else None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count in the block; its peak is that of :meth:`peak` until the next block."""
        if self.tracker is None:
            yield
            return
        with warnings.catch_warnings(), self.tracker:
            warnings.filterwarnings("ignore", "Expected a tensor or a traceable wrapper-subclass", UserWarning)
            yield

    def now(self) -> dict[str, int]:
        """Return what there is, by the tracker's kinds."""
        return self._snapshot("current")

    def hold(self, tensors: Any) -> None:
        """Have the storages of ``tensors`` count as held, whenever they are there."""
        if self.tracker is not None:
            self.tracker.track_external(*tensors)

    def peak(self, held: Any, before: dict[str, int]) -> Peak | None:
        """Return the highest point of the last block.

        Args:
            held: what the engine says that it holds (``memory_usage``).
            before: :meth:`now` before the block.
        """
        if self.tracker is None:
            return None
        found, total = self._snapshot("peak"), sum(before.values())
        made = {name: found.get(name, 0) - before.get(name, 0) for name in {*found, *before}}
        by_engine = held.weights + held.gradients + held.optimizer
        activations = made.pop("Activation", 0)
        temporary = made.pop("Temp", 0) + made.pop("Optstate", 0)
        buffers = total - by_engine + sum(made.values())
        return Peak(held.weights, held.gradients, held.optimizer, buffers, activations, temporary)

    def _snapshot(self, when: str) -> dict[str, int]:
        if self.tracker is None:
            return {}
        found: dict[str, int] = {}
        for device, kinds in self.tracker.get_tracker_snapshot(when).items():
            if device.type == "meta":  # DeepSpeed keeps shapes of parameters there
                continue
            for kind, num_bytes in kinds.items():
                name = str(getattr(kind, "value", kind))
                if name != "Total":
                    found[name] = found.get(name, 0) + num_bytes
        return found
