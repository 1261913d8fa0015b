"""What ZeRO costs: memory while a model is made and while it runs, bytes on the wire, process groups."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from tests.engine.plain import batches, make_engine, settings, train, working_weights
from tests.engine.test_zero_stages import HPZ, KINDS, SPLIT_ALL
from tests.ranks import groups_of, run_ranks


def _starts_with_the_same_weights(kind: str) -> None:
    import torch

    from megads.models.build import build_model

    changes = {"model.family": "gpt"} if kind == "gpt" else {}
    grid = {"tensor": 2, "data": 2}
    run, groups = settings(grid, **SPLIT_ALL, **changes), groups_of(**grid)
    plain = dict(build_model(run, groups).named_parameters())
    engine = make_engine(run, groups)
    for state, working in zip(engine.state.by_parameter(), working_weights(engine), strict=True):
        assert torch.equal(state.tensors["weight"], plain[state.name]), state.name
        assert torch.equal(working, plain[state.name]), state.name


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["llama", "gpt"])
def test_partitioned_weights_start_as_whole_ones_do(kind):
    run_ranks(4, _starts_with_the_same_weights, kind)


def _lets_go_of_gathered_weights() -> None:
    # Nothing is kept for later: every module gathers again.
    changes = {**SPLIT_ALL, "deepspeed.max_live_parameters": "1", "deepspeed.max_reuse_distance": "0"}
    changes["deepspeed.prefetch_bucket_size"] = "0"
    run, groups = settings({"data": 2}, **changes), groups_of(data=2)
    engine = make_engine(run, groups)
    seen: dict[str, Any] = {}
    for name, parameter in engine.module.named_parameters():
        owner = engine.module.get_submodule(name.rpartition(".")[0])

        def look(module: Any, inputs: Any, output: Any, name: str = name, parameter: Any = parameter) -> None:
            seen[name] = parameter.data.untyped_storage()

        owner.register_forward_hook(look, prepend=True)
    part = batches(run, 0, groups.data_rank)[0]
    engine.engine.train()
    with engine.surroundings():
        loss = engine.engine(part[:, :-1], part[:, 1:])
        kept = _still_held(seen)
        engine.engine.backward(loss)
    assert len(seen) == len(engine.state.parameters)
    assert kept == set()


def _still_held(storages: dict[str, Any]) -> set[str]:
    """Names whose storage somebody besides us holds for a minute.

    gloo's thread drops its own reference a moment after it has reported a gather as done: on a busy machine the
    last gather of a forward pass can still be in its hands when the pass returns.
    """
    import torch

    end = time.monotonic() + 60
    while True:
        kept = {name for name, storage in storages.items() if torch._C._storage_Use_Count(storage._cdata) > 1}
        if not kept or time.monotonic() > end:
            return kept
        time.sleep(0.01)


@pytest.mark.dist
def test_a_forward_pass_keeps_no_gathered_weight():
    run_ranks(2, _lets_go_of_gathered_weights)


def _makes_no_groups(changes: dict[str, str]) -> None:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    grid = {"data": dist.get_world_size()}
    groups = groups_of(**grid)
    for name in ("data_seq", "model", "tensor", "pipe", "world"):
        groups.process_group(name)
    made: list[Any] = []
    real = dist.new_group

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(args or kwargs["ranks"])
        return real(*args, **kwargs)

    try:
        dist.new_group = distributed_c10d.new_group = counted
        make_engine(settings(grid, **changes), groups)
    finally:
        dist.new_group = distributed_c10d.new_group = real
    assert len(made) == (1 if "deepspeed.hpz_partition_size" in changes else 0)


@pytest.mark.dist
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", [*KINDS, "hpz"])
def test_an_engine_makes_no_group_of_its_own(kind, size):
    """Or one, of which only the members meet, for hpZ."""
    run_ranks(size, _makes_no_groups, HPZ if kind == "hpz" else KINDS[kind])


def _sends_what_is_published(kind: str, steps: int, dtype: str) -> None:
    """Elements per step on the data axis, in units of the parameters; the norm's few numbers aside."""
    import math

    from megads.engine.base import whole_shape
    from tests.parity.recorder import Traffic

    grid = {"data": 2}
    batch = {"train.grad_acc_steps": str(steps), "train.micro_batch": str(4 // steps)}
    once = {"deepspeed.max_live_parameters": "1", "deepspeed.max_reuse_distance": "0"}
    changes = {**KINDS[kind], **once, **batch, "train.dtype": dtype}
    run, groups = settings(grid, **changes), groups_of(**grid)
    engine = make_engine(run, groups)
    count = sum(math.prod(whole_shape(parameter)) for parameter in engine.module.parameters())
    train(engine, run, groups, 0, 3)
    with Traffic(groups) as traffic:
        train(engine, run, groups, 3, 4)
    sent = {name: round(size / count, 3) for (_, name), size in traffic.elements.items() if size > 10}
    assert (
        sent
        == {
            "zero1": {"reduce-scatter": 1.0, "all-gather": 1.0},
            "zero2": {"reduce": steps * 1.0, "all-gather": 1.0},
            "zero3-all": {"reduce-scatter": steps * 1.0, "all-gather": steps * 2.0},
        }[kind]
    )
    if kind == "zero1":
        calls = {name: number for (_, name), number in traffic.calls.items()}
        assert (calls["reduce-scatter"], calls["all-gather"]) == (2, 2)  # one of each per group of parameters


@pytest.mark.dist
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("kind", ["zero1", "zero2", "zero3-all"])
def test_nothing_is_sent_beyond_the_published_algorithm(kind, steps, dtype):
    run_ranks(2, _sends_what_is_published, kind, steps, dtype)


def _never_holds_the_whole_model() -> None:
    import math

    import torch

    from megads.engine.base import whole_shape
    from megads.engine.deepspeed.zero import partitioned
    from megads.models.build import build_model

    wide = {"model.num_layers": "4", "model.hidden_size": "1024", "model.num_heads": "8"}
    run, groups = settings({"data": 4}, **SPLIT_ALL, **wide), groups_of(data=4)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts again
    before = _status("VmRSS")
    with partitioned(run, groups, torch.device("cpu")):
        module = build_model(run, groups)
    grown = _status("VmHWM") - before
    sizes = [4 * math.prod(whole_shape(parameter)) for parameter in module.parameters()]
    assert sum(sizes) > 160e6
    assert grown < sum(sizes) / 4 + 2 * max(sizes) + 8e6
    assert grown < sum(sizes) / 2


def _status(name: str) -> int:
    """Return a size of this process in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))


@pytest.mark.dist
@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux")
def test_no_rank_ever_holds_the_whole_model():
    run_ranks(4, _never_holds_the_whole_model)


def _takes_no_larger_bucket(stage: str, asked: int) -> None:
    import torch
    from torch.overrides import TorchFunctionMode

    class Largest(TorchFunctionMode):
        count = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            if func is torch.empty:
                self.count = max(self.count, made.numel())
            return made

    changes = {**SPLIT_ALL, "parallel.zero_stage": stage, "deepspeed.reduce_bucket_size": str(asked)}
    run, groups = settings({"data": 2}, **changes), groups_of(data=2)
    with Largest() as largest:
        engine = make_engine(run, groups)
        train(engine, run, groups, 0, 1)
    everything = sum(getattr(each, "ds_numel", each.numel()) for each in engine.state.parameters)
    assert 0 < largest.count <= everything
    assert engine.engine.optimizer.reduce_bucket_size == min(asked, everything)


@pytest.mark.dist
@pytest.mark.parametrize("asked", [50_000_000, 3000])
@pytest.mark.parametrize("stage", ["2", "3"])
def test_a_bucket_is_no_larger_than_what_it_is_for(stage, asked):
    run_ranks(2, _takes_no_larger_bucket, stage, asked)
