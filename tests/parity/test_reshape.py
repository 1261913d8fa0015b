"""A checkpoint of one layout, loaded under another: the same numbers, and the same steps after it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megads.checkpoint.format.folders import checkpoint_name
from megads.checkpoint.resume.progress import Progress
from tests.engine.plain import ENGINES
from tests.pairs import parametrize_pairs
from tests.parity.checkpoints import load, save, whole_tensors
from tests.parity.layouts import STEPS, Layout, engine_of, one_rank, rate, train_on
from tests.ranks import run_ranks

SAVED_AFTER = 3
ALL = {"deepspeed.param_persistence_threshold": "0"}  # ZeRO 3 with small parameters partitioned as well
SCATTER = {"parallel.scatter_norms": "true"}
PADDED = {"model.vocab_multiple": "32"}  # 28 rows of padding instead of 4

# From each layout to the next: every axis grows and shrinks, and every ZeRO stage comes and goes.
QUICK = [
    Layout(tp=2, zero=0),
    Layout(pp=2, zero=1),
    Layout(dp=2, zero=3, more=ALL),
    Layout(sp=2, zero=2),
    Layout(tp=2, dp=2, zero=1),
    Layout(tp=2, zero=0),
]
# And from each engine to the other.
NATIVE = [
    [
        Layout(dp=2, zero=1),
        Layout(dp=2, zero=1).on("native"),
        Layout(dp=2, zero=3, more=ALL),
        Layout(tp=2, zero=0).on("native"),
        Layout(tp=2, dp=2, zero=2),
        Layout(dp=2, zero=3).on("native"),
        Layout(sp=2, zero=2).on("native"),
        Layout(zero=0),
    ],
    [
        Layout("gpt", zero=1).on("native"),
        Layout("gpt", dp=2, zero=0),
        Layout("gpt", tp=2, dp=2, zero=3, more=SCATTER).on("native"),
        Layout("gpt", pp=2, zero=1),
        Layout("gpt", dp=4, zero=3).on("native"),
        Layout("gpt", pp=2, dp=2, zero=1),
        Layout("gpt", pp=2, dp=2, zero=2).on("native"),
        Layout("gpt", pp=4, zero=0),
    ],
]
CHAINS = [
    [
        Layout(dp=4, zero=1),
        Layout(tp=4, zero=0),
        Layout(dp=4, zero=3, more=ALL),
        Layout(pp=4, zero=1),
        Layout(sp=4, zero=0),
        Layout(pp=4, zero=1),
        Layout(dp=4, zero=2),
        Layout(pp=2, sp=2, zero=0, more={"parallel.pipeline_split": "1,3"}),
        Layout(tp=4, zero=0, more=PADDED),
        Layout(dp=4, zero=3),
    ],
    [
        Layout("gpt", zero=0),
        Layout("gpt", pp=4, zero=0),
        Layout("gpt", tp=4, zero=1, more=SCATTER),
        Layout("gpt", pp=2, tp=2, zero=1),
        Layout("gpt", dp=4, zero=0),
        Layout("gpt", tp=2, sp=2, zero=3, more=ALL),
        Layout("gpt", pp=2, dp=2, zero=1),
        Layout("gpt", sp=4, zero=2),
        Layout("gpt", pp=2, tp=2, zero=0),
        Layout("gpt", zero=3),
        Layout("gpt", tp=2, dp=2, zero=2, more=PADDED),
        Layout("gpt", zero=0),
    ],
    [
        Layout("gqa", tp=4, zero=1),
        Layout("gqa", sp=2, dp=2, zero=3, more=ALL),
        Layout("gqa", dp=4, zero=3, more={**ALL, "deepspeed.hpz_partition_size": "2"}),
    ],
    [
        Layout("llama-tied", pp=2, dp=2, zero=1),
        Layout("llama-tied", tp=2, zero=3, more=ALL),
        Layout("llama-tied", pp=4, zero=0),
        Layout("llama-tied", dp=2, zero=1, more={"deepspeed.offload_optimizer": "cpu"}),
    ],
    [
        Layout("bert", tp=2, dp=2, zero=1),
        Layout("bert", pp=2, sp=2, zero=1),
        Layout("bert", dp=2, zero=3, more=ALL),
        Layout("bert", tp=4, zero=0, more={**SCATTER, **PADDED}),
        Layout("bert", sp=2, dp=2, zero=2),
        Layout("bert", pp=4, zero=1),
    ],
    [
        Layout("t5-v1.1", tp=2, dp=2, zero=1),
        Layout("t5-v1.1", pp=4, zero=1),
        Layout("t5-v1.1", dp=2, zero=3, more=ALL),
        Layout("t5-v1.1", tp=4, zero=0, more={**SCATTER, **PADDED}),
        Layout("t5-v1.1", sp=2, pp=2, zero=0),
    ],
    [
        Layout("t5", pp=2, tp=2, zero=1),
        Layout("t5", sp=2, zero=2),
        Layout("t5", pp=4, zero=0, more=PADDED),
        Layout("t5", tp=2, zero=3, more=ALL),
    ],
    [
        Layout("retro", tp=2, dp=2, zero=1),
        Layout("retro", sp=2, zero=3, more=ALL).on("native"),
        Layout("retro", tp=4, zero=0, more=SCATTER),
        Layout("retro", dp=4, zero=2).on("native"),
    ],
    [
        Layout("gpt-untied", tp=2, dp=2, zero=1),
        Layout("gpt-untied", pp=2, sp=2, zero=1),
        Layout("gpt-untied", dp=2, zero=2),
    ],
]


def slow(step: int) -> float:
    """Return a rate at which rounding does not grow: thirteen steps then agree as well as the first."""
    return rate(min(step, SAVED_AFTER))


def _pairs(*chains: list[Layout]) -> list[tuple[Layout, Layout]]:
    return [pair for chain in chains for pair in itertools.pairwise(chain)]


def _write(layout: Layout, folder: Path) -> None:
    """Train, write a checkpoint, and next to it what it should hold, got without the checkpoint's own code."""
    import torch

    engine, run, groups = engine_of(layout)
    train_on(engine, run, groups, range(SAVED_AFTER), slow)
    save(engine, run, groups, folder, Progress(SAVED_AFTER))
    whole = whole_tensors(engine, groups)
    if groups.grid.coordinate(groups.rank) == {"pipe": groups.pipe_rank, "data": 0, "seq": 0, "tensor": 0}:
        torch.save(whole, folder / f"stage-{groups.pipe_rank}.pt")


Checkpoints = Callable[[Layout], Path]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Give the folder of a checkpoint of a layout; it is written when it is first asked for."""
    found: dict[str, Path] = {}

    def folder_of(layout: Layout) -> Path:
        if str(layout) not in found:
            found[str(layout)] = tmp_path_factory.mktemp("layout")
            run_ranks(layout.ranks, _write, layout, found[str(layout)], timeout_s=120)
        return found[str(layout)]

    return folder_of


def _holds_the_same(engine: Any, groups: Any, folder: Path) -> None:
    """Check masters and moments, number by number, and that working weights, and copies of them, are the masters."""
    import torch

    from megads.parallel.tensor import take_shard
    from tests.engine.plain import working

    expected: dict[str, dict[str, torch.Tensor]] = {}
    for path in folder.glob("stage-*.pt"):
        expected |= torch.load(path, weights_only=True)
    held = {state.name: state.tensors for state in engine.state.by_parameter()}
    shards = {name: parameter.shard for name, parameter in engine.module.named_parameters()}
    for name, used in working(engine).items():
        assert expected[name]["exp_avg_sq"].any(), name
        for kind, tensor in {"used": used, **held.get(name, {})}.items():
            whole = _of_rows(expected[name][kind.replace("used", "weight")], shards[name])
            local = take_shard(whole, shards[name], groups.tensor_rank, groups.tensor_size)
            assert torch.equal(tensor.float(), local.to(tensor.dtype).float()), f"{name} {kind}"


def _of_rows(whole: Any, shard: Any) -> Any:
    """Return a vocabulary's matrix or bias with as much padding as this run's has; what is added is zero."""
    import torch

    if shard is None or shard.dim or sum(shard.parts) == len(whole):
        return whole
    missing = max(0, sum(shard.parts) - len(whole))
    return torch.nn.functional.pad(whole, (*[0, 0] * (whole.ndim - 1), 0, missing))[: sum(shard.parts)]


def _goes_on(layout: Layout, folder: Path) -> None:
    losses, norms = one_rank(layout.kind, steps=SAVED_AFTER + STEPS, lr=slow)
    engine, run, groups = engine_of(layout)
    load(engine, groups, folder / checkpoint_name(SAVED_AFTER))
    _holds_the_same(engine, groups, folder)
    results = train_on(engine, run, groups, range(SAVED_AFTER, SAVED_AFTER + STEPS), slow)
    assert [float(r.loss) for r in results] == pytest.approx(losses[SAVED_AFTER:], rel=1e-5)
    assert [r.grad_norm for r in results] == pytest.approx(norms[SAVED_AFTER:], rel=1e-5)


@pytest.mark.dist
@pytest.mark.parametrize(("here", "there"), [*_pairs(QUICK), *_pairs(NATIVE[0])[:2]], ids=str)
def test_another_layout_goes_on(here, there, checkpoints):
    run_ranks(there.ranks, _goes_on, there, checkpoints(here))


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(("here", "there"), [*_pairs(*CHAINS), *_pairs(*NATIVE)[2:]], ids=str)
def test_any_layout_goes_on_from_any(here, there, checkpoints):
    run_ranks(there.ranks, _goes_on, there, checkpoints(here), timeout_s=120)


def test_the_pairs_change_every_axis_both_ways():
    pairs = _pairs(QUICK, *CHAINS)
    assert len({(str(here), str(there)) for here, there in pairs}) == len(pairs) >= 30
    for axis in ("tp", "pp", "sp", "dp"):
        changes = {(getattr(here, axis), getattr(there, axis)) for here, there in pairs}
        assert changes >= {(1, 2), (2, 1), (1, 4), (4, 1)}, axis
    stages = {(here.zero, there.zero) for here, there in pairs}
    assert {here for here, _ in stages} == {there for _, there in stages} == {0, 1, 2, 3}
    assert {here.kind for here, _ in pairs} >= {"llama", "gpt", "llama-tied", "gpt-untied"}


def _half_holds_the_same(layout: Layout, dtype: str, folder: Path) -> None:
    engine, run, groups = engine_of(layout, **{"train.dtype": dtype})
    load(engine, groups, folder / checkpoint_name(SAVED_AFTER))
    _holds_the_same(engine, groups, folder)
    losses, _ = one_rank(layout.kind, steps=SAVED_AFTER + STEPS, lr=slow)
    (result,) = train_on(engine, run, groups, range(SAVED_AFTER, SAVED_AFTER + 1), slow)
    assert float(result.loss) == pytest.approx(losses[SAVED_AFTER], abs=1e-2)


@pytest.mark.dist
@parametrize_pairs(stage=[0, 1, 2, 3], dtype=["bf16", "fp16"], engine=ENGINES)
def test_half_precision_goes_on_from_the_masters_of_float32(stage, dtype, engine, checkpoints):
    layout = Layout("gpt", dp=2, zero=stage, more=ALL).on(engine)
    run_ranks(2, _half_holds_the_same, layout, dtype, checkpoints(Layout("gpt", tp=2, zero=1)))
