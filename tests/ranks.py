"""Run a function on several real ranks, inside a test.

One pool of forked processes per size is started on first use and kept; its ranks share a
gloo process group. The functions must live at the top of a test module, and fail by
raising::

    run_ranks(4, my_check, arguments...)
"""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

Start = Callable[[], dict[str, Any]]
"""What a rank does first; it returns backend and device of the process group."""

_pools: dict[tuple[int, Start | None], Ranks] = {}

RUNS_OF_A_POOL = 80
"""Then it is made again: every group ever made keeps its threads."""


class Ranks:
    """A pool of ``size`` processes joined in one process group."""

    def __init__(self, size: int, start: Start | None = None):
        self.folder = tempfile.mkdtemp(prefix="megads-ranks-")
        # fork: the children share what this process imported, so a pool starts in about a
        # tenth of the time spawn needs. Safe as long as torch has started no threads here,
        # which conftest sees to.
        if start is None:
            import_what_ranks_need()
            context: Any = multiprocessing.get_context("fork")
        else:
            # Not from here: a backward pass of a test has counted the kinds of devices there are, once and for all.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["tests.preloaded"])
        self.runs = 0
        self.pipes: list[Any] = []
        self.processes: list[Any] = []
        for rank in range(size):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, self.folder, theirs, start), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)

    def run(self, check: Callable[..., None], *args: Any, timeout_s: float = 60) -> None:
        """Call ``check(*args)`` on every rank. A rank that fails or hangs ends the pool."""
        for pipe in self.pipes:
            pipe.send((check, args))
        waiting = {pipe: rank for rank, pipe in enumerate(self.pipes)}
        while waiting:
            # Take answers as they come: when one rank fails, the others may be stuck in a
            # collective that will never complete, and its traceback is the one to show.
            ready = multiprocessing.connection.wait(waiting, timeout_s)
            problems = {waiting.pop(pipe): _answer(pipe) for pipe in ready}
            if not ready:
                problems = {rank: f"no answer in {timeout_s:g} s" for rank in waiting.values()}
                waiting = {}
            told = [f"rank {rank} of {len(self.pipes)}:\n{problem}" for rank, problem in problems.items() if problem]
            if told:
                self.close()
                raise AssertionError("\n".join(told))

    @property
    def is_alive(self) -> bool:
        return all(process.is_alive() for process in self.processes)

    def close(self) -> None:
        """End the processes, also those that hang in a collective."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        shutil.rmtree(self.folder, ignore_errors=True)


def run_ranks(
    size: int, check: Callable[..., None], *args: Any, timeout_s: float = 60, start: Start | None = None
) -> None:
    """Call ``check(*args)`` on ``size`` ranks; raise the first failing rank's traceback.

    Ranks that were begun by another ``start`` are others.
    """
    key = (size, start)
    for other in [each for each in _pools if each != key and each[0] > 4]:
        _pools.pop(other).close()
    if key in _pools and _pools[key].runs >= RUNS_OF_A_POOL:
        _pools.pop(key).close()
    if key not in _pools or not _pools[key].is_alive:
        _pools[key] = Ranks(size, start)
    _pools[key].runs += 1
    _pools[key].run(check, *args, timeout_s=timeout_s)


def close_pools() -> None:
    """End every pool; the session fixture's last act."""
    for pool in _pools.values():
        pool.close()
    _pools.clear()


@cache
def groups_of(**degrees: int) -> Any:
    """Return this rank's groups of ``Grid(**degrees)``; each grid's groups are made once per process."""
    import torch.distributed as dist

    from megads.comm.grid import Grid
    from megads.comm.groups import make_groups

    return make_groups(Grid(**degrees), dist.get_rank())


def _answer(pipe: Any) -> str:
    try:
        return str(pipe.recv())
    except EOFError:
        return "the process died"


def import_what_ranks_need() -> None:
    import torch.distributed.tensor  # noqa: F401 - torch.testing imports it in the first comparison

    import megads.train.loop  # noqa: F401
    from megads.engine.compiler import NAME, is_postponed, postpone_compiler
    from megads.engine.deepspeed.package import import_deepspeed

    postpone_compiler()
    import_deepspeed()
    # Ranks postpone it again. Whoever makes a process group asks what is there for what only the compiler has.
    if is_postponed():
        del sys.modules[NAME]


def _share_gloo_threads() -> None:
    """Give all groups of this process one thread that listens; each its own would wake up 100 times a second."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    own = dist.ProcessGroupGloo
    device = own.create_default_device()

    class Sharing(own):
        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta):
            options = own._Options()
            options._devices, options._threads, options._timeout = [device], 2, timeout
            super().__init__(store, rank, size, options)

    distributed_c10d.ProcessGroupGloo = Sharing


def _serve(rank: int, size: int, folder: str, pipe: Any, start: Start | None) -> None:
    """Run what comes through the pipe until it closes; answer "" or a traceback."""
    import torch
    import torch.distributed as dist

    from megads.engine.compiler import postpone_compiler
    from megads.engine.deepspeed.package import import_deepspeed

    gc.freeze()  # DeepSpeed collects garbage several times an engine; a test process has much to walk through
    torch.set_num_threads(1)
    groups_of.cache_clear()
    _share_gloo_threads()
    store = dist.FileStore(str(Path(folder) / "store"), size)
    group = start() if start is not None else {"backend": "gloo"}
    dist.init_process_group(**group, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    postpone_compiler()  # before a loop to compare with makes its optimizer, which would import the compiler
    import_deepspeed()
    while True:
        try:
            check, args = pipe.recv()
        except (EOFError, OSError):
            return
        torch.manual_seed(0)
        problem = ""
        try:
            check(*args)
        except BaseException:
            problem = traceback.format_exc()
        pipe.send(problem)
