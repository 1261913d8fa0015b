"""One rank of many in this process: torch's fake process group, and tensors without data."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from megads.comm.grid import Grid
from megads.comm.groups import Groups, make_groups
from megads.config.engine_choice import choose
from megads.config.schema import RunConfig
from megads.errors import ConfigError, DependencyError


@contextmanager
def joined(run: RunConfig, rank: int, world_size: int) -> Iterator[Groups]:
    """Be ``rank`` of ``world_size`` in the block, of whose groups no other rank is there.

    Raises:
        ConfigError: this process is a rank of a real run.
        DependencyError: this torch has no fake process group.
    """
    if dist.is_initialized():
        raise ConfigError("--trace: this process is a rank of a run already; start `megads plan` outside of it")
    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError as error:
        raise DependencyError(
            f"torch {torch.__version__} has no fake process group ({error}), which --trace needs; use torch 2.13"
        ) from None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*torch\.distributed\.\w+` is deprecated", FutureWarning)
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
        try:
            grid = run.parallel
            yield make_groups(Grid(grid.pipeline, grid.data, grid.sequence, grid.tensor), rank)
        finally:
            dist.destroy_process_group()


@contextmanager
def without_data(run: RunConfig, world_size: int) -> Iterator[None]:
    """Have tensors that are made in the block take no memory, and initial weights not drawn."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    import megads.models.build as build

    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor", UserWarning)
        stack.enter_context(_replaced(build, "initialise", lambda *args: None))
        if choose(run, world_size).kind == "deepspeed":
            # All is where it belongs; FakeTensors cannot be exchanged while something refers to them.
            stack.enter_context(_replaced(torch.nn.Module, "to", lambda module, *args, **options: module))
            stack.enter_context(_deepspeed_alone())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


@contextmanager
def _deepspeed_alone() -> Iterator[None]:
    """Have DeepSpeed take this for a CPU's rank that agrees with all others: under ZeRO 3 it compares lists."""
    before = os.environ.get("DS_ACCELERATOR")
    os.environ["DS_ACCELERATOR"] = "cpu"
    try:
        from megads.engine.deepspeed.package import import_deepspeed

        deepspeed = import_deepspeed()
        utils = deepspeed.runtime.zero.utils
        with (
            _replaced(utils, "get_lst_from_rank0", list),
            _replaced(utils, "assert_lst_len_same_as_other_ranks", len),
        ):
            yield
    finally:
        if before is None:
            del os.environ["DS_ACCELERATOR"]
        else:
            os.environ["DS_ACCELERATOR"] = before


@contextmanager
def _replaced(owner: Any, name: str, value: Callable[..., Any]) -> Iterator[None]:
    had, before = name in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
