"""The native engine's state: what one ZeRO stage wrote another reads, and nothing is lost or shifted."""

from __future__ import annotations

import pytest
import torch

from tests.engine.native.stub import Stub
from tests.parity.layouts import Layout
from tests.ranks import run_ranks

OPTIMIZERS = ["adamw", "lion", "muon"]
STEPS = 4
STAGES = [Layout(dp=2, zero=stage) for stage in range(4)]


def _reads(before: Layout, after: Layout, optimizer: str) -> None:
    changes = {"optim.optimizer": optimizer}
    writer, reader = Stub(before, **changes), Stub(after, **changes)
    writer.train(STEPS)
    reader.train(1)  # what it has learned by itself must not survive
    whole, states = writer.saved(), {}
    for name, state in writer.state.whole_states():
        states[name] = state
    everyone: list = [None] * writer.groups.grid.world_size
    torch.distributed.all_gather_object(everyone, states)
    states = {name: state for each in everyone for name, state in each.items()}
    for shard in reader.state.owned_shards():
        for kind, tensor in shard.tensors.items():
            tensor.copy_(whole[shard.name][kind].flatten()[shard.first : shard.first + shard.count])
    reader.state.load_whole_states(lambda name: states.get(name, {}))
    reader.state.sync_from_masters()
    reader.state.load_scalars(writer.state.scalars())
    assert reader.state.scalars() == writer.state.scalars()
    reader.done = STEPS
    for each in (writer, reader):
        each.train(STEPS + 2)
    ours, theirs = reader.saved(), writer.saved()
    assert [*ours] == [*theirs] or set(ours) == set(theirs)
    for name, kinds in theirs.items():
        for kind, tensor in kinds.items():
            # A fused loop begins with another number of its vector.
            torch.testing.assert_close(ours[name][kind], tensor, rtol=2e-7, atol=1e-9, msg=f"{name} {kind}")


@pytest.mark.dist
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 3), (2, 0), (3, 2)])
def test_what_one_stage_wrote_another_reads(before, after, optimizer):
    run_ranks(2, _reads, STAGES[before], STAGES[after], optimizer)


def _resets(layout: Layout, optimizer: str) -> None:
    changes = {"optim.optimizer": optimizer, "train.dtype": "bf16"}
    used, new = Stub(layout, **changes), Stub(layout, **changes)
    untouched = new.state.scalars()
    used.train(3)
    used.skipped_steps = 2
    weights = used.saved()
    for shard in new.state.owned_shards():
        shard.tensors["weight"].copy_(weights[shard.name]["weight"].flatten()[shard.first : shard.first + shard.count])
    new.state.sync_from_masters()
    for each in (used, new):
        each.state.reset_optimizer()
        each.state.load_scalars(untouched)
        each.done = 0
        each.train(2)
    for name, kinds in new.saved().items():
        for kind, tensor in kinds.items():
            assert torch.equal(used.saved()[name][kind], tensor), f"{name} {kind}"
    assert used.state.scalars() == new.state.scalars()


@pytest.mark.dist
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "adamwschedulefree"])
@pytest.mark.parametrize("stage", [0, 2])
def test_a_reset_optimizer_is_a_new_one(stage, optimizer):
    run_ranks(2, _resets, STAGES[stage], optimizer)
