"""Sophia-G against the paper's algorithms 2 and 3 (arXiv 2305.14342), alone and in every layout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from megads.engine.optim.sophia import SophiaG, uniforms
from tests.engine.scripted import SMALL
from tests.parity.layouts import VOCAB, Layout, batches, engine_of, rate
from tests.ranks import run_ranks

INTERVAL, STEPS = 3, 5
SOPHIA = {
    **SMALL,
    "optim.optimizer": "sophiag",
    "optim.sophia_interval": str(INTERVAL),
    # Large enough that few updates are clipped; at a clip only a sign is left to compare.
    "optim.sophia_rho": "10",
    "optim.clip_grad": "0.3",
}


def algorithm_3(weight, gradients, hessians, lr, betas, rho, decay) -> Iterator[Any]:
    """Yield the weights after each step, all in float64; ``hessians[t]`` is the estimate of step t or None."""
    w, m, h = weight.double().clone(), torch.zeros_like(weight).double(), torch.zeros_like(weight).double()
    for gradient, estimate in zip(gradients, hessians, strict=True):
        m = betas[0] * m + (1 - betas[0]) * gradient.double()
        if estimate is not None:
            h = betas[1] * h + (1 - betas[1]) * estimate.double()
        w = w - lr * decay * w
        w = w - lr * torch.clamp(m / torch.clamp(rho * h, min=1e-15), -1, 1)
        yield w


def test_the_steps_are_those_of_the_paper():
    generator = torch.Generator().manual_seed(2)
    lr, betas, rho, decay, tokens = 0.02, (0.9, 0.95), 0.5, 0.1, 64
    start = torch.randn(6, 5, generator=generator)
    gradients = [torch.randn(6, 5, generator=generator) for _ in range(12)]
    drawn = [torch.randn(6, 5, generator=generator) / 8 if i % INTERVAL == 0 else None for i in range(12)]
    weight = torch.nn.Parameter(start.clone())
    optimizer = SophiaG([weight], lr, betas, rho, decay)
    expected = algorithm_3(start, gradients, [d if d is None else tokens * d * d for d in drawn], lr, betas, rho, decay)
    clipped = 0
    for gradient, estimate, wanted in zip(gradients, drawn, expected, strict=True):
        if estimate is not None:
            before = weight.detach().clone()
            weight.grad, optimizer.tokens = estimate, tokens
            optimizer.step()
            optimizer.tokens = 0
            assert torch.equal(before, weight.detach())
        weight.grad = gradient.clone()
        optimizer.step()
        torch.testing.assert_close(weight.detach().double(), wanted, rtol=0, atol=1e-6)
        state = optimizer.state[weight]
        clipped += int((state["exp_avg"].abs() > rho * state["hessian"]).sum())
    assert 0 < clipped < 12 * 30, "both sides of the clip are to be seen"
    assert float(optimizer.state[weight]["step"]) == 12
    assert set(optimizer.state[weight]) == {"step", "exp_avg", "hessian"}


def test_numbers_of_a_sample_are_its_own():
    whole = uniforms((7, 3), range(6), 10)
    assert torch.equal(whole[2:5], uniforms((7, 3), range(2, 5), 10))
    assert torch.equal(whole[:, :4], uniforms((7, 3), range(6), 4))
    assert whole.min() >= 0
    assert whole.max() < 1
    for other in (uniforms((7, 4), range(6), 10), uniforms((8, 3), range(6), 10), uniforms((7, 3), range(6, 12), 10)):
        assert not torch.equal(whole, other)


def plain(kind: str) -> tuple[list[float], dict[str, dict[str, Any]]]:
    """Return losses and state of the paper's loop on one rank: no engine, labels by torch's own search."""
    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.engine.optim.build import parameter_groups
    from megads.models.build import build_model

    run = Layout(kind).run(**{"train.micro_batch": "8"}, **SOPHIA)
    model = build_model(run, Groups(Grid(), 0))
    optim = run.optim
    names = {weight: name for name, weight in model.named_parameters()}
    decays = {names[w]: g["weight_decay"] for g in parameter_groups(model, run) for w in g["params"]}
    found = {n: {"exp_avg": torch.zeros_like(w), "hessian": torch.zeros_like(w)} for w, n in names.items()}
    losses = []
    for step in range(STEPS):
        (batch,) = batches(run, step, 0)
        tokens, labels = batch[:, :-1], batch[:, 1:]
        if step % INTERVAL == 0:
            logits = model(tokens)[..., :VOCAB]
            ends = logits.detach().double().softmax(dim=-1).cumsum(dim=-1)
            numbers = uniforms((run.train.seed, step), range(len(tokens)), tokens.shape[1])
            drawn = torch.searchsorted(ends, numbers.unsqueeze(-1), right=True).clamp(max=VOCAB - 1).flatten()
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), drawn).backward()
            for name, weight in model.named_parameters():
                h = found[name]["hessian"]
                h.copy_(optim.sophia_beta2 * h + (1 - optim.sophia_beta2) * tokens.numel() * weight.grad**2)
            model.zero_grad()
        logits = model(tokens)[..., :VOCAB]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        losses.append(float(loss.detach()))
        torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip_grad)
        for name, weight in model.named_parameters():
            m, h = found[name].values()
            m.copy_(optim.sophia_beta1 * m + (1 - optim.sophia_beta1) * weight.grad)
            update = torch.clamp(m / torch.clamp(optim.sophia_rho * h, min=1e-15), -1, 1)
            with torch.no_grad():
                weight.mul_(1 - rate(step) * decays[name]).sub_(rate(step) * update)
        model.zero_grad()
    for weight, name in names.items():
        found[name]["weight"] = weight.detach()
    return losses, found


def follows_the_paper(layout: Layout) -> None:
    from megads.parallel.tensor import take_shard

    losses, expected = plain(layout.kind)
    engine, run, groups = engine_of(layout, **SOPHIA)
    hessians = None
    for step in range(STEPS):
        result = engine.train_step(batches(run, step, groups.data_rank), rate(step))
        assert float(result.loss) == pytest.approx(losses[step], rel=2e-5)
        found = {state.name: state.tensors["hessian"].clone() for state in engine.state.by_parameter()}
        if hessians is not None:
            has_moved = any(not torch.equal(found[name], old) for name, old in hessians.items())
            assert has_moved == (step % INTERVAL == 0), f"step {step}"
        hessians = found
    assert engine.state.scalars()["optimizer_step"] == STEPS
    if layout.engine == "deepspeed":
        assert engine.engine.global_steps == STEPS
        assert engine.engine.global_samples == STEPS * engine.engine.train_batch_size()
    assert engine.state.scalars()["skipped_steps"] == 0
    for state in engine.state.by_parameter():
        for kind, wanted in expected[state.name].items():
            shard = getattr(state.parameter, "shard", None)
            mine = take_shard(wanted, shard, groups.tensor_rank, groups.tensor_size)
            difference = float((state.tensors[kind] - mine).abs().max() / wanted.abs().max())
            assert difference < (5e-4 if kind == "weight" else 1e-4), f"{state.name} {kind} {difference:.2g}"


# Without biases: that of a key has no gradient but rounding, of which a clip to 1 makes all.
LAYOUTS = [
    Layout(dp=2, zero=0, more={"train.micro_batch": "1"}),
    Layout("gqa", tp=2, zero=1),
    Layout(dp=2, zero=2),
    Layout(dp=2, zero=3, more={"deepspeed.param_persistence_threshold": "0"}),
    Layout(pp=2, zero=1),
    Layout(sp=2, zero=1),
    pytest.param(Layout(tp=2, dp=2, zero=1), marks=pytest.mark.slow),
    pytest.param(Layout("llama-tied", pp=2, tp=2, zero=0), marks=pytest.mark.slow),
    pytest.param(Layout(dp=2, zero=1, more={"deepspeed.offload_optimizer": "cpu"}), marks=pytest.mark.slow),
    Layout("gqa", tp=2, zero=1).on("native"),
    Layout(dp=2, zero=3).on("native"),
    pytest.param(Layout(sp=2, dp=2, zero=0, more={"train.micro_batch": "1"}).on("native"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout_follows_the_paper(layout):
    run_ranks(layout.ranks, follows_the_paper, layout, timeout_s=300)


def runs_in_half_precision(dtype: str, engine_kind: str) -> None:
    """The loss falls, the Hessian is there, and looking at it moves neither scale nor counters."""
    layout = Layout(dp=2, zero=1, engine=engine_kind)
    more = {"train.dtype": dtype, "optim.initial_loss_scale_power": "8", "optim.loss_scale_window": "1000"}
    engine, run, groups = engine_of(layout, **SOPHIA, **more)
    losses = []
    for _ in range(STEPS):
        scale = engine.loss_scale
        result = engine.train_step(batches(run, 0, groups.data_rank), 1e-2)
        assert not result.skipped
        assert engine.loss_scale == scale
        losses.append(float(result.loss))
    assert losses[-1] < losses[0] - 0.05
    assert engine.state.scalars().get("scaler.cur_iter", STEPS) == STEPS
    for state in engine.state.by_parameter():
        assert float(state.tensors["hessian"].max()) > 0, state.name
        assert torch.isfinite(state.tensors["hessian"]).all()


@pytest.mark.parametrize(("dtype", "engine"), [("bf16", "deepspeed"), ("fp16", "deepspeed"), ("fp16", "native")])
def test_half_precision(dtype, engine):
    run_ranks(2, runs_in_half_precision, dtype, engine, timeout_s=300)
