"""Pipeline stages against a loop anyone can read: plain torch, one rank, float32."""

from __future__ import annotations

import math

import pytest

from tests.engine.plain import batches, eval_loss, make_engine, plain_loop, settings, train, trains_like_one_rank
from tests.pairs import parametrize_pairs
from tests.ranks import groups_of, run_ranks

LLAMA = {"model.num_layers": "4"}
# Tied embeddings, learned positions and biases.
GPT = {**LLAMA, "model.family": "gpt", "model.hidden_dropout": "0", "model.attention_dropout": "0"}
MODELS = {"llama": LLAMA, "gpt": GPT}
ZERO = [{"parallel.zero_stage": "0"}, {"parallel.zero_stage": "1"}]
FP16 = {"train.dtype": "fp16", "optim.initial_loss_scale_power": "8"}
KINDS = [*ZERO, {"train.dtype": "bf16"}, FP16]
KIND_IDS = ["zero0", "zero1", "bf16", "fp16"]


def run_grid(check, grid, *args):
    """Run ``check(grid, ...)`` on the ranks of ``grid``, which may have to import DeepSpeed first."""
    run_ranks(math.prod(grid.values()), check, grid, *args, timeout_s=180)


def numbers_of(results):
    return [(float(r.loss), r.grad_norm, r.skipped, r.loss_scale) for r in results]


LAYOUTS = {
    "pp2": ({"pipe": 2}, {}),
    "pp4": ({"pipe": 4}, {}),
    "pp2-tp2": ({"pipe": 2, "tensor": 2}, {}),
    "pp2-tp2-scatter": ({"pipe": 2, "tensor": 2}, {"parallel.scatter_norms": "1"}),
    "pp2-dp2": ({"pipe": 2, "data": 2}, {}),
    "pp2-sp2": ({"pipe": 2, "seq": 2}, {}),
    "pp2-uneven": ({"pipe": 2}, {"parallel.pipeline_split": "1,3"}),
    "pp2-tp2-empty-end": ({"pipe": 2, "tensor": 2}, {"parallel.pipeline_split": "4,0"}),
    "pp4-empty-ends": ({"pipe": 4}, {"parallel.pipeline_split": "0,3,1,0"}),
}


@pytest.mark.dist
@pytest.mark.parametrize(("layout", "model"), [("pp2", "gpt"), ("pp2-uneven", "gpt"), ("pp4-empty-ends", "gpt")])
def test_stages_train_like_one_rank(layout, model):
    """In all other layouts: tests/parity/test_layouts.py."""
    grid, more = LAYOUTS[layout]
    run_grid(trains_like_one_rank, grid, {**MODELS[model], **ZERO[0], **more})


@pytest.mark.dist
@parametrize_pairs(stages=[2, 4], steps=[1, 2, 8], changes=dict(zip(KIND_IDS, ZERO, strict=False)))
def test_every_accumulation_count_trains_the_same(stages, steps, changes):
    batch = {"train.micro_batch": str(8 // steps), "train.grad_acc_steps": str(steps)}
    run_grid(trains_like_one_rank, {"pipe": stages}, {**GPT, **batch, **changes})


def half_is_near(grid, model, changes) -> None:
    run, groups = settings(grid, **MODELS[model], **changes), groups_of(**grid)
    losses, norms, _ = plain_loop(settings({}, **MODELS[model]))
    results = train(make_engine(run, groups), run, groups)
    assert [float(r.loss) for r in results] == pytest.approx(losses, abs=5e-3)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=2e-2)


@pytest.mark.dist
@parametrize_pairs(
    layout=["pp2", "pp2-tp2", "pp2-dp2", "pp2-tp2-empty-end"],
    model=[*MODELS],
    changes=dict(zip(KIND_IDS[2:], KINDS[2:], strict=True)),
)
def test_half_precision_is_near_fp32(layout, model, changes):
    grid, more = LAYOUTS[layout]
    run_grid(half_is_near, grid, model, {**changes, **more})


def bad_gradients_change_nothing(grid, changes, bad_rank) -> None:
    import torch

    run, groups = settings(grid, **GPT, **changes), groups_of(**grid)
    engine = make_engine(run, groups)
    train(engine, run, groups, 0, 1)
    before = [p.detach().clone() for p in engine.module.parameters()]
    if groups.rank == bad_rank:
        # On the last stage the first parameter is the copy of the embedding.
        hook = next(engine.module.parameters()).register_hook(lambda grad: grad * float("nan"))
    result = engine.train_step(batches(run, 1, groups.data_rank), 1e-2)
    assert result.skipped
    assert engine.state.scalars()["skipped_steps"] == 1
    assert all(torch.equal(p, old) for p, old in zip(engine.module.parameters(), before, strict=True))
    if groups.rank == bad_rank:
        hook.remove()
    assert not engine.train_step(batches(run, 1, groups.data_rank), 1e-2).skipped


@pytest.mark.dist
@pytest.mark.parametrize("changes", KINDS, ids=KIND_IDS)
@pytest.mark.parametrize(("grid", "bad_rank"), [({"pipe": 2}, 0), ({"pipe": 2}, 1), ({"pipe": 2, "data": 2}, 1)])
def test_a_gradient_that_is_not_finite_on_one_stage_changes_no_weight_on_any(grid, bad_rank, changes):
    run_grid(bad_gradients_change_nothing, grid, changes, bad_rank)


def overflow_is_skipped(grid, more) -> None:
    changes = {
        "train.dtype": "fp16",
        "optim.initial_loss_scale_power": "24",
        "optim.loss_scale_hysteresis": "1",
        **more,
    }
    run, groups = settings(grid, **GPT, **changes), groups_of(**grid)
    engine = make_engine(run, groups)
    first = engine.train_step(batches(run, 0, groups.data_rank), 1e-2)
    assert first.skipped
    assert (first.loss_scale, engine.loss_scale) == (2.0**24, 2.0**23)
    later = [engine.train_step(batches(run, 0, groups.data_rank), 1e-2) for _ in range(14)]
    assert not later[-1].skipped
    assert float(later[-1].loss) < float(first.loss)


@pytest.mark.dist
def test_a_step_that_overflows_is_skipped_on_every_stage():
    run_grid(overflow_is_skipped, {"pipe": 2}, {})


def evaluates_as_without(grid, changes) -> None:
    import torch

    dropout = {**GPT, "model.hidden_dropout": "0.1", "model.attention_dropout": "0.1"}
    run, groups = settings(grid, **dropout, **changes), groups_of(**grid)
    generator = torch.Generator().manual_seed(3)
    # More micro-batches than a step has, of other sizes: [micro-batches, data ranks, samples, tokens + 1].
    held_out = [torch.randint(0, 100, shape, generator=generator) for shape in ((5, 2, 3, 9), (1, 2, 2, 13))]

    def steps(with_eval):
        engine = make_engine(run, groups)
        losses = []
        for step in range(3):
            losses += numbers_of([engine.train_step(batches(run, step, groups.data_rank), 1e-2)])
            if with_eval:
                evaluated.append([float(eval_loss(engine, list(b[:, groups.data_rank]))) for b in held_out])
        return losses

    evaluated: list[list[float]] = []
    assert steps(with_eval=True) == steps(with_eval=False)
    assert evaluated[0] != evaluated[1]
    alone = settings({"data": 2}, **dropout, **changes)
    fresh = make_engine(run, groups)
    for samples in held_out:
        whole = _plain_model(alone)
        expected = whole.loss(whole(samples.flatten(0, 2)[:, :-1]), samples.flatten(0, 2)[:, 1:])
        ours = eval_loss(fresh, list(samples[:, groups.data_rank]))
        assert ours.shape == ()
        assert float(ours) == pytest.approx(expected.item(), rel=1e-5 if run.train.dtype == "fp32" else 1e-2)


def _plain_model(run):
    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.models.build import build_model

    return build_model(run.model_copy(update={"parallel": settings({}).parallel}), Groups(Grid(), 0)).eval()


@pytest.mark.dist
@pytest.mark.parametrize("changes", [*ZERO, {"train.dtype": "bf16"}], ids=KIND_IDS[:3])
def test_evaluation_gives_what_one_rank_gives_and_leaves_training_alone(changes):
    run_grid(evaluates_as_without, {"pipe": 2, "data": 2}, changes)


def masked_tokens_do_not_count(grid, changes) -> None:
    """Micro-batches and data-parallel ranks hold unequal numbers of counted tokens."""
    import torch

    eod = 3
    run, groups = settings(grid, **GPT, **{"data.eod_mask_loss": "1", **changes}), groups_of(**grid)
    whole = _plain_model(run).train()
    parts = [batches(run, 0, rank) for rank in range(run.parallel.data)]
    for micro_batches in parts:
        micro_batches[0][:, ::2] = eod
    samples = torch.cat([part for micro_batches in parts for part in micro_batches])
    labels = samples[:, 1:].masked_fill(samples[:, :-1] == eod, -100)
    expected = whole(samples[:, :-1], labels)
    expected.backward()
    norm = torch.stack([p.grad.norm() for p in whole.parameters()]).norm()
    engine = make_engine(run, groups, eod=eod)
    assert float(eval_loss(engine, parts[groups.data_rank])) == pytest.approx(expected.item(), rel=1e-5)
    result = engine.train_step(parts[groups.data_rank], 1e-2)
    assert float(result.loss) == pytest.approx(expected.item(), rel=1e-5)
    assert result.grad_norm == pytest.approx(float(norm), rel=1e-4)


@pytest.mark.dist
@pytest.mark.parametrize("grid", [{"pipe": 2}, {"pipe": 2, "data": 2}], ids=["pp2", "pp2dp2"])
def test_the_loss_is_the_mean_over_counted_tokens(grid):
    run_grid(masked_tokens_do_not_count, grid, {})
