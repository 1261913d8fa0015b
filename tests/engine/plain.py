"""A loop anyone can read (plain torch, one rank, float32), engines on small models, and how they are compared."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from tests.ranks import groups_of

CLIP = 0.3  # gradient norms are about 1, so clipping acts at every step
STEPS, HALF = 4, 2
"""Of a run, and after which another engine goes on."""
ENGINES = ("deepspeed", "native")
NATIVE = {"engine.kind": "native"}
"""Settings of a run on the second of :data:`ENGINES`; without them tests run the first."""


OF_DEEPSPEED = ("param_persistence_threshold", "sub_group_size", "prefetch_bucket_size", "max_live_parameters")
"""Settings that cut what ZeRO 3 of DeepSpeed handles at once; the native engine has nothing to cut."""


def without_engine(changes: Mapping[str, str]) -> dict[str, str]:
    """Return ``changes`` without :data:`OF_DEEPSPEED`."""
    return {name: value for name, value in changes.items() if name not in {f"deepspeed.{key}" for key in OF_DEEPSPEED}}


def on(engine: str, changes: Mapping[str, str]) -> dict[str, str]:
    """Return ``changes`` for a run on ``engine``, one of :data:`ENGINES`."""
    return {**(without_engine(changes) if engine == "native" else changes), "engine.kind": engine}


def settings(grid: dict[str, int], **changes: str) -> RunConfig:
    """Return a derived run of 8 samples a step on ``grid``."""
    data, ranks = grid.get("data", 1), math.prod(grid.values())
    overrides = {
        "model.num_layers": "2",
        "model.hidden_size": "32",
        "model.num_heads": "4",
        "model.num_kv_heads": "4",
        "model.seq_length": "16",
        "train.micro_batch": "2",
        "train.global_batch": "8",
        "train.grad_acc_steps": str(4 // data),
        "train.train_iters": "20",
        "train.dtype": "fp32",
        "parallel.tensor": str(grid.get("tensor", 1)),
        "parallel.pipeline": str(grid.get("pipe", 1)),
        "parallel.sequence": str(grid.get("seq", 1)),
        "optim.clip_grad": str(CLIP),
        "engine.kind": "deepspeed",
        **changes,
    }
    asked = resolve(None, env={}, overrides=overrides, machine="generic", root=Path(__file__).parents[2])
    return derive(asked, num_hosts=1, ranks_per_host=ranks, vocab_size=100).run


def in_halves(grid: Mapping[str, int], changes: Mapping[str, str]) -> dict[str, str]:
    """Return ``changes`` with two micro-batches a step in place of four, where no stages need more."""
    if "pipe" in grid or grid.get("data", 1) > 1:
        return dict(changes)
    return {"train.micro_batch": "4", "train.grad_acc_steps": "2", **changes}


def batches(run: RunConfig, step: int, data_rank: int):
    """Return this data rank's micro-batches of ``step``: the same 8 samples on every grid."""
    import torch

    generator = torch.Generator().manual_seed(step)
    samples = torch.randint(0, 100, (8, run.model.seq_length + 1), generator=generator)
    size = run.train.micro_batch
    blocks = samples.view(run.train.grad_acc_steps, run.parallel.data, size, -1)
    return [block[data_rank] for block in blocks]


def rate(step: int) -> float:
    return 1e-2 * (step + 1) / 6


class Together:
    """Several optimizers as one."""

    def __init__(self, optimizers: list[Any]):
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[Any]:
        return [group for each in self.optimizers for group in each.param_groups]

    def step(self) -> None:
        for each in self.optimizers:
            each.step()

    def zero_grad(self) -> None:
        for each in self.optimizers:
            each.zero_grad()


def plain_optimizer(model: Any, run: RunConfig) -> Together:
    """Return the library's own classes with the options of ``run``, on whole parameters; rates are set step by step."""
    from megads.config.optimizers import OPTIMIZERS
    from megads.engine.optim.build import MATRICES, maker, parameter_groups

    name = run.optim.optimizer
    row = OPTIMIZERS[name]
    made = []
    for group in parameter_groups(model, run):
        is_left = row.rest and group["label"] != MATRICES and not row.matrix_options
        more = row.matrix_arguments(run.optim) if group["label"] == MATRICES else {}
        made.append(maker("adamw" if is_left else name, run.optim)([{**group, **more}]))
        if row.is_averaged:
            made[-1].train()
    return Together(made)


def plain_loop(run: RunConfig):
    """Return losses, norms and weights of a plain torch loop on one rank; not to be changed: they are kept."""
    key = repr(run)
    if key not in _plain_loops:
        _plain_loops[key] = _plain_loop(run)
    return _plain_loops[key]


_plain_loops: dict[str, tuple[list[float], list[float], dict[str, Any]]] = {}


def _plain_loop(run: RunConfig):
    import torch

    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.models.build import build_model

    model = build_model(run, Groups(Grid(), 0))
    optimizer = plain_optimizer(model, run)
    losses, norms = [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        parts = batches(run, step, 0)
        total = 0.0
        for part in parts:
            loss = model(part[:, :-1], part[:, 1:]) / len(parts)
            loss.backward()
            total += float(loss.detach())
        losses.append(total)
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), run.optim.clip_grad or 1e9)))
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms, dict(model.named_parameters())


def train(engine, run, groups, first=0, last=STEPS):
    return [engine.train_step(batches(run, step, groups.data_rank), rate(step)) for step in range(first, last)]


def eval_loss(engine: Any, parts: list[Any]) -> Any:
    """Return the mean loss over the counted tokens of ``parts`` on all ranks."""
    total, count = engine.eval_losses(parts).sum(dim=0)
    return total / count.clamp(min=1)


def make_engine(run: RunConfig, groups: Any, *, eod: int | None = None) -> Any:
    """Return the engine, as a run makes it."""
    let_fp16_run()
    import torch

    from megads.engine.build import make_engine

    return make_engine(run, groups, torch.device("cpu"), eod)


def let_fp16_run() -> None:
    """Half precision computes on every CPU, only slowly; DeepSpeed asks for the fast instructions."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    CPU_Accelerator.is_fp16_supported = lambda self: True


def saved(engine: Any) -> dict[str, dict[str, Any]]:
    return {state.name: {kind: t.clone() for kind, t in state.tensors.items()} for state in engine.state.by_parameter()}


def take_over(engine: Any, other: Any) -> None:
    """Have ``engine`` resume from where ``other``, of the same tensor-parallel slices and stage, is."""
    whole = saved(other)
    for piece in engine.state.owned_shards():
        for kind, tensor in piece.tensors.items():
            tensor.copy_(whole[piece.name][kind].flatten()[piece.first : piece.first + piece.count])
    engine.state.sync_from_masters()
    engine.state.load_scalars(other.state.scalars())


def working_weights(engine: Any) -> list[Any]:
    """Return the weights that the next forward pass computes with, in the order of the model. Collective."""
    return list(working(engine).values())


def working(engine: Any) -> dict[str, Any]:
    """Return the weights that the next forward pass computes with, by name. Collective."""
    chunks = getattr(engine, "chunks", [engine.module])
    named = {name: parameter for chunk in chunks for name, parameter in chunk.named_parameters()}
    found = {}
    for unit in getattr(engine, "units", ()):
        whole = engine.gatherer.whole(unit)
        found |= {place.name: place.of(whole).clone() for place in unit.places}
    return {name: found[name] if name in found else _working(weight) for name, weight in named.items()}


def _working(parameter: Any) -> Any:
    import torch.distributed as dist

    from megads.engine.base import whole_shape

    if not hasattr(parameter, "ds_tensor"):
        return parameter.detach().clone()
    group = parameter.ds_process_group
    pieces = parameter.ds_tensor.new_empty(parameter.ds_tensor.numel() * dist.get_world_size(group))
    dist.all_gather_into_tensor(pieces, parameter.ds_tensor, group=group)
    return pieces[: parameter.ds_numel].view(whole_shape(parameter))


def trains_like_one_rank(grid: dict[str, int], changes: dict[str, str]) -> None:
    """Check losses, norms and weights of ``grid`` against the plain loop on a model of the same kind."""
    import torch

    from megads.parallel.tensor import take_shard

    run, groups = settings(grid, **in_halves(grid, changes)), groups_of(**grid)
    model = {name: value for name, value in changes.items() if name.startswith("model.")}
    losses, norms, weights = plain_loop(settings({}, **model))
    engine = make_engine(run, groups)
    results = train(engine, run, groups)
    assert [float(r.loss) for r in results] == pytest.approx(losses, rel=1e-5)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=1e-4)
    assert min(norms) > CLIP
    assert not any(r.skipped for r in results)
    used = working(engine)
    for state in engine.state.by_parameter():
        whole = weights[state.name].detach()
        local = take_shard(whole, state.parameter.shard, groups.tensor_rank, groups.tensor_size)
        torch.testing.assert_close(state.tensors["weight"], local, rtol=1e-4, atol=2e-6)
        torch.testing.assert_close(used[state.name], state.tensors["weight"], rtol=0, atol=0)


def goes_on_bitwise(grid: dict[str, int], changes: dict[str, str]) -> None:
    """Check that an engine filled with another one's state continues as that one does."""
    import torch

    run, groups = settings(grid, **in_halves(grid, changes)), groups_of(**grid)
    whole = make_engine(run, groups)
    expected = train(whole, run, groups)
    first = make_engine(run, groups)
    train(first, run, groups, 0, HALF)
    second = make_engine(run, groups)
    take_over(second, first)
    rest = train(second, run, groups, HALF, STEPS)
    for ours, theirs in zip(rest, expected[HALF:], strict=True):
        assert float(ours.loss) == float(theirs.loss)
        assert ours.grad_norm == theirs.grad_norm
    for ours, theirs in zip(second.state.by_parameter(), whole.state.by_parameter(), strict=True):
        for kind, tensor in theirs.tensors.items():
            assert torch.equal(ours.tensors[kind], tensor), f"{ours.name} {kind}"
    assert second.state.scalars() == whole.state.scalars()
