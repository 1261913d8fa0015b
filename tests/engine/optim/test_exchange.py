"""Runs of parameters become whole on the ranks that step them, and come back changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.ranks import groups_of, run_ranks

SIZES = [(6, 4), (5,), (4, 6)]  # the first is cut over tensor ranks by rows, the last by columns


def _parameters(groups):
    """Return every whole parameter, how it is cut, and this tensor rank's slice."""
    from megads.parallel.tensor import Shard, take_shard

    shards = [Shard(0, (2, 4)), None, Shard(1, (6,))]
    for number, (shape, shard) in enumerate(zip(SIZES, shards, strict=True)):
        whole = torch.arange(float(torch.Size(shape).numel())).view(shape) + 100 * number
        mine = nn.Parameter(take_shard(whole, shard, groups.tensor_rank, groups.tensor_size).clone())
        mine.shard = shard
        yield whole, mine


def _gathers_and_scatters() -> None:
    from megads.engine.optim.exchange import Batch, Slot, Team

    groups = groups_of(data=2, tensor=2)
    team = Team.of(groups, torch.device("cpu"), None)
    wholes, slots = [], []
    for number, (whole, mine) in enumerate(_parameters(groups)):
        flat = mine.detach().view(-1)
        # Of each slice the first data rank holds 3 elements, the second one the rest.
        first, last = (0, 3) if groups.data_rank == 0 else (3, flat.numel())
        run = flat[first:last]
        wholes.append(whole)
        slots.append(Slot(str(number), mine, mine.shape, first, run, lambda run=run: -run))
    owners = [3, 1, 3]
    batch = Batch(team, slots, owners)
    batch.learn()
    mine = [i for i, owner in enumerate(owners) if owner == team.me]
    gradients = batch.gather(lambda slot: slot.gradient())
    assert sorted(gradients) == mine
    assert all(torch.equal(gradients[i], -wholes[i]) for i in mine)
    batch.scatter({i: 2 * wholes[i] + 1 for i in mine})
    for slot, (_, before) in zip(slots, _parameters(groups), strict=True):
        run = before.detach().view(-1)[slot.first : slot.first + slot.count]
        assert torch.equal(slot.weight, 2 * run + 1)


@pytest.mark.dist
def test_owners_get_whole_parameters_and_every_rank_its_runs_back():
    run_ranks(4, _gathers_and_scatters)
