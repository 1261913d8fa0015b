"""Peak memory of forward and backward passes on a device, from tensors without data.

The model is the real one, on the simulated device, under torch's FakeTensorMode; torch's MemTracker counts. What
PrivateUse1 takes apart and accelerators do in one kernel is one function here that keeps what the kernel keeps:
attention (FlashAttention: its inputs, the result, one float32 of a query) and norms (the input, float32 statistics).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from tests.fake_ranks import join


@dataclass(frozen=True)
class Peak:
    """Bytes of one rank at the highest point."""

    static: int  # weights, and float32 sums of gradients
    other: int  # activations, logits, and what kernels work in


def peaks(runs: dict[str, tuple[Any, int, int]]) -> dict[str, Peak]:
    """Return the peak of every (run, world size, rank) by its name; in a forked process, which is of no other use."""
    import torch.distributed as dist

    from megads.trace.kernels import fused
    from tests.simgpu.build import build
    from tests.simgpu.module import install

    install(str(build()))
    found = {}
    with fused():
        for name, (run, world_size, rank) in runs.items():
            join(rank, world_size)
            found[name] = _peak(run, rank)
            dist.destroy_process_group()
    return found


def _peak(run: Any, rank: int) -> Peak:
    """Return the peak of one step of ``rank``, with as many micro-batches in flight as 1F1B has there."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    from tests.simgpu.module import NAME

    device = torch.device(f"{NAME}:0")
    with FakeTensorMode():
        model, groups = _model(run, rank, device)
        sums = _sum_gradients(model)
        tracker = MemTracker()
        tracker.track_external(model, *sums)
        with warnings.catch_warnings(), tracker:
            warnings.filterwarnings("ignore", "Expected a tensor or a traceable wrapper-subclass", UserWarning)
            _pass(model, run, groups, device, tracker)
        found = tracker.get_tracker_snapshot("peak")[device]
    static = sum(each.numel() * each.element_size() for each in (*model.parameters(), *sums))
    (total,) = (value for kind, value in found.items() if str(kind).endswith("Total"))
    return Peak(static, total - static)


def _model(run: Any, rank: int, device: Any) -> tuple[Any, Any]:
    from megads.comm.grid import Grid
    from megads.comm.groups import make_groups
    from megads.config.stages import stage_steps
    from megads.engine.build import DTYPES
    from megads.engine.deepspeed.recompute import make_recompute
    from megads.models.build import model_class
    from megads.parallel.tensor import placed

    grid = run.parallel
    groups = make_groups(Grid(grid.pipeline, grid.data, grid.sequence, grid.tensor), rank)
    with placed(device, DTYPES[run.train.dtype]):
        return model_class(run.model)(
            run.model,
            groups,
            steps=stage_steps(run)[groups.pipe_rank],
            scatter_norms=grid.scatter_norms,
            recompute=make_recompute(run, groups, device),
        ), groups


def _sum_gradients(model: Any) -> list[Any]:
    """Add every gradient to a float32 sum when it is there, as the engine does, and let go of it."""
    import torch

    sums = []
    for parameter in model.parameters():
        total = torch.empty(parameter.shape, dtype=torch.float32, device=parameter.device)

        def add(parameter: Any, total: Any = total) -> None:
            total.add_(parameter.grad)
            parameter.grad = None

        parameter.register_post_accumulate_grad_hook(add)
        sums.append(total)
    return sums


def _pass(model: Any, run: Any, groups: Any, device: Any, tracker: Any) -> None:
    import torch

    length = run.model.seq_length // run.parallel.sequence
    shape = (run.train.micro_batch, length)
    tokens = torch.zeros(shape, dtype=torch.int64, device=device)
    in_flight = min(run.train.grad_acc_steps, groups.pipe_size - groups.pipe_rank)
    outputs = []
    for _ in range(in_flight):
        x = tokens
        if not model.has_embedding:
            boundary = model.boundary(*shape)
            x = torch.empty(boundary, dtype=next(model.parameters()).dtype, device=device, requires_grad=True)
        tracker.reset_mod_stats()  # it follows one forward pass of a module, and only the sum counts here
        outputs.append(model(x, tokens) if model.has_head else model(x))
    first = outputs.pop(0)
    first.backward(torch.empty_like(first))
