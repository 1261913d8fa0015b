"""DeepSpeed on our grid against a loop anyone can read: plain torch, one rank, float32."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from megads.config.derive import derive
from megads.config.resolve import resolve
from megads.config.schema import RunConfig
from tests.ranks import groups_of, run_ranks

CLIP = 0.3  # gradient norms are about 1, so clipping acts at every step
STEPS = 6
GRIDS = [{"tensor": 2}, {"data": 2}, {"tensor": 4}, {"tensor": 2, "data": 2}]
IDS = ["tp2", "dp2", "tp4", "tp2dp2"]


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
        **changes,
    }
    asked = resolve(None, env={}, overrides=overrides, machine="generic", root=Path(__file__).parents[2])
    return derive(asked, num_hosts=1, ranks_per_host=ranks, vocab_size=100).run


def batches(run: RunConfig, step: int, data_rank: int):
    """Return this data rank's micro-batches of ``step``: the same 8 samples on every grid."""
    import torch

    generator = torch.Generator().manual_seed(step)
    samples = torch.randint(0, 100, (8, run.model.seq_length + 1), generator=generator)
    size = run.train.micro_batch
    blocks = samples.view(run.train.grad_acc_steps, run.parallel.data, size, -1)
    return [block[data_rank] for block in blocks]


def rate(step: int) -> float:
    return 1e-2 * (step + 1) / STEPS


def plain_loop(run: RunConfig):
    """Return losses, norms and weights of a plain torch loop on one rank."""
    import torch

    from megads.dist.grid import Grid
    from megads.dist.groups import Groups
    from megads.engine.base import decay_groups
    from megads.models.build import build_model

    model = build_model(run, Groups(Grid(), 0))
    optimizer = torch.optim.AdamW(
        decay_groups(model, run.optim.weight_decay),
        betas=(run.optim.adam_beta1, run.optim.adam_beta2),
        eps=run.optim.adam_eps,
    )
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


def make_engine(run: RunConfig, groups):
    os.environ["DS_ACCELERATOR"] = "cpu"
    import torch

    from megads.engine.deepspeed import DeepSpeedEngine
    from megads.models.build import build_model

    return DeepSpeedEngine(build_model(run, groups), run, groups, torch.device("cpu"))


def train(engine, run, groups, first=0, last=STEPS):
    return [engine.train_step(batches(run, step, groups.data_rank), rate(step)) for step in range(first, last)]


def _matches_plain_loop(grid: dict[str, int], stage: str) -> None:
    import torch

    from megads.parallel.tensor import take_shard

    run, groups = settings(grid, **{"parallel.zero_stage": stage}), groups_of(**grid)
    losses, norms, weights = plain_loop(settings({}))
    engine = make_engine(run, groups)
    results = train(engine, run, groups)
    assert [float(r.loss) for r in results] == pytest.approx(losses, rel=1e-5)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=1e-4)
    assert min(norms) > CLIP
    assert not any(r.skipped for r in results)
    for state in engine.states():
        whole = weights[state.name].detach()
        local = take_shard(whole, state.parameter.shard, groups.tensor_rank, groups.tensor_size)
        torch.testing.assert_close(state.tensors["weight"], local, rtol=1e-4, atol=2e-6)
        torch.testing.assert_close(state.parameter.data, state.tensors["weight"], rtol=0, atol=0)


@pytest.mark.dist
@pytest.mark.parametrize("stage", ["0", "1"])
@pytest.mark.parametrize("grid", GRIDS, ids=IDS)
def test_every_layout_trains_like_one_rank(grid, stage):
    run_ranks(_size(grid), _matches_plain_loop, grid, stage)


def _size(grid):
    return grid.get("tensor", 1) * grid.get("data", 1)


def _continues_bitwise(grid: dict[str, int], changes: dict[str, str]) -> None:
    import torch

    _let_fp16_run()
    run, groups = settings(grid, **changes), groups_of(**grid)
    whole = make_engine(run, groups)
    expected = train(whole, run, groups)
    first = make_engine(run, groups)
    train(first, run, groups, 0, 3)
    saved = {s.name: {kind: t.clone() for kind, t in s.tensors.items()} for s in first.states()}
    numbers = first.scalars()
    second = make_engine(run, groups)
    second.load(saved)
    second.load_scalars(numbers)
    rest = train(second, run, groups, 3, STEPS)
    for ours, theirs in zip(rest, expected[3:], strict=True):
        assert float(ours.loss) == float(theirs.loss)
        assert ours.grad_norm == theirs.grad_norm
    for ours, theirs in zip(second.states(), whole.states(), strict=True):
        for kind, tensor in theirs.tensors.items():
            assert torch.equal(ours.tensors[kind], tensor), f"{ours.name} {kind}"
    assert second.scalars() == whole.scalars()


@pytest.mark.dist
@pytest.mark.parametrize(
    "changes",
    [
        {"parallel.zero_stage": "0"},
        {"parallel.zero_stage": "1"},
        {"train.dtype": "bf16"},
        {"train.dtype": "fp16", "optim.initial_loss_scale_power": "24"},
    ],
    ids=["zero0", "zero1", "bf16", "fp16"],
)
@pytest.mark.parametrize("grid", GRIDS[:2] + GRIDS[3:], ids=IDS[:2] + IDS[3:])
def test_a_new_engine_goes_on_bitwise(grid, changes):
    run_ranks(_size(grid), _continues_bitwise, grid, changes)


def _half_is_near(grid: dict[str, int], changes: dict[str, str]) -> None:
    _let_fp16_run()
    run, groups = settings(grid, **changes), groups_of(**grid)
    losses, norms, _ = plain_loop(settings({}))
    results = train(make_engine(run, groups), run, groups)
    assert [float(r.loss) for r in results] == pytest.approx(losses, abs=5e-3)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=2e-2)


def _let_fp16_run() -> None:
    """Half precision computes on every CPU, only slowly; DeepSpeed asks for the fast instructions."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    CPU_Accelerator.is_fp16_supported = lambda self: True


@pytest.mark.dist
@pytest.mark.parametrize("stage", ["0", "1"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("grid", GRIDS[:2] + GRIDS[3:], ids=IDS[:2] + IDS[3:])
def test_half_precision_is_near_fp32(grid, dtype, stage):
    changes = {"train.dtype": dtype, "parallel.zero_stage": stage, "optim.initial_loss_scale_power": "8"}
    run_ranks(_size(grid), _half_is_near, grid, changes)


def _overflow_is_skipped(grid: dict[str, int]) -> None:
    import torch

    _let_fp16_run()
    changes = {
        "train.dtype": "fp16",
        "optim.initial_loss_scale_power": "32",
        "optim.loss_scale_hysteresis": "1",
    }
    run, groups = settings(grid, **changes), groups_of(**grid)
    engine = make_engine(run, groups)
    before = [p.detach().clone() for p in engine.state.parameters]
    first = engine.train_step(batches(run, 0, groups.data_rank), 1e-2)
    assert first.skipped
    assert first.loss_scale == 2.0**32
    assert engine.loss_scale == 2.0**31
    assert all(torch.equal(p, old) for p, old in zip(engine.state.parameters, before, strict=True))
    later = [engine.train_step(batches(run, 0, groups.data_rank), 1e-2) for _ in range(40)]
    assert not later[-1].skipped
    assert float(later[-1].loss) < float(first.loss)


@pytest.mark.dist
@pytest.mark.parametrize("grid", [{"tensor": 2}, {"data": 2}], ids=["tp2", "dp2"])
def test_a_step_that_overflows_is_skipped_on_every_rank(grid):
    run_ranks(2, _overflow_is_skipped, grid)


def _bad_gradients_change_nothing(grid: dict[str, int], changes: dict[str, str]) -> None:
    import torch

    run, groups = settings(grid, **changes), groups_of(**grid)
    engine = make_engine(run, groups)
    train(engine, run, groups, 0, 1)
    before = [p.detach().clone() for p in engine.state.parameters]
    if groups.rank == 0:
        engine.state.parameters[0].register_hook(lambda grad: grad * float("nan"))
    result = engine.train_step(batches(run, 1, groups.data_rank), 1e-2)
    assert result.skipped
    assert engine.scalars()["skipped_steps"] == 1
    assert all(torch.equal(p, old) for p, old in zip(engine.state.parameters, before, strict=True))


@pytest.mark.dist
@pytest.mark.parametrize(
    "changes",
    [{"parallel.zero_stage": "0"}, {"parallel.zero_stage": "1"}, {"train.dtype": "bf16"}],
    ids=["zero0", "zero1", "bf16"],
)
@pytest.mark.parametrize("grid", GRIDS[:2], ids=IDS[:2])
def test_a_gradient_that_is_not_finite_on_one_rank_changes_no_weight_on_any(grid, changes):
    run_ranks(2, _bad_gradients_change_nothing, grid, changes)


def _clip_zero_means_none() -> None:
    run, groups = settings({"tensor": 2}, **{"optim.clip_grad": "0"}), groups_of(tensor=2)
    losses, norms, _ = plain_loop(settings({}, **{"optim.clip_grad": "0"}))
    results = train(make_engine(run, groups), run, groups)
    assert [float(r.loss) for r in results] == pytest.approx(losses, rel=1e-5)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=1e-4)


@pytest.mark.dist
def test_clip_grad_0_switches_clipping_off():
    run_ranks(2, _clip_zero_means_none)


def _nothing_is_compiled(folder: str) -> None:
    os.environ["TORCH_EXTENSIONS_DIR"] = folder
    grid = {"data": 2}
    train(make_engine(settings(grid), groups_of(**grid)), settings(grid), groups_of(**grid))
    assert os.listdir(folder) == []


@pytest.mark.dist
def test_nothing_is_compiled_at_run_time(tmp_path):
    run_ranks(2, _nothing_is_compiled, str(tmp_path))
