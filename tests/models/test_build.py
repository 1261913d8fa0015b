"""Initial weights: from (seed, name) alone, for every layout."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.models import build
from megads.models.build import build_model, draw
from megads.parallel.tensor import join_shards, placed
from tests.models import shapes
from tests.models.shapes import KINDS, make_run
from tests.ranks import groups_of, run_ranks

ONE = Groups(Grid(), 0)


def _slices_join_to_the_whole(kind: str) -> None:
    size = dist.get_world_size()
    whole = dict(build_model(make_run(KINDS[kind]), ONE).named_parameters())
    for name, mine in build_model(make_run(KINDS[kind]), groups_of(tensor=size)).named_parameters():
        slices = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(slices, mine.detach())
        assert torch.equal(join_shards(slices, mine.shard), whole[name]), name


@pytest.mark.dist
@pytest.mark.parametrize("degree", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_slices_join_to_the_whole(kind, degree):
    run_ranks(degree, _slices_join_to_the_whole, kind)


def test_weights_are_normal_with_narrow_output_projections():
    model = shapes.LLAMA.model_copy(update={"hidden_size": 128, "ffn_hidden_size": 256, "init_std": 0.05})
    weights = dict(build_model(make_run(model), ONE).named_parameters())
    narrow = 0.05 / math.sqrt(2 * model.num_layers)
    expected = {
        "embedding.weight": 0.05,
        "head.weight": 0.05,
        "layers.0.attention.qkv.weight": 0.05,
        "layers.1.mlp.gate_up.weight": 0.05,
        "layers.0.attention.out.weight": narrow,
        "layers.1.mlp.down.weight": narrow,
    }
    for name, std in expected.items():
        assert weights[name].std().item() == pytest.approx(std, rel=0.05), name
        assert weights[name].mean().abs().item() < 0.05 * std, name
    assert torch.equal(weights["final_norm.weight"], torch.ones(128))


def test_gpt_starts_with_zero_biases():
    for name, weight in build_model(make_run(shapes.GPT), ONE).named_parameters():
        if name.endswith("bias"):
            assert torch.count_nonzero(weight) == 0, name
        if name.endswith("norm.weight"):
            assert torch.equal(weight, torch.ones_like(weight)), name


def test_seed_and_name_decide_alone():
    first = dict(build_model(make_run(shapes.LLAMA, seed=1), ONE).named_parameters())
    torch.rand(7)
    again = dict(build_model(make_run(shapes.LLAMA, seed=1), ONE).named_parameters())
    other = dict(build_model(make_run(shapes.LLAMA, seed=2), ONE).named_parameters())
    matrices = [name for name, weight in first.items() if weight.ndim > 1]
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in matrices)
    assert not torch.equal(first["layers.0.mlp.down.weight"], first["layers.1.mlp.down.weight"])


def test_rectangles_are_drawn_as_they_stand_in_the_whole():
    whole = draw("x.weight", 7, 1.0, range(200), range(150))
    assert whole.shape == (200, 150)
    for rows in (range(0, 10), range(60, 70), range(64, 128), range(100, 200)):
        for columns in (range(150), range(64, 65), range(63, 130)):
            part = draw("x.weight", 7, 1.0, rows, columns)
            assert torch.equal(part, whole[rows.start : rows.stop, columns.start : columns.stop])


def test_tiles_differ():
    whole = draw("x.weight", 7, 1.0, range(128), range(128))
    corners = [whole[i : i + 64, j : j + 64] for i in (0, 64) for j in (0, 64)]
    assert not any(torch.equal(one, other) for i, one in enumerate(corners) for other in corners[:i])


def test_the_numbers_do_not_change_between_versions():
    """A change here changes every new run; torch documents no guarantee, so we keep our own."""
    numbers = draw("layers.0.mlp.down.weight", 1234, 1.0, range(4), range(8)).flatten()[[0, 1, 31]]
    torch.testing.assert_close(numbers, torch.tensor([-0.8003091, -0.6831996, -0.4556776]), rtol=1e-5, atol=1e-6)


class PeakBytes(TorchDispatchMode):
    """Counts the bytes of every storage that an operation makes, from then until it is freed."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and (storage := result.untyped_storage()) not in self.known:
            self.known.add(storage)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.freed, storage.nbytes())
        return result

    def freed(self, nbytes: int) -> None:
        self.now -= nbytes


def test_a_bf16_model_is_built_in_its_own_bytes(monkeypatch):
    """Float32 weights that are cast when all are there take 6 bytes a parameter; here it is 2 and some rows."""
    monkeypatch.setattr(build, "AT_ONCE", 64 * 128)
    model = shapes.LLAMA.model_copy(update={"hidden_size": 128, "ffn_hidden_size": 512, "num_layers": 4})
    with PeakBytes() as counted, placed(torch.device("cpu"), torch.bfloat16):
        module = build_model(make_run(model), ONE)
    count = sum(weight.numel() for weight in module.parameters())
    drawn = 3 * 4 * 64 * 512  # rows, as tiles and as fused parts
    assert 2 * count <= counted.peak <= 2 * count + drawn
    assert counted.peak < 3 * count
    for name, weight in build_model(make_run(model), ONE).named_parameters():
        assert torch.equal(weight.bfloat16(), module.get_parameter(name)), name
        assert module.get_parameter(name).shard == weight.shard


def _blocks_of_rows_are_the_whole(kind: str) -> None:
    groups = groups_of(tensor=dist.get_world_size())
    before = build.AT_ONCE, build.TILE
    build.TILE = 4
    try:
        whole = dict(build_model(make_run(KINDS[kind]), groups).named_parameters())
        build.AT_ONCE = 64
        blocks = dict(build_model(make_run(KINDS[kind]), groups).named_parameters())
        assert max(len(list(build._blocks(weight.shape))) for weight in whole.values()) > 4
    finally:
        build.AT_ONCE, build.TILE = before
    assert all(torch.equal(blocks[name], whole[name]) for name in whole)


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["llama", "gpt"])
def test_parameters_are_drawn_block_by_block(kind):
    run_ranks(2, _blocks_of_rows_are_the_whole, kind)
