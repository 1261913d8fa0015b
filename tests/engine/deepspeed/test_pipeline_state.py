"""What a pipeline's checkpoint holds and who resumes from it; the embedding that two stages hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.checkpoint.resume.progress import Progress
from tests.engine.deepspeed.test_pipeline import KIND_IDS, KINDS, LAYOUTS, MODELS, numbers_of, run_grid
from tests.engine.plain import HALF, STEPS, make_engine, plain_loop, settings, train
from tests.parity.checkpoints import load, save
from tests.ranks import groups_of


def _the_same_bits(ours, theirs) -> None:
    import torch

    for mine, other in zip(ours.state.by_parameter(), theirs.state.by_parameter(), strict=True):
        for kind, tensor in other.tensors.items():
            assert torch.equal(mine.tensors[kind], tensor), f"{mine.name} {kind}"
    for (name, mine), other in zip(ours.module.named_parameters(), theirs.module.parameters(), strict=True):
        assert torch.equal(mine, other), name
    assert ours.state.scalars() == theirs.state.scalars()


def _continues_bitwise(grid, model, changes, folder) -> None:
    run, groups = settings(grid, **MODELS[model], **changes), groups_of(**grid)
    whole = make_engine(run, groups)
    expected = train(whole, run, groups)
    first = make_engine(run, groups)
    train(first, run, groups, 0, HALF)
    path = save(first, run, groups, Path(folder), Progress(HALF))
    second = make_engine(run, groups)
    load(second, groups, path)
    assert numbers_of(train(second, run, groups, HALF, STEPS)) == numbers_of(expected[HALF:])
    _the_same_bits(second, whole)


@pytest.mark.dist
@pytest.mark.parametrize("changes", KINDS, ids=KIND_IDS)
@pytest.mark.parametrize(("layout", "model"), [("pp2", "llama"), ("pp2-tp2", "gpt"), ("pp2-dp2", "gpt")])
def test_a_checkpoint_goes_on_bitwise(layout, model, changes, tmp_path):
    run_grid(_continues_bitwise, LAYOUTS[layout][0], model, changes, str(tmp_path))


OTHERS = [
    # Many more: tests/parity/test_reshape.py.
    ({"pipe": 2, "data": 2}, "1", {"pipe": 4}, "0", "gpt"),
    ({"pipe": 4}, "0", {"data": 4}, "1", "llama"),
    ({"data": 2, "seq": 2}, "1", {"pipe": 2, "data": 2}, "1", "gpt"),
    ({"pipe": 2, "tensor": 2}, "1", {"data": 2, "tensor": 2}, "3", "gpt"),
    ({"data": 4}, "3", {"pipe": 2, "seq": 2}, "0", "llama"),
]


def _goes_on_elsewhere(here, model, stage_here, there, stage_there, folder) -> None:
    losses, norms, _ = plain_loop(settings({}, **MODELS[model]))
    run, groups = settings(here, **MODELS[model], **{"parallel.zero_stage": stage_here}), groups_of(**here)
    engine = make_engine(run, groups)
    train(engine, run, groups, 0, HALF)
    path = save(engine, run, groups, Path(folder), Progress(HALF))
    run, groups = settings(there, **MODELS[model], **{"parallel.zero_stage": stage_there}), groups_of(**there)
    engine = make_engine(run, groups)
    load(engine, groups, path)
    results = train(engine, run, groups, HALF, STEPS)
    assert [float(r.loss) for r in results] == pytest.approx(losses[HALF:], rel=1e-5)
    assert [r.grad_norm for r in results] == pytest.approx(norms[HALF:], rel=1e-4)


@pytest.mark.dist
@pytest.mark.parametrize(("here", "stage_here", "there", "stage_there", "model"), OTHERS)
def test_another_layout_goes_on_from_a_checkpoint(here, stage_here, there, stage_there, model, tmp_path):
    run_grid(_goes_on_elsewhere, here, model, stage_here, there, stage_there, str(tmp_path))
