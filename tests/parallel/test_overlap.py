"""Products in chunks: the numbers of whole ones, in float64, and a collective under way while the next is computed."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from megads.errors import DeviceError
from megads.parallel import overlap
from megads.parallel.overlap import cut
from megads.parallel.tensor import ColumnParallelLinear, RowParallelLinear
from megads.timing.collectives import nothing_sent
from tests.ranks import groups_of, run_ranks

WIDTH, INNER, PART = 6, 8, 5  # PART: positions of a rank, which two and three chunks do not share evenly
LETTERS = {"mm": "P", "bmm": "P", "all_reduce": "S", "all_gather": "G", "reduce_scatter": "R"}
TORCHS = {"allreduce_": "all_reduce", "_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter"}


class _Recorded(TorchDispatchMode):
    """Products (P), sums (S), gathers (G) and scatters (R) of a block, in the order in which they are issued."""

    def __init__(self) -> None:
        super().__init__()
        self.order = ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.order += LETTERS.get(TORCHS.get(name, name), "")
        return func(*args, **(kwargs or {}))


def _layers(scattered: bool, chunks: int, bias: bool) -> tuple[nn.Module, nn.Module]:
    group = groups_of(tensor=dist.get_world_size()).tensor
    column = ColumnParallelLinear(WIDTH, (INNER,), group, bias=bias, scattered=scattered, chunks=chunks).double()
    row = RowParallelLinear(INNER, WIDTH, group, bias=bias, scattered=scattered, chunks=chunks).double()
    for layer in (column, row):
        for weight in layer.parameters():
            nn.init.normal_(weight)
    return column, row


def _pass(scattered: bool, chunks: int, bias: bool, batch: int, by_position: bool) -> list[Tensor]:
    """Return output and gradients of two layers; weights are this rank's own, so that mixed-up ranks show."""
    size, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(rank)
    column, row = _layers(scattered, chunks, bias)
    shape = (batch, PART if scattered else PART * size, WIDTH)
    torch.manual_seed(rank if scattered else 7)
    x, weight = torch.randn(2, *shape, dtype=torch.float64)
    if by_position:
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    x.requires_grad_()
    y = row(column(x).tanh())
    (y * weight).sum().backward()
    return [y.detach(), x.grad, *(each.grad for each in (*column.parameters(), *row.parameters()))]


def _chunks_are_the_whole() -> None:
    for scattered, bias, (batch, by_position) in product(
        (False, True), (False, True), ((1, False), (3, False), (3, True))
    ):
        whole = _pass(scattered, 1, bias, batch, by_position)
        for chunks in (0, 3, 64):
            found = _pass(scattered, chunks, bias, batch, by_position)
            for number, (one, many) in enumerate(zip(whole, found, strict=True)):
                case = f"{scattered=} {bias=} {batch=} {by_position=} {chunks=} tensor {number}"
                assert torch.allclose(many, one, rtol=1e-12, atol=1e-12), case
                assert torch.equal(one, many) or chunks, case


@pytest.mark.dist
@pytest.mark.parametrize("degree", [2, 4])
def test_chunks_give_the_numbers_of_the_whole(degree):
    run_ranks(degree, _chunks_are_the_whole)


def _frozen_layers() -> None:
    """Only what is asked for is computed, in chunks as in one: an input, a weight or a bias without a gradient."""
    for scattered, frozen in product((False, True), ("x", "weight", "bias")):
        found = []
        for chunks in (1, 2):
            torch.manual_seed(dist.get_rank())
            layers = _layers(scattered, chunks, True)
            for layer in layers:
                if frozen != "x":
                    getattr(layer, frozen).requires_grad_(False)
            for layer, width in zip(layers, (WIDTH, INNER // dist.get_world_size()), strict=True):
                torch.manual_seed(3)
                is_part = scattered and layer is layers[0]
                x = torch.randn(2, PART if is_part else 2 * PART, width, dtype=torch.float64)
                layer(x.requires_grad_(frozen != "x")).square().sum().backward()
                assert (x.grad is None) == (frozen == "x")
                for name in ("weight", "bias"):
                    assert (getattr(layer, name).grad is None) == (name == frozen)
                found += [each.grad for each in (x, layer.weight, layer.bias) if each.grad is not None]
            half = len(found) // chunks
        for one, two in zip(found[:half], found[half:], strict=True):
            torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


@pytest.mark.dist
def test_frozen_layers_compute_no_more_in_chunks():
    run_ranks(2, _frozen_layers)


def _order(scattered: bool, chunks: int, expected: tuple[str, str]) -> None:
    column, row = _layers(scattered, chunks, False)
    x = torch.randn(1, 4 if scattered else 8, WIDTH, dtype=torch.float64, requires_grad=True)
    with _Recorded() as forward:
        y = row(column(x))
    with _Recorded() as backward:
        y.sum().backward()
    assert (forward.order, backward.order) == expected


@pytest.mark.dist
@pytest.mark.parametrize(
    ("scattered", "chunks", "expected"),
    [
        # A product's sum begins before the next product. Backwards a row layer talks to nobody.
        (False, 2, ("P" + "PSPS", "PP" + "PSPS" + "P")),
        (False, 1, ("P" + "PS", "PP" + "PS" + "P")),
        # All gathers are on their way before the first product, of the own part. The weight's gradient comes last.
        (True, 2, ("GG" + "PPP" + "PRPR", "GG" + "PPP" + "P" + "G" + "PRPR" + "P")),
        (True, 1, ("GP" + "PR", "GPP" + "G" + "PR" + "P")),
    ],
)
def test_a_collective_is_under_way_while_the_next_product_is_computed(scattered, chunks, expected):
    run_ranks(2, _order, scattered, chunks, expected)


def _fused_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the products by which torch itself describes its fused ones, as its kernels need NVIDIA devices."""
    import torch.distributed._symmetric_memory as symmetric

    ours = torch.library.Library("symm_mem", "IMPL")
    ours.impl("fused_all_gather_matmul", symmetric._fused_all_gather_matmul_fallback, "CPU")
    ours.impl("fused_matmul_reduce_scatter", symmetric._fused_matmul_reduce_scatter_fallback, "CPU")
    enabled: list[str] = []
    monkeypatch.setattr(symmetric, "enable_symm_mem_for_group", enabled.append)
    monkeypatch.setattr(overlap, "_has_symmetric_memory", lambda _: True)
    monkeypatch.setattr(overlap, "_ENABLED", set())
    for bias, batch in product((False, True), (1, 3)):
        whole = _pass(True, 1, bias, batch, False)
        for one, fused in zip(whole, _pass(True, overlap.SYMMETRIC_MEMORY, bias, batch, False), strict=True):
            torch.testing.assert_close(fused, one, rtol=1e-12, atol=1e-12)
    assert enabled == [groups_of(tensor=2).tensor.group_name]
    ours._destroy()


def _with_patches(check) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        check(monkeypatch)


@pytest.mark.dist
def test_fused_products_of_symmetric_memory_give_the_same():
    run_ranks(2, _with_patches, _fused_products)


def _refused() -> None:
    with pytest.raises(
        DeviceError, match=r"TP_OVERLAP_WITH=symmetric_memory works on NVIDIA devices, not on cpu; use "
    ):
        _pass(True, overlap.SYMMETRIC_MEMORY, False, 1, False)


@pytest.mark.dist
def test_symmetric_memory_needs_nvidia():
    run_ranks(2, _refused)


def _one_rank_asks_for_a_form() -> None:
    if dist.get_rank() == 1:
        return
    with nothing_sent():
        formed = _pass(True, overlap.SYMMETRIC_MEMORY, True, 3, False)
        plain = _pass(True, 1, True, 3, False)
    assert [each.shape for each in formed] == [each.shape for each in plain]


@pytest.mark.dist
def test_the_form_of_fused_products_needs_no_other_rank():
    run_ranks(2, _one_rank_asks_for_a_form)


@pytest.mark.parametrize(
    ("length", "chunks", "sizes"),
    [(8, 2, [4, 4]), (5, 2, [3, 2]), (5, 3, [2, 2, 1]), (2, 4, [1, 1]), (1, 9, [1]), (6, 1, [6]), (6, 0, [6])],
)
def test_chunks_are_neighbours_and_cover_everything(length, chunks, sizes):
    found = cut(length, chunks)
    assert [len(range(length)[each]) for each in found] == sizes
    assert [index for each in found for index in range(length)[each]] == list(range(length))
