"""Whether this device computes what the CPU computes: operations, then losses of a short training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from megads.bench.models import LEARNING_RATE, TINY, make, release, settings, tokens, train
from megads.bench.results import PartResult
from megads.bench.session import DTYPES, Bench, MeasurementFailed
from megads.cluster.machine import cpu_computes_fp16
from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.schema import RunConfig
from megads.engine.optim.build import maker, parameter_groups
from megads.models.build import build_model

OPERATION_TOLERANCE = {"fp32": 2e-5, "tf32": 2e-3, "bf16": 2e-2, "fp16": 3e-3}
"""Of a result or a gradient: norm of the difference over norm of the reference, float64 on the CPU."""

SUMMED = {"layer_norm": 2.0}
"""Operations with more tolerance: the CPU's kernel sums gradients of weight and bias in bf16 itself, over all rows."""

LOSS_TOLERANCE = {"fp32": 2e-5, "tf32": 2e-3, "bf16": 5e-3, "fp16": 2e-3}
"""Largest difference of a step's loss from plain torch in float64 on the CPU."""

NORM_TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 2e-2, "fp16": 5e-3}
"""Largest relative difference of a step's gradient norm; it sees what hardly moves the loss of random tokens."""

STEPS = {"tiny": 4, "full": 10}


def measure(bench: Bench, result: PartResult) -> None:
    """Add a row for every dtype and check. Collective."""
    for dtype in _dtypes(bench, result):
        for name, call, inputs in operations(8 if bench.is_tiny else 64):
            bench.notify(f"{name} in {dtype}")
            try:
                error = max(bench.on_all(partial(difference, bench, dtype, call, inputs)))
            except MeasurementFailed as problem:
                result.wrong.append(f"{name} in {dtype}: {problem}")
                continue
            _judge(bench, result, name, dtype, error, OPERATION_TOLERANCE)
        bench.notify(f"losses in {dtype}")
        try:
            losses, norms = _training_differences(bench, dtype)
        except MeasurementFailed as problem:
            result.wrong.append(f"training in {dtype}: {problem}")
            continue
        steps = STEPS["tiny" if bench.is_tiny else "full"]
        _judge(bench, result, f"losses of {steps} steps", dtype, losses, LOSS_TOLERANCE)
        _judge(bench, result, f"gradient norms of {steps} steps", dtype, norms, NORM_TOLERANCE)
        release(bench)


def _dtypes(bench: Bench, result: PartResult) -> tuple[str, ...]:
    if bench.is_cpu and not cpu_computes_fp16():
        result.notes.append("fp16 skipped: this CPU has no fp16 arithmetic")
        return ("fp32", "bf16")
    return ("fp32", "bf16", "fp16")


def _judge(
    bench: Bench, result: PartResult, name: str, dtype: str, error: float, tolerances: Mapping[str, float]
) -> None:
    tolerance = tolerances[bench.vendor.product_dtype(dtype)] * SUMMED.get(name, 1.0)
    is_right = error <= tolerance  # False for nan
    result.rows.append(
        {"check": name, "dtype": dtype, "difference": error, "tolerance": tolerance, "equal": bool(is_right)}
    )
    if not is_right:
        result.wrong.append(f"{name} in {dtype} differ by {error:.2g}; the tolerance is {tolerance:g}")


def operations(width: int) -> Iterator[tuple[str, Callable[..., Tensor], tuple[Tensor, ...]]]:
    """Yield name, function and float64 inputs of the operations of a layer, of ``width`` channels and more."""
    draw = torch.Generator().manual_seed(7)

    def new(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    rows = 3 * width
    yield "matmul", lambda a, b: a @ b.t(), (new(rows, 2 * width), new(width, 2 * width))
    heads = (2, 4, rows, 16)
    yield "attention", lambda q, k, v: _attend(q, k, v), tuple(new(*heads) for _ in range(3))
    yield "grouped attention", lambda q, k, v: _attend(q, k, v), (new(*heads), *(new(2, 2, rows, 16) for _ in "kv"))
    yield "rms_norm", lambda x, w: F.rms_norm(x, (width,), w, 1e-5), (new(rows, width), new(width))
    yield "layer_norm", lambda x, w, b: F.layer_norm(x, (width,), w, b), (new(rows, width), new(width), new(width))
    yield "swiglu", lambda x, y: F.silu(x) * y, (new(rows, width), new(rows, width))
    targets = torch.randint(0, width, (rows,), generator=draw)
    yield "cross_entropy", lambda x: F.cross_entropy(x.float() if x.dtype != torch.float64 else x,
                                                     targets.to(x.device)), (new(rows, width),)  # fmt: skip


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def difference(bench: Bench, dtype: str, call: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> float:
    """Return the largest relative difference of the result and the gradients from float64 on the CPU.

    The reference gets the same rounded inputs, and the same rounded gradient of the result.
    """
    rounded = [each.to(DTYPES[dtype]) for each in inputs]
    ours = [each.to(bench.device).requires_grad_() for each in rounded]
    theirs = [each.double().requires_grad_() for each in rounded]
    result, expected = call(*ours), call(*theirs)
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    upstream = upstream.to(result.dtype)
    found = (result, *torch.autograd.grad(result, ours, upstream.to(bench.device)))
    wanted = (expected, *torch.autograd.grad(expected, theirs, upstream.double()))
    pairs = [(a.detach().double().cpu(), b.detach()) for a, b in zip(found, wanted, strict=True)]
    errors = [float((a - b).norm() / b.norm()) for a, b in pairs]
    return _largest(errors)


def _training_differences(bench: Bench, dtype: str) -> tuple[float, float]:
    """Return the largest differences of losses and norms between the engine here and plain torch. Collective."""
    steps = STEPS["tiny" if bench.is_tiny else "full"]
    run = settings(bench.root, bench.world_size, TINY, dtype)
    engine = bench.on_all_kept(lambda: make(bench, run))
    found = bench.on_all(lambda: [[float(step.loss), step.grad_norm] for step in train(bench, engine, run, steps)])[0]
    expected = bench.on_all(lambda: reference(run, steps) if bench.groups.rank == 0 else [])[0]
    pairs = list(zip(found, expected, strict=True))
    losses = [abs(ours[0] - theirs[0]) for ours, theirs in pairs]
    norms = [abs(ours[1] - theirs[1]) / theirs[1] for ours, theirs in pairs]
    return _largest(losses), _largest(norms)


def _largest(errors: list[float]) -> float:
    return math.inf if any(math.isnan(each) for each in errors) else max(errors)


def reference(run: RunConfig, steps: int) -> list[list[float]]:
    """Return loss and gradient norm of every step of ``run`` in plain torch: one rank, the CPU, float64, no engine."""
    alone = run.model_copy(update={"parallel": run.parallel.model_copy(update={"data": 1})})
    model = build_model(alone, Groups(Grid(), 0)).double()
    optimizer = maker(run.optim.optimizer, run.optim)(parameter_groups(model, alone))
    found = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE
        batches = [batch for rank in range(run.parallel.data) for batch in tokens(run, step, rank)]
        total = 0.0
        for batch in batches:
            loss = model(batch[:, :-1], batch[:, 1:]) / len(batches)
            loss.backward()
            total += float(loss.detach())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), run.optim.clip_grad or math.inf)
        found.append([total, float(norm)])
        optimizer.step()
        optimizer.zero_grad()
    return found
