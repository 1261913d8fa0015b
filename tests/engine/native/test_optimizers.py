"""What the native engine's optimizer steps, with every ZeRO stage, is what the library's own class steps alone."""

from __future__ import annotations

import pytest

from tests.engine.native.stub import Stub
from tests.engine.scripted import reference
from tests.parity.layouts import Layout
from tests.ranks import run_ranks

STEPS = 5
LAYOUTS = [
    Layout(dp=2, zero=0),
    Layout(dp=2, zero=1),
    Layout("gpt", tp=2, dp=2, zero=3),
    Layout("gqa", tp=2, zero=1),
]


def _equals_the_library(layout: Layout, name: str) -> None:
    from megads.parallel.tensor import take_shard

    changes = {"optim.optimizer": name}
    stub = Stub(layout, **changes)
    stub.train(STEPS)
    expected = reference(layout.kind, STEPS, **changes)
    for state in stub.state.by_parameter():
        shard = getattr(state.parameter, "shard", None)
        wanted = take_shard(expected[state.name], shard, stub.groups.tensor_rank, stub.groups.tensor_size)
        assert float((state.tensors["weight"] - wanted).abs().max() / wanted.abs().max()) <= 1e-6, state.name
    assert len({group["label"] for group in stub.optimizer.param_groups}) == len(stub.optimizer.param_groups)


@pytest.mark.dist
@pytest.mark.parametrize("name", ["adamw", "sgd", "adopt", "lamb", "muon"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_steps_are_those_of_the_library(layout, name):
    run_ranks(layout.ranks, _equals_the_library, layout, name)


def _owns_nothing_of_a_label() -> None:
    """Of four ranks some may own no norm, and some no matrix: all count the same steps."""
    import torch
    import torch.distributed as dist

    stub = Stub(Layout(dp=4, zero=1, more={"train.micro_batch": "1"}), **{"optim.optimizer": "lion"})
    sizes = [sum(flat.numel() for flat in group["params"]) for group in stub.optimizer.param_groups]
    everyone: list = [None] * 4
    dist.all_gather_object(everyone, sizes)
    assert all(len(each) == len(sizes) for each in everyone)
    stub.train(3)
    found = torch.tensor(list(stub.state.scalars().values()))
    scalars = [torch.empty_like(found) for _ in range(4)]
    dist.all_gather(scalars, found)
    assert all(torch.equal(each, found) for each in scalars)
    assert stub.state.scalars()["group.step"] == 3


@pytest.mark.dist
def test_ranks_that_own_nothing_of_a_label_count_the_same():
    run_ranks(4, _owns_nothing_of_a_label)
