"""Matrix products in chunks: while one is computed, another one is on its way to or from the tensor-parallel ranks.

A split linear layer sums or gathers ``[S, B, H]`` over its ranks right before or behind a matrix product, and neither
starts before the other is done. Cut into chunks of positions they overlap: the ranks' parts of a chunk arrive while the
chunk before is multiplied, and a product's chunk is summed while the next one is computed. Made of torch's collectives
alone, so every vendor's library does it. A single chunk is the plain order.

Activations are ``[S, B, ...]`` here, ``by_position``: a rank's part of the positions, and a chunk of that part, is
contiguous. Functions start what they do not wait for; nothing is seen by autograd.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import megads.timing.collectives as dist
from megads.errors import DeviceError

SYMMETRIC_MEMORY = -1
"""In place of a number of chunks: torch's fused products, which read the other ranks' memory themselves."""


class Pending:
    """Collectives under way, and the tensors that must live until they are done."""

    def __init__(self) -> None:
        self._works: list[tuple[dist.Work, tuple[Tensor, ...]]] = []

    def add(self, work: dist.Work, *needed: Tensor) -> None:
        """Add one that reads or writes ``needed``."""
        self._works.append((work, needed))

    def wait_next(self) -> None:
        """Wait for the first one that has not been waited for."""
        self._works.pop(0)[0].wait()

    def wait(self) -> None:
        """Wait for all."""
        while self._works:
            self.wait_next()


def cut(length: int, chunks: int) -> list[slice]:
    """Return at most ``chunks`` neighbouring slices of ``length`` positions; the last one may be smaller."""
    size = -(-length // max(1, chunks)) or 1
    return [slice(first, min(first + size, length)) for first in range(0, length, size)]


def start_summed_product(x: Tensor, weight: Tensor, group: dist.ProcessGroup, chunks: int) -> tuple[Tensor, Pending]:
    """Return ``x @ weight.T`` summed over the group, ``[..., F]``, once the work has been waited for.

    A chunk of rows is summed while the next one is multiplied.
    """
    pending = Pending()
    if chunks <= 1:
        whole = F.linear(x, weight)
        pending.add(dist.all_reduce(whole, group=group, async_op=True), whole)
        return whole, pending
    rows = x.flatten(0, -2)
    whole = x.new_empty(len(rows), weight.shape[0])
    for each in cut(len(rows), chunks):
        piece = whole[each]
        torch.mm(rows[each], weight.t(), out=piece)
        pending.add(dist.all_reduce(piece, group=group, async_op=True), piece)
    return whole.view(*x.shape[:-1], -1), pending


def start_scattered_product(x: Tensor, weight: Tensor, group: dist.ProcessGroup, chunks: int) -> tuple[Tensor, Pending]:
    """Return this rank's ``[S / t, B, F]`` of the sum of ``x @ weight.T`` over the group, once the work is done.

    ``x`` is ``[S, B, D]`` in any memory format; ``t``, the group's size, divides S. A chunk of every rank's positions
    is summed while the next one is multiplied.
    """
    pending, size = Pending(), group.size()
    if chunks == SYMMETRIC_MEMORY and dist.are_sent():  # else a result of the same form, without the others
        name = _symmetric_memory(group, x)
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(x, weight.t(), "sum", 0, name), pending
    length, batch, width = x.shape
    mine = x.new_empty(length // size, batch, weight.shape[0])
    parts = x.unflatten(0, (size, -1))
    for each in cut(len(mine), chunks):
        if chunks <= 1:
            product = F.linear(x.contiguous(), weight)
        else:
            product = torch.bmm(parts[:, each].flatten(1, 2), weight.t().expand(size, width, -1))
        out = mine[each]
        # From flat rows: a reduce-scatter wants the sizes of dimension 0 to be those of the result, times the ranks.
        work = dist.reduce_scatter_tensor(out, product.view(-1, *out.shape[1:]), group=group, async_op=True)
        pending.add(work, product, out)
    return mine, pending


def product_of_gathered(
    mine: Tensor, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup, chunks: int
) -> tuple[Tensor, Tensor]:
    """Return ``F.linear`` of the ranks' gathered ``mine``, ``[t * s, B, F]``, and the rows that were gathered.

    ``mine`` is ``[s, B, D]``, contiguous. The rows, ``[t * s * B, D]``, are in the order of :func:`rows_by_chunk`. This
    rank's own part is multiplied first, then chunk by chunk what has arrived.
    """
    if chunks == SYMMETRIC_MEMORY and dist.are_sent():  # else a result of the same form, without the others
        name = _symmetric_memory(group, mine)
        whole, (out,) = torch.ops.symm_mem.fused_all_gather_matmul(mine, [weight.t()], 0, name)
        return out if bias is None else out.add_(bias), whole.flatten(0, 1)
    pending, size, rank = Pending(), group.size(), group.rank()
    length, batch, width = mine.shape
    slices = cut(length, chunks)
    gathered = mine.new_empty(size * length * batch, width)
    pieces = list(gathered.split([size * batch * (each.stop - each.start) for each in slices]))
    for each, piece in zip(slices, pieces, strict=True):
        sent = mine[each].flatten(0, 1)
        pending.add(dist.all_gather_into_tensor(piece, sent, group=group, async_op=True), piece, sent)
    if chunks <= 1:
        pending.wait()
        return F.linear(gathered.view(-1, batch, width), weight, bias), gathered
    out = mine.new_empty(size, length, batch, weight.shape[0])
    _multiply(mine.unsqueeze(0), weight, bias, out[rank : rank + 1])
    for each, piece in zip(slices, pieces, strict=True):
        pending.wait_next()
        parts = piece.view(size, -1, batch, width)
        for others in (slice(0, rank), slice(rank + 1, size)):
            _multiply(parts[others], weight, bias, out[others, each])
    return out.flatten(0, 1), gathered


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Write ``F.linear(x, weight, bias)``, of some ranks' ``[t, s, B, D]``, to ``out``."""
    ranks = len(x)
    if not ranks:
        return
    left, right = x.flatten(1, 2), weight.t().expand(ranks, -1, -1)
    target = out.view(ranks, -1, out.shape[-1])
    if bias is None:
        torch.bmm(left, right, out=target)
    else:
        torch.baddbmm(bias, left, right, out=target)


def rows_by_chunk(x: Tensor, size: int, chunks: int) -> Tensor:
    """Return ``[S, B, D]``, in any memory format, as ``[S * B, D]`` in the order of rows gathered in chunks.

    The first chunk of all ``size`` ranks' parts comes first, in rank order. With one chunk rows lie by position.
    """
    length, batch, width = x.shape
    if chunks <= 1:
        return x.contiguous().flatten(0, 1)
    parts = x.unflatten(0, (size, -1))
    slices = cut(length // size, chunks)
    rows = x.new_empty(length * batch, width)
    pieces = rows.split([size * batch * (each.stop - each.start) for each in slices])
    for each, piece in zip(slices, pieces, strict=True):
        piece.view(size, -1, batch, width).copy_(parts[:, each])
    return rows


def _symmetric_memory(group: dist.ProcessGroup, x: Tensor) -> str:
    """Return the name of a group whose ranks can read each other's memory.

    Raises:
        DeviceError: not on NVIDIA devices.
    """
    if not _has_symmetric_memory(x):
        raise DeviceError(
            f"TP_OVERLAP_WITH=symmetric_memory works on NVIDIA devices, not on {x.device.type}; "
            "use TP_OVERLAP_WITH=collectives with TP_OVERLAP=4"
        )
    name = group.group_name
    if name not in _ENABLED:
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group

        enable_symm_mem_for_group(name)
        _ENABLED.add(name)
    return name


_ENABLED: set[object] = set()


def _has_symmetric_memory(x: Tensor) -> bool:
    return x.device.type == "cuda" and torch.version.hip is None
