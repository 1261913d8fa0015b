"""Each step has its own number of micro-batches, learning rate and weight decay, on every kind of engine."""

from __future__ import annotations

import math

import pytest

from tests.engine.plain import CLIP, NATIVE, batches, make_engine, plain_optimizer, rate, settings, take_over
from tests.ranks import groups_of, run_ranks

COUNTS = (1, 3, 2, 2, 4, 1)  # blocks of four samples, of each step
BLOCK = 4


def _step_samples(run, step):
    import torch

    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, 100, (COUNTS[step] * BLOCK, run.model.seq_length + 1), generator=generator)


def _plain(run):
    """Return losses, norms and weights of a plain torch loop over the same samples."""
    import torch

    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.models.build import build_model

    model = build_model(run, Groups(Grid(), 0))
    optimizer = plain_optimizer(model, run)
    losses, norms = [], []
    for step in range(len(COUNTS)):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        samples = _step_samples(run, step)
        loss = model(samples[:, :-1], samples[:, 1:])
        loss.backward()
        losses.append(float(loss.detach()))
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms, dict(model.named_parameters())


def _batches(run, groups, step):
    rows = run.train.micro_batch * run.parallel.data
    blocks = _step_samples(run, step).split(rows)
    size, first = run.train.micro_batch, groups.data_rank * run.train.micro_batch
    return [block[first : first + size] for block in blocks]


def _changes_its_batch(grid: dict[str, int], changes: dict[str, str]) -> None:
    import torch

    from megads.parallel.tensor import take_shard

    run, groups = settings(grid, **changes), groups_of(**grid)
    losses, norms, weights = _plain(settings({}))
    engine = make_engine(run, groups)
    results = [engine.train_step(_batches(run, groups, step), rate(step)) for step in range(3)]
    # Resumed in the middle of a ramp: an engine that begins with another number than the settings'.
    second = make_engine(run, groups)
    take_over(second, engine)
    results += [second.train_step(_batches(run, groups, step), rate(step)) for step in range(3, len(COUNTS))]
    assert [float(r.loss) for r in results] == pytest.approx(losses, rel=1e-5)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=1e-4)
    for state in second.state.by_parameter():
        local = take_shard(weights[state.name].detach(), state.parameter.shard, groups.tensor_rank, groups.tensor_size)
        torch.testing.assert_close(state.tensors["weight"], local, rtol=1e-4, atol=2e-6)


LAYOUTS = [
    pytest.param({"data": 2}, {"parallel.zero_stage": "0"}, id="dp2-zero0"),
    pytest.param({"data": 2}, {"parallel.zero_stage": "1", "train.micro_batch": "1"}, id="dp2-zero1"),
    pytest.param({"data": 2}, {"parallel.zero_stage": "3"}, id="dp2-zero3"),
    pytest.param(
        {"data": 2}, {"parallel.zero_stage": "2", "deepspeed.offload_optimizer": "cpu"}, id="dp2-zero2-offload"
    ),
    pytest.param({"pipe": 2, "data": 2}, {"parallel.zero_stage": "0", "train.micro_batch": "1"}, id="pp2-dp2"),
    pytest.param({"tensor": 2, "data": 2}, {"parallel.zero_stage": "1"}, id="tp2-dp2"),
    *(
        pytest.param({"data": 2}, {**NATIVE, "parallel.zero_stage": stage}, id=f"dp2-zero{stage}-native")
        for stage in ("0", "1", "2", "3")
    ),
]


@pytest.mark.dist
@pytest.mark.parametrize(("grid", "changes"), LAYOUTS)
def test_a_changing_number_of_micro_batches_trains_like_one_rank(grid, changes):
    data = grid.get("data", 1)
    micro_batch = int(changes.setdefault("train.micro_batch", "2"))
    full = {"train.global_batch": "16", "train.grad_acc_steps": str(16 // (micro_batch * data))}
    run_ranks(math.prod(grid.values()), _changes_its_batch, grid, {**changes, **full})


def _takes_its_rates(grid: dict[str, int], changes: dict[str, str]) -> None:
    """Two steps without a learning rate's effect but for decay: a weight shrinks by 1 - rate x decay."""
    run, groups = settings(grid, **{"optim.weight_decay": "0.3", **changes}), groups_of(**grid)
    engine = make_engine(run, groups)
    plain = make_engine(run, groups)
    engine.train_step(batches(run, 0, groups.data_rank), 1e-2, weight_decay=0.5)
    plain.train_step(batches(run, 0, groups.data_rank), 1e-2, weight_decay=0.0)
    start = {state.name: state.tensors["weight"].clone() for state in make_engine(run, groups).state.by_parameter()}
    free = {state.name: state.tensors["weight"].clone() for state in plain.state.by_parameter()}
    decaying = 0
    for state in engine.state.by_parameter():
        weight = state.tensors["weight"]
        by = 1e-2 * 0.5 * start[state.name] if weight.dim() > 1 else 0.0
        decaying += weight.dim() > 1
        assert weight.numpy() == pytest.approx((free[state.name] - by).numpy(), abs=1e-6)
    assert decaying


@pytest.mark.dist
@pytest.mark.parametrize(
    ("grid", "changes"),
    [
        pytest.param({}, {"parallel.zero_stage": "0"}, id="zero0"),
        pytest.param({"data": 2}, {"parallel.zero_stage": "2"}, id="dp2-zero2"),
        pytest.param({"pipe": 2}, {"parallel.zero_stage": "1"}, id="pp2"),
        pytest.param({"data": 2}, {**NATIVE, "parallel.zero_stage": "1"}, id="dp2-zero1-native"),
        pytest.param({"data": 2}, {**NATIVE, "parallel.zero_stage": "3"}, id="dp2-zero3-native"),
    ],
)
def test_a_step_takes_its_own_weight_decay(grid, changes):
    run_ranks(math.prod(grid.values()), _takes_its_rates, grid, changes)
