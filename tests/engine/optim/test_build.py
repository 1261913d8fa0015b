"""Every optimizer that a CPU can run, in every layout, against the library's own class on one rank.

Gradients are scripted (``tests.engine.scripted``), so that every layout gets the same bits and nothing but the
optimizer is compared: what it is handed, what it makes of it, and where that goes. Nearly every case is equal
to the last bit; up to 2e-7 is left where a fused loop begins with another number of its vector. So the bound
of 1e-6 holds for Newton-Schulz in bf16 (muon) and for signs (lion), too.
"""

from __future__ import annotations

import importlib.util
import random
from functools import cache

import pytest
import torch

from megads.config.optimizers import OPTIMIZERS
from tests.pairs import SEED
from tests.parity.layouts import Layout
from tests.ranks import run_ranks

HERE = [
    name
    for name, row in OPTIMIZERS.items()
    if "cpu" in row.devices
    and not row.on_host
    and name != "sophiag"  # its Hessian is of real gradients: tests/engine/optim/test_sophia.py
    and all(importlib.util.find_spec(need.module) for need in row.needs)
]
WHOLE = [name for name in HERE if OPTIMIZERS[name].is_whole]
STEPS = 50
WAIT = 300  # seconds; the first import of a library takes long on a busy host
SETTINGS = {"optim.galore_rank": "4", "optim.galore_interval": "20", "optim.muon_ns_steps": "3"}
# Below 4096 numbers moments stay in 32 bits.
LARGER = {"adam8bit": {"model.hidden_size": "64", "model.head_dim": "16", "model.ffn_hidden_size": "64"}}

ONE, FOUR = {"train.micro_batch": "4"}, {"train.micro_batch": "1"}
"""Micro-batches a step on two data-parallel ranks."""
ALL = {"train.micro_batch": "8"}
PIECES = {"deepspeed.param_persistence_threshold": "0"}
OFFLOAD = {"deepspeed.offload_optimizer": "cpu"}
LAYOUTS = [
    Layout("gpt", tp=2, zero=1, more=ALL),
    Layout(dp=2, zero=3, more={**ONE, **PIECES}),
]
MORE = [
    Layout(dp=2, zero=0, more=FOUR),
    Layout(dp=2, zero=1, more=ONE),
    Layout(dp=2, zero=2, more=ONE),
    Layout(tp=2, zero=0, more={"train.micro_batch": "2"}),
]
FURTHER = [
    Layout(dp=2, zero=1, more=FOUR),
    Layout("llama-tied", pp=2, zero=1),
    Layout(dp=2, zero=1, more={**ONE, **OFFLOAD}),
    Layout(dp=2, zero=3, more={**ONE, **PIECES, **OFFLOAD, "deepspeed.offload_params": "cpu"}),
    Layout(dp=2, zero=3, more={**FOUR, **PIECES, "deepspeed.sub_group_size": "700"}),
    Layout(dp=2, zero=1, more={**ONE, "train.dtype": "bf16"}),
    Layout(dp=2, zero=2, more={**ONE, "train.dtype": "fp16", "optim.loss_scale": "1"}),
    Layout(tp=2, dp=2, zero=1, more=ONE),
    Layout("gpt", tp=2, dp=2, zero=3, more={**ONE, **PIECES}),
    Layout(tp=2, pp=2, zero=0),
    Layout(sp=2, dp=2, zero=2, more=ONE),
    Layout(dp=4, zero=3, more={"train.micro_batch": "2", **PIECES, "deepspeed.hpz_partition_size": "2"}),
]
AGAIN = {"optim.galore_interval": "4", "optim.soap_interval": "4", "optim.shampoo_interval": "4"}
"""What is computed at intervals, often enough for a short run."""
FEW = 10


def _more(name: str) -> list[Layout]:
    """Return all for rules that need whole parameters; the others step what they are handed, so half is drawn."""
    return MORE if name in WHOLE else sorted(random.Random(f"{SEED}/{name}").sample(MORE, 2), key=str)


NATIVE = [
    Layout("gpt", tp=2, zero=1, more=ALL).on("native"),
    *(Layout(dp=2, zero=stage, more=ONE).on("native") for stage in (0, 1, 2, 3)),
]
CASES = [
    *((name, layout) for name in HERE for layout in _more(name)),
    # Of each way to be stepped one: as ZeRO hands numbers out, with counters of groups, and as whole matrices.
    *((name, layout) for name in HERE if name in ("adamwschedulefree", "muon") for layout in FURTHER),
    *((name, layout) for name in ("adamwschedulefree", "muon") if name in HERE for layout in NATIVE),
]


def changes_of(name: str) -> dict[str, str]:
    return {"optim.optimizer": name, **SETTINGS, **LARGER.get(name, {})}


def equals_the_library(layout: Layout, name: str, steps: int, more: dict[str, str]) -> None:
    from megads.engine.optim import whole_parameters as whole
    from tests.engine.scripted import Scripted, reference

    whole.AT_ONCE = 700  # so that parameters go in several rounds
    changes = {**changes_of(name), "model.num_layers": str(layout.pp), **more}
    scripted = Scripted(layout, **changes)
    scripted.train(steps)
    expected = reference(layout.kind, steps, **{"train.dtype": layout.more.get("train.dtype", "fp32"), **changes})
    worst = max(scripted.differences(expected), key=lambda each: each[1])
    assert worst[1] <= 1e-6, worst


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", HERE)
def test_fifty_steps_are_those_of_the_library(name, layout):
    run_ranks(layout.ranks, equals_the_library, layout, name, STEPS, {}, timeout_s=WAIT)


@pytest.mark.parametrize("name", HERE)
def test_steps_of_the_native_engine_are_those_of_the_library(name):
    """Of every optimizer in one layout; in all of them those that :data:`CASES` has."""
    layout = NATIVE[(HERE.index(name) + SEED) % len(NATIVE)]
    run_ranks(layout.ranks, equals_the_library, layout, name, FEW, AGAIN, timeout_s=WAIT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout"), CASES, ids=lambda each: each if isinstance(each, str) else f"{each}-seed{SEED}"
)
def test_steps_in_further_layouts_are_those_of_the_library(name, layout):
    run_ranks(layout.ranks, equals_the_library, layout, name, FEW, AGAIN, timeout_s=WAIT)


# What would be wrong


def stepped(name: str, pieces: list[torch.Tensor], gradients: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    from megads.engine.optim.build import maker

    optim = Layout().run(**changes_of(name), **{"optim.lr": "1e-2"}).optim
    weights = [torch.nn.Parameter(piece.clone()) for piece in pieces]
    group = {"params": weights, "weight_decay": 0.1, **OPTIMIZERS[name].matrix_arguments(optim)}
    optimizer = maker(name, optim)([group])
    for step in gradients:
        for weight, gradient in zip(weights, step, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()
    return [weight.detach() for weight in weights]


@pytest.mark.parametrize("name", WHOLE)
def test_a_part_of_a_matrix_is_not_stepped_alike(name):
    """What these tests must be able to tell: a tensor-parallel slice, or ZeRO's partition, stepped by itself."""
    generator = torch.Generator().manual_seed(4)
    size = (96, 64)
    start = torch.randn(size, generator=generator)
    gradients = [torch.randn(size, generator=generator) for _ in range(12)]
    (whole,) = stepped(name, [start], [[gradient] for gradient in gradients])
    for cut in ((lambda x: list(x.split([37, 59]))), (lambda x: list(x.split([23, 41], dim=1)))):
        parts = stepped(name, cut(start), [cut(gradient) for gradient in gradients])
        differences = [float((a - b).abs().max()) for a, b in zip(cut(whole), parts, strict=True)]
        assert max(differences) > 1e-4 * float(start.abs().max())


def leaves_biases_and_norms_alone(name: str) -> None:
    from tests.engine.scripted import Scripted

    scripted = Scripted(Layout("gpt"), **changes_of(name), **{"optim.weight_decay": "0.5"})
    scripted.factor = 0.0
    before = {state.name: state.tensors["weight"].clone() for state in scripted.engine.state.by_parameter()}
    scripted.train(2)
    moved = {
        state.name
        for state in scripted.engine.state.by_parameter()
        if not torch.equal(state.tensors["weight"], before[state.name])
    }
    assert moved == {each for each, weight in before.items() if weight.dim() == 2}
    assert len(moved) < len(before)


@pytest.mark.parametrize("name", [*HERE, "sophiag"])
def test_only_matrices_decay(name):
    """Gradients are 0, so what moves has decayed."""
    run_ranks(1, leaves_biases_and_norms_alone, name, timeout_s=WAIT)


# Real gradients

RATE = 1e-3
EXACT = 1e-6
AMPLIFY = {"muon": 5e-5, "adam8bit": 5e-4, "soap": 5e-3}
"""Of the first loss; for those that a last bit may take elsewhere."""


@cache
def plain_steps(kind: str, changes: tuple[tuple[str, str], ...]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return losses and weights of one rank; not to be changed: they are kept."""
    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.models.build import build_model
    from tests.engine.plain import plain_optimizer
    from tests.parity.layouts import VOCAB, batches

    run = Layout(kind).run(**dict(changes))
    model = build_model(run, Groups(Grid(), 0))
    optimizer = plain_optimizer(model, run)
    for group in optimizer.param_groups:
        group["lr"] = RATE
    losses = []
    for step in range(STEPS):
        (batch,) = batches(run, step, 0)
        logits = model(batch[:, :-1])[..., :VOCAB]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        losses.append(float(loss.detach()))
        torch.nn.utils.clip_grad_norm_(model.parameters(), run.optim.clip_grad)
        optimizer.step()
        optimizer.zero_grad()
    return losses, {name: weight.detach() for name, weight in model.named_parameters()}


def trains_as_one_rank(layout: Layout, name: str, bound: float) -> None:
    from megads.parallel.tensor import take_shard
    from tests.engine.scripted import SMALL
    from tests.parity.layouts import engine_of, train_on

    changes = {**SMALL, **changes_of(name), "model.num_layers": "1"}
    losses, weights = plain_steps(layout.kind, tuple({**changes, **ALL}.items()))
    engine, run, groups = engine_of(layout, **changes)
    results = train_on(engine, run, groups, range(STEPS), lambda step: RATE)
    off = [float(ours.loss) - theirs for ours, theirs in zip(results, losses, strict=True)]
    found = {}
    for state in engine.state.by_parameter():
        shard = getattr(state.parameter, "shard", None)
        wanted = take_shard(weights[state.name], shard, groups.tensor_rank, groups.tensor_size)
        found[state.name] = float((state.tensors["weight"] - wanted).abs().max() / weights[state.name].abs().max())
    assert max(map(abs, off)) / losses[0] <= bound
    if bound == EXACT:
        assert max(found.values()) <= bound, max(found.items(), key=lambda each: each[1])
    assert losses[-1] < losses[0] - 0.1


REAL = [
    *((name, Layout(tp=2, zero=1, more=ALL)) for name in HERE),
    # Those that get whole matrices, and of the others one: ZeRO 3 hands all of them the same pieces.
    *((name, Layout(dp=2, zero=3, more={**PIECES, **ONE})) for name in HERE if name in (*WHOLE, "adamw")),
]


@pytest.mark.parametrize(("name", "layout"), REAL, ids=str)
def test_fifty_real_steps_are_those_of_one_rank(name, layout):
    """Losses and weights of real training, within 1e-6 of the largest, but for three.

    Other layouts add up in another order, and some rules make much of the last bit of a gradient. After 50 steps
    losses were apart by 4e-6 with muon (its iteration is in bf16), 4e-5 with adam8bit (a moment at the border
    of two of 256 values) and 8e-4 with soap (eigenvectors of what is nearly one eigenvalue turn freely), so
    these have wider bounds here; that they are the library's is shown with scripted gradients above.
    """
    run_ranks(2, trains_as_one_rank, layout, name, AMPLIFY.get(name, EXACT), timeout_s=WAIT)
