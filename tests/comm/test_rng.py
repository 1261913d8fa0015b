"""Random streams: equal where activations are replicated, different where they are split."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.comm.rng import RngStreams, seed_everything
from megads.errors import CheckpointError

CPU = torch.device("cpu")


def _draws(grid: Grid, rank: int, seed: int = 7) -> tuple[list[float], list[float]]:
    streams = seed_everything(seed, Groups(grid, rank), CPU)
    default = torch.rand(3).tolist()
    with streams.fork():
        return default, torch.rand(3).tolist()


def test_tensor_ranks_share_the_default_and_differ_in_the_fork():
    grid = Grid(data=2, tensor=2)
    draws = [_draws(grid, rank) for rank in range(4)]
    assert len({tuple(default) for default, _ in draws}) == 1
    assert draws[0][1] != draws[1][1]
    # data-parallel ranks repeat each other
    assert draws[0][1] == draws[2][1]
    assert draws[1][1] == draws[3][1]


def test_stages_differ():
    assert _draws(Grid(pipe=2), 0)[0] != _draws(Grid(pipe=2), 1)[0]


def test_the_seeds_are_those_of_megatron():
    default, forked = _draws(Grid(pipe=2, tensor=2), 3, seed=1234)
    assert default == torch.rand(3, generator=torch.Generator().manual_seed(1334)).tolist()
    assert forked == torch.rand(3, generator=torch.Generator().manual_seed(1334 + 2718 + 1)).tolist()


def test_sequence_ranks_differ_in_both_streams_and_agree_outside_torch():
    grid = Grid(pipe=2, seq=2, tensor=2)
    draws = [_draws(grid, rank) for rank in range(8)]
    assert len({tuple(forked) for _, forked in draws}) == 8
    # default: one stream for each stage and sequence rank, shared by the tensor ranks
    assert len({tuple(default) for default, _ in draws}) == 4
    assert draws[0][0] == draws[1][0]
    assert draws[0] == _draws(Grid(), 0)
    outside = []
    for rank in (0, 3):
        seed_everything(7, Groups(grid, rank), CPU)
        outside.append((random.random(), float(np.random.rand())))
    assert outside[0] == outside[1]


def test_the_seeds_of_a_sequence_rank():
    default, forked = _draws(Grid(pipe=2, seq=4, tensor=2), 8 + 2 * 3 + 1, seed=1234)
    base = 1234 + 100 + 3 * 2**20
    assert default == torch.rand(3, generator=torch.Generator().manual_seed(base)).tolist()
    assert forked == torch.rand(3, generator=torch.Generator().manual_seed(base + 2718 + 1)).tolist()


def test_streams_are_taken_and_put_back():
    streams = seed_everything(1, Groups(Grid(), 0), CPU)
    taken = streams.states()
    assert set(taken) == {"model-parallel"}
    with streams.fork():
        first = torch.rand(3).tolist()
    default = torch.rand(1).item()
    streams.use_states(taken)
    with streams.fork():
        assert torch.rand(3).tolist() == first
    # drawing changed neither what was taken nor, by putting back, the default generators
    streams.use_states(taken)
    with streams.fork():
        assert torch.rand(3).tolist() == first
    expected = torch.rand(2, generator=torch.Generator().manual_seed(1)).tolist()
    assert [default, torch.rand(1).item()] == expected


def test_a_fork_does_not_advance_the_default_and_continues_where_it_left():
    streams = seed_everything(1, Groups(Grid(), 0), CPU)
    expected = torch.rand(4, generator=torch.Generator().manual_seed(1)).tolist()
    first = torch.rand(2).tolist()
    with streams.fork():
        inside = torch.rand(2).tolist()
    with pytest.raises(KeyError), streams.fork("nobody"):
        pass
    second = torch.rand(2).tolist()
    with streams.fork():
        inside += torch.rand(2).tolist()
    assert first + second == expected
    assert inside == torch.rand(4, generator=torch.Generator().manual_seed(1 + 2718)).tolist()


def test_a_fork_that_fails_restores_the_default():
    streams = seed_everything(1, Groups(Grid(), 0), CPU)
    with pytest.raises(ZeroDivisionError), streams.fork():
        torch.rand(1).item() / 0
    assert torch.rand(1).item() == torch.rand(1, generator=torch.Generator().manual_seed(1)).item()


def test_the_state_comes_back_through_a_weights_only_file(tmp_path):
    def draw() -> list[float]:
        numbers = [random.random(), float(np.random.rand()), float(np.random.randn()), torch.rand(1).item()]
        with streams.fork():
            return [*numbers, torch.rand(1).item()]

    streams = seed_everything(3, Groups(Grid(), 0), CPU)
    draw()
    torch.save(streams.state_dict(), tmp_path / "rng.pt")
    expected = draw()
    streams = seed_everything(99, Groups(Grid(), 0), CPU)
    streams.load_state_dict(torch.load(tmp_path / "rng.pt", weights_only=True))
    assert draw() == expected


def test_state_of_other_streams_is_refused():
    saved = RngStreams(CPU, {"other": 1}).state_dict()
    with pytest.raises(CheckpointError, match="has the streams other; this run has model-parallel"):
        seed_everything(1, Groups(Grid(), 0), CPU).load_state_dict(saved)
    streams = seed_everything(1, Groups(Grid(), 0), CPU)
    saved = streams.state_dict()
    saved["default"] = {**saved["default"], "device": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=r"saved for cpu \+ device; this run is on cpu"):
        streams.load_state_dict(saved)
