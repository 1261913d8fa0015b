"""Engines that recompute against the same engines without: not a bit of difference, with dropout on."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from tests.engine.plain import batches, eval_loss, in_halves, make_engine, rate, settings
from tests.pairs import parametrize_pairs
from tests.ranks import groups_of, run_ranks

Changes = Mapping[str, str]
DROPOUT = {"model.num_layers": "4", "model.hidden_dropout": "0.1", "model.attention_dropout": "0.1"}
GPT = {**DROPOUT, "model.family": "gpt"}


def recompute(granularity: str = "full", **more: str) -> dict[str, str]:
    """Return settings of ``run.recompute``."""
    return {"recompute.granularity": granularity, **{f"recompute.{name}": value for name, value in more.items()}}


SELECTIVE = recompute("selective")
UNIFORM3 = recompute(num_layers="3")
BLOCK2 = recompute(method="block", num_layers="2")
DEEPSPEED = recompute(num_layers="1", engine="deepspeed")
PARTITIONED = {**DEEPSPEED, "recompute.partition_activations": "1"}
CONTIGUOUS = {**PARTITIONED, "recompute.contiguous_memory": "1"}
OPTIONS = {
    "deepspeed": DEEPSPEED,
    "deepspeed-uniform3": {**DEEPSPEED, "recompute.num_layers": "3"},
    "deepspeed-block2": {**BLOCK2, "recompute.engine": "deepspeed"},
    "deepspeed-selective": {**SELECTIVE, "recompute.engine": "deepspeed", "recompute.profile": "1"},
    "partition": PARTITIONED,
    "contiguous": CONTIGUOUS,
    "contiguous-block2": {**CONTIGUOUS, **BLOCK2},
    "cpu": {**DEEPSPEED, "recompute.cpu_checkpointing": "1"},
    "partition-cpu": {**PARTITIONED, "recompute.cpu_checkpointing": "1"},
    "everything": {
        **CONTIGUOUS,
        "recompute.cpu_checkpointing": "1",
        "recompute.synchronize": "1",
        "recompute.profile": "1",
    },
}


def make(grid: Mapping[str, int], changes: Changes) -> tuple[Any, Any, Any]:
    """Return run, groups and engine."""
    run, groups = settings(dict(grid), **in_halves(grid, changes)), groups_of(**grid)
    return run, groups, make_engine(run, groups)


Trained = tuple[list[float], dict[str, Any]]
_without: dict[str, Trained] = {}


def without(grid: Mapping[str, int], changes: Changes) -> Trained:
    """Return what :func:`trained` does, where nothing is recomputed; not to be changed: it is kept."""
    key = repr((sorted(grid.items()), sorted(changes.items())))
    if key not in _without:
        _without[key] = trained(grid, changes)
    return _without[key]


def trained(grid: Mapping[str, int], changes: Changes) -> Trained:
    """Return losses and norms of two steps with an evaluation between them, and the weights."""
    run, groups, engine = make(grid, changes)
    numbers = []
    for step in range(2):
        result = engine.train_step(batches(run, step, groups.data_rank), rate(step))
        numbers += [float(result.loss), result.grad_norm]
        if step == 0:
            numbers.append(float(eval_loss(engine, batches(run, 7, groups.data_rank))))
    assert all(map(math.isfinite, numbers))
    return numbers, {state.name: state.tensors["weight"].clone() for state in engine.state.by_parameter()}


def same_bits(grid: Mapping[str, int], common: Changes, variants: list[Changes]) -> None:
    import torch

    numbers, weights = without(grid, common)
    for variant in variants:
        ours, ours_weights = trained(grid, {**common, **variant})
        assert ours == numbers, variant
        for name, weight in weights.items():
            assert torch.equal(ours_weights[name], weight), f"{name} with {variant}"


def size(grid: Mapping[str, int]) -> int:
    return math.prod(grid.values())


STAGES = {
    "zero0": {"parallel.zero_stage": "0"},
    "zero1": {"parallel.zero_stage": "1"},
    "zero2": {"parallel.zero_stage": "2"},
    # Every parameter is partitioned, and given back as soon as its module is done.
    "zero3": {
        "parallel.zero_stage": "3",
        "deepspeed.param_persistence_threshold": "0",
        "deepspeed.max_live_parameters": "1",
        "deepspeed.max_reuse_distance": "0",
    },
}


@pytest.mark.dist
@parametrize_pairs(
    grid={"dp2": {"data": 2}, "tp2": {"tensor": 2}},
    model={"gpt": GPT, "llama": DROPOUT},
    stage=STAGES,
    variants={"selective-block2": [SELECTIVE, BLOCK2], "uniform3-deepspeed": [UNIFORM3, DEEPSPEED]},
)
def test_every_zero_stage_trains_the_same(grid, model, stage, variants):
    run_ranks(2, same_bits, grid, {**model, **stage}, variants)


@pytest.mark.dist
def test_every_option_of_deepspeed_trains_the_same():
    run_ranks(2, same_bits, {"tensor": 2}, DROPOUT, list(OPTIONS.values()))


@pytest.mark.dist
def test_options_of_deepspeed_train_the_same_without_tensor_ranks():
    """Of those that divide what tensor ranks hold."""
    variants = [OPTIONS[name] for name in ("partition", "contiguous-block2", "everything")]
    run_ranks(2, same_bits, {"data": 2}, DROPOUT, variants)


@pytest.mark.dist
@pytest.mark.parametrize("stage", ["zero0", "zero2", "zero3"])
def test_partitioning_goes_with_every_zero_stage(stage):
    run_ranks(2, same_bits, {"tensor": 2}, {**GPT, **STAGES[stage]}, [CONTIGUOUS])


@pytest.mark.dist
@pytest.mark.parametrize(
    ("grid", "variants"),
    [
        ({"pipe": 2}, [SELECTIVE, UNIFORM3, BLOCK2, CONTIGUOUS]),
        ({"pipe": 2, "tensor": 2}, [PARTITIONED, CONTIGUOUS]),
        ({"pipe": 4}, [UNIFORM3, CONTIGUOUS]),
    ],
    ids=["pp2", "pp2tp2", "pp4"],
)
def test_stages_train_the_same(grid, variants):
    run_ranks(size(grid), same_bits, grid, GPT, variants, timeout_s=120)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("grid", "more", "variants"),
    [
        ({"tensor": 2}, {"parallel.scatter_norms": "1"}, [SELECTIVE, UNIFORM3, DEEPSPEED]),
        ({"seq": 2}, {}, [SELECTIVE, UNIFORM3, DEEPSPEED]),
        ({"seq": 2}, {"parallel.zero_stage": "3"}, [SELECTIVE, UNIFORM3]),
        ({"pipe": 2, "seq": 2}, {}, [SELECTIVE, UNIFORM3]),
        ({"seq": 2, "data": 2}, {"parallel.zero_stage": "2"}, [UNIFORM3, DEEPSPEED]),
    ],
    ids=["scattered", "sp2", "sp2zero3", "pp2sp2", "sp2dp2zero2"],
)
def test_cut_sequences_train_the_same(grid, more, variants):
    run_ranks(size(grid), same_bits, grid, {**GPT, **more}, variants)


@pytest.mark.dist
def test_bf16_trains_the_same():
    run_ranks(2, same_bits, {"tensor": 2}, {**DROPOUT, "train.dtype": "bf16"}, [SELECTIVE, UNIFORM3, CONTIGUOUS])


# What is kept


def _keeps_a_part_and_gives_back_the_whole(changes: Changes) -> None:
    import torch

    _, groups, engine = make({"tensor": 2}, changes)
    checkpoint = engine.module.recompute.checkpoint
    x = torch.randn(2, 6, 8, requires_grad=True)
    seen = []

    def square(h: torch.Tensor) -> torch.Tensor:
        seen.append(h.detach().clone())
        return h * h

    h = x + 1
    expected = h.detach().clone()
    y = checkpoint(square, h)
    assert h.numel() == 1
    half = expected.view(2, -1)[groups.tensor_rank]
    assert torch.equal(h.saved_data, half)
    y.sum().backward()
    assert len(seen) == 2
    assert all(torch.equal(each, expected) for each in seen)
    assert torch.equal(x.grad, 2 * expected)


@pytest.mark.dist
@pytest.mark.parametrize("changes", [PARTITIONED, CONTIGUOUS], ids=["partition", "contiguous"])
def test_a_tensor_rank_keeps_its_part_of_an_input(changes):
    run_ranks(2, _keeps_a_part_and_gives_back_the_whole, changes)


def _fills_the_contiguous_buffer(grid: Mapping[str, int], changes: Changes) -> None:
    from megads.engine.deepspeed.recompute import DeepSpeedCheckpoint

    class Watched(DeepSpeedCheckpoint):
        most = 0

        def __call__(self, *args: Any) -> Any:
            result = super().__call__(*args)
            Watched.most = max(Watched.most, self.module.data_offsets[0])
            return result

    run, groups, engine = make(grid, {**DROPOUT, **changes})
    checkpoint = engine.module.recompute.checkpoint
    checkpoint.__class__ = Watched
    for step in range(2):
        engine.train_step(batches(run, step, groups.data_rank), 1e-3)
    assert Watched.most == checkpoint.options["num_checkpoints"]


@pytest.mark.dist
@pytest.mark.parametrize(
    ("grid", "more"),
    [
        ({"tensor": 2}, {"recompute.num_layers": "3"}),
        ({"tensor": 2}, BLOCK2),
        ({"pipe": 2, "tensor": 2}, {}),
        ({"pipe": 4}, {}),
        ({"pipe": 2, "data": 2}, {"parallel.pipeline_split": "3,1"}),
        ({"pipe": 4}, {"train.grad_acc_steps": "2", "train.global_batch": "4"}),
    ],
    ids=["uniform3", "block2", "pp2tp2", "pp4", "pp2dp2", "pp4gas2"],
)
def test_the_contiguous_buffer_has_the_size_that_is_used(grid, more):
    run_ranks(size(grid), _fills_the_contiguous_buffer, grid, {**CONTIGUOUS, **more})


def _take_turns() -> None:
    import torch

    dry = {"model.num_layers": "4"}
    kinds = [DEEPSPEED, PARTITIONED, CONTIGUOUS, {**CONTIGUOUS, **BLOCK2}, {}]
    made = [make({"tensor": 2}, {**dry, **kind}) for kind in kinds]
    for step in range(2):
        losses = [engine.train_step(batches(run, step, 0), 1e-2).loss for run, _, engine in made]
        assert all(torch.equal(loss, losses[0]) for loss in losses)


@pytest.mark.dist
def test_engines_take_turns_step_by_step():
    run_ranks(2, _take_turns)


def _logs_times() -> None:
    from megads.engine.deepspeed.recompute import LOG

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    found: list[str] = []
    handler, level = Lines(), LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        run, groups, engine = make({"tensor": 2}, {**DROPOUT, **DEEPSPEED, "recompute.profile": "1"})
        engine.train_step(batches(run, 0, groups.data_rank), 1e-3)
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(level)
    pieces = run.model.num_layers * run.train.grad_acc_steps
    timed = [line.split()[1] for line in found if line.startswith("recompute: ") and line.endswith(" ms")]
    assert sorted(timed) == ["backward"] * pieces + ["fwd"] * pieces
    assert all(float(line.split()[2]) > 0 for line in found if line.startswith("recompute: "))


@pytest.mark.dist
def test_profiling_logs_every_piece():
    run_ranks(2, _logs_times)


def _gathers_little(changes: Changes, share: float, *, other_form: bool) -> None:
    from dataclasses import replace

    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode

    from megads.parallel.recompute import torch_checkpoint

    class Gathered(TorchDispatchMode):
        """Follows the gathered weights that are alive together."""

        alive: list[tuple[Any, int]] = []  # noqa: RUF012
        most = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func._schema.name == "c10d::_allgather_base_":
                self.alive = [(ref, numel) for ref, numel in self.alive if not ref.expired()]
                self.alive.append((StorageWeakRef(args[0].untyped_storage()), args[0].numel()))
                self.most = max(self.most, sum(numel for _, numel in self.alive))
            return func(*args, **(kwargs or {}))

    run, groups, engine = make({"data": 2}, {**DROPOUT, **STAGES["zero3"], **changes})
    if other_form:
        engine.module.recompute = replace(engine.module.recompute, checkpoint=torch_checkpoint)
    engine.train_step(batches(run, 0, groups.data_rank), 1e-3)
    with Gathered() as gathered:
        engine.train_step(batches(run, 1, groups.data_rank), 1e-3)
    whole = sum(parameter.ds_numel for parameter in engine.module.parameters())
    assert gathered.most > 0
    assert (gathered.most > share * whole) if other_form else (gathered.most < share * whole)


@pytest.mark.dist
def test_zero3_gathers_one_module_after_the_other_while_it_recomputes():
    run_ranks(2, partial(_gathers_little, {}, 0.2, other_form=False))
    run_ranks(2, partial(_gathers_little, recompute(num_layers="4"), 0.2, other_form=False))
    # The reason for the reentrant form: the other one holds all four layers of the group.
    run_ranks(2, partial(_gathers_little, recompute(num_layers="4"), 0.7, other_form=True))


# What is refused


def test_a_deepspeed_that_makes_streams_is_known():
    import torch

    from megads.engine.deepspeed.recompute import makes_streams

    class Old(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            transport_stream = x
            return transport_stream

    class New(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x

    assert makes_streams(Old)
    assert not makes_streams(New)
