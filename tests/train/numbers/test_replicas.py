"""A bit that flips in one rank's copy is found within REPLICA_INTERVAL steps, and the rank is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from megads.errors import ReplicaError
from megads.train.fault.failure import kind_of
from tests.parity.layouts import Layout
from tests.parity.loops import loop_of
from tests.ranks import run_ranks

CHANGES = {
    "model.num_layers": "1",
    "train.global_batch": "12",
    "train.train_iters": "6",
    "checkpoint.save_interval": "0",
    "stability.replica_interval": "3",
    "data.num_workers": "0",
}


def flip(tensor: torch.Tensor, bit: int) -> None:
    """Flip one bit of the first element."""
    tensor.detach().reshape(-1)[:1].view(torch.uint8)[bit // 8] ^= 1 << (bit % 8)


def parameter(loop: Any, name: str) -> torch.Tensor:
    chunks = getattr(loop.training.engine, "chunks", None) or [loop.training.engine.module]
    return next(p.data for chunk in chunks for n, p in chunk.named_parameters() if n == name)


def _flipped(layout: Layout, folder: str, rank: int, name: str, bit: int, expected: str, changes: Any) -> None:
    loop = loop_of(layout, Path(folder), **{**CHANGES, **changes})
    loop.training.hosts = [f"node{each}" for each in range(layout.ranks)]
    step, at = loop.step, loop.training

    def stepped(batches: Any) -> None:
        # From ZeRO 1 on the next update sends all weights anew, which heals a copy.
        if at.progress.iteration == (2 if layout.zero or layout.pp > 1 else 1) and at.groups.rank == rank and name:
            _ = at.engine.module
            flip(parameter(loop, name), bit)
        step(batches)

    loop.step = stepped
    if not expected:
        loop.run()
        assert loop.training.progress.iteration == 6
        assert loop.numbers.replicas.agreed_in == 6
        return
    with pytest.raises(ReplicaError) as caught:
        loop.run()
    assert expected in str(caught.value), str(caught.value)
    assert str(caught.value).startswith("step 3: replica check: ")
    assert kind_of(caught.value) == "replica"
    if " hold different" in expected:
        assert (caught.value.rank, caught.value.host) == (-1, "")
    else:
        assert (caught.value.rank, caught.value.host) == (rank, f"node{rank}")


CASES: list[Any] = [
    # layout, rank, tensor, bit, what is said
    (Layout(dp=3, zero=0, engine="native"), 1, "layers.0.mlp.down.weight", 9, "rank 1 (node1) differs from 2 other"),
    (Layout(dp=4, zero=1, engine="native"), 3, "embedding.weight", 0, "rank 3 (node3) differs from 3 other copies of "),
    (Layout(dp=3, zero=1), 2, "layers.0.input_norm.weight", 20, "rank 2 (node2) differs from 2 other copies of layers"),
    (Layout(dp=2, zero=2, engine="native"), 0, "final_norm.weight", 3, "ranks 0 (node0) and 1 (node1) hold different"),
    (Layout(dp=2, sp=2, zero=1, engine="native"), 2, "head.weight", 31, "rank 2 (node2) differs from 3 other copies"),
    (Layout(tp=4, zero=0, engine="native"), 1, "final_norm.weight", 30, "rank 1 (node1) differs from 3 other copies"),
    (
        Layout("llama-tied", pp=2, zero=0, engine="native"),
        1,
        "embedding.weight",
        1,
        "ranks 0 (node0) and 1 (node1) hold different",
    ),
]


@pytest.mark.dist
@pytest.mark.parametrize(("layout", "rank", "name", "bit", "expected"), CASES, ids=[str(case[0]) for case in CASES])
def test_a_flipped_bit_is_found_and_its_rank_named(tmp_path, layout, rank, name, bit, expected):
    changes = {"model.num_layers": str(layout.pp)}
    run_ranks(layout.ranks, _flipped, layout, str(tmp_path / "run"), rank, name, bit, expected, changes)


@pytest.mark.dist
@pytest.mark.parametrize(
    "layout",
    [
        Layout(tp=2, dp=2, zero=0, engine="native"),
        Layout(dp=2, zero=3, engine="native"),
        Layout("llama-tied", pp=2, dp=2, zero=1),
        Layout("gpt", tp=2, dp=2, zero=1, engine="native", more={"parallel.scatter_norms": "true"}),
    ],
    ids=str,
)
def test_copies_that_are_equal_stop_nothing(tmp_path, layout):
    changes = {"model.num_layers": str(layout.pp)}
    run_ranks(layout.ranks, _flipped, layout, str(tmp_path / "run"), 0, "", 0, "", changes)
