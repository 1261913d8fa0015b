"""What an engine holds on this rank, in bytes by kind, counted from its tensors.

Every storage counts once, under the first kind that it belongs to: float32 masters that are
the weights themselves count as weights, and a flat buffer counts whole, padding included. Of a
bucket that gradients lie in, what they cover counts as gradients. A storage is told by its object and not by its
address, which it has none of where tensors have no data (``megads.trace``).
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from megads.engine.base import MemoryUsage


class MemoryCounter:
    """Counts every storage once; ``device`` is the type of the model's device."""

    def __init__(self, device: str):
        self.device, self.found, self.seen = device, MemoryUsage(), set[int]()

    def add(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Add the storages of ``tensors`` that were not counted yet to ``kind``."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            where = storage._cdata
            if not storage.nbytes() or tensor.device.type == "meta" or where in self.seen:
                continue
            self.seen.add(where)
            setattr(self.found, kind, getattr(self.found, kind) + storage.nbytes())
            if tensor.device.type != self.device:
                self.found.on_host += storage.nbytes()

    def add_covered(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Add what ``tensors`` cover of their storages to ``kind``, and the rest of these to ``buffers``.

        Gradients may be views of a bucket, whose size has nothing to do with theirs.
        """
        covered: dict[int, list[tuple[int, int]]] = {}
        whole: dict[int, Tensor] = {}
        for tensor in tensors:
            if tensor.device.type == "meta":
                continue
            where = tensor.untyped_storage()._cdata
            first, size = int(tensor.storage_offset()) * tensor.element_size(), tensor.numel() * tensor.element_size()
            covered.setdefault(where, []).append((first, first + size))
            whole[where] = tensor
        for where, parts in covered.items():
            if where not in self.seen:
                used, reached = 0, 0
                for first, last in sorted(parts):
                    used += max(0, last - max(first, reached))
                    reached = max(reached, last)
                self.add("buffers", [whole[where]])
                self.found.buffers -= used
                setattr(self.found, kind, getattr(self.found, kind) + used)
