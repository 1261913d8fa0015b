"""Any rank of a large run in one process: torch's fake process group, with every rank's data taken to be this one's.

What it counts are the collectives that torch is really asked for, by DeepSpeed and by megads.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """One kind of collective on one group: its name in torch, its ranks, and the bytes of its largest tensor."""

    name: str
    ranks: tuple[int, ...]
    num_bytes: int


def as_rank(rank: int, world_size: int, check: Callable[..., Any], *args: Any) -> Any:
    """Return ``check(*args)`` of a forked process that is ``rank`` of ``world_size``; a failure is raised here."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(_as_rank, (rank, world_size, check, args))


def _as_rank(rank: int, world_size: int, check: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    join(rank, world_size)
    # Under ZeRO 3 DeepSpeed compares lists with those of rank 0, which is not here.
    from deepspeed.runtime.zero import utils

    utils.get_lst_from_rank0, utils.assert_lst_len_same_as_other_ranks = list, len
    with like_this_rank():
        return check(*args)


def join(rank: int, world_size: int) -> None:
    """Make this process ``rank`` of ``world_size``; its collectives return at once and write nothing."""
    import warnings

    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    warnings.filterwarnings("ignore", r".*torch\.distributed\.\w+` is deprecated", FutureWarning)
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())


@contextmanager
def like_this_rank() -> Iterator[Counter[Call]]:
    """Count collectives; what others would have sent is what this rank sends, or zeros."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    counts: Counter[Call] = Counter()

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func.namespace == "c10d":
                name = func._schema.name.split("::")[1].strip("_")
                (group, *_) = [each for each in args if isinstance(each, torch.ScriptObject)]
                largest = max((each.numel() * each.element_size() for each in _tensors(args)), default=0)
                counts[Call(name, _ranks(group), largest)] += 1
                _fill(name, args)
            return result

    with Counting():
        yield counts


def _ranks(group: Any) -> tuple[int, ...]:
    import torch.distributed as dist

    return tuple(dist.get_process_group_ranks(dist.ProcessGroup.unbox(group)))


def _tensors(found: Any) -> Iterator[Any]:
    if hasattr(found, "element_size"):
        yield found
    elif isinstance(found, (list, tuple)):
        for each in found:
            yield from _tensors(each)


def _fill(name: str, args: Any) -> None:
    """Write what the fake group leaves as it was allocated."""
    if name == "recv":
        for each in _tensors(args):
            each.zero_()
    elif name in ("allgather_base", "alltoall_base"):
        out, own = args[:2]
        out.view(-1).copy_(own.reshape(-1).repeat(out.numel() // own.numel()))
    elif name == "allgather":
        for outputs, own in zip(*args[:2], strict=True):
            for out in outputs:
                out.copy_(own)
    elif name == "reduce_scatter_base":
        out, own = args[:2]
        out.view(-1).copy_(own.reshape(-1)[: out.numel()])
