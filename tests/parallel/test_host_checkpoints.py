"""Inputs of recomputed layers in host memory, on the simulated device: numbers, memory, order, waits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from megads.parallel.host_checkpoints import HostCheckpoints
from megads.parallel.recompute import Recompute, reentrant_checkpoint, torch_checkpoint
from tests.simgpu.counting import counting
from tests.simgpu.device import DEVICE, run_on_device

LAYERS, WIDTH, TOKENS = 6, 16, 512
CHECKPOINTS = {"torch": torch_checkpoint, "reentrant": reentrant_checkpoint}


def _layers() -> list[torch.nn.Linear]:
    torch.manual_seed(0)
    return [torch.nn.Linear(WIDTH, WIDTH).to(DEVICE) for _ in range(LAYERS)]


def _host() -> HostCheckpoints:
    device = torch.device(DEVICE)
    return HostCheckpoints(device, torch.get_device_module(device))


def _pass(layers: list[torch.nn.Linear], recompute: Recompute, micro_batches: int = 2) -> list[Tensor]:
    """Return the gradients of micro-batches, whose forward passes all come before the first backward pass."""
    inputs, outputs = [], []
    for number in range(micro_batches):
        torch.manual_seed(number)
        x = torch.randn(1, TOKENS, WIDTH).to(DEVICE).requires_grad_()
        inputs.append(x)
        y = x * 1.0
        for step in recompute.layers([lambda x, layer=layer: torch.tanh(layer(x)) for layer in layers]):
            y = step(y)
        outputs.append(y.square().sum())
    for output in outputs:
        output.backward()
    return [*(x.grad.cpu() for x in inputs), *(layer.weight.grad.cpu() for layer in layers)]


def _same_bits(name: str, method: str, num_layers: int) -> None:
    plan = {"granularity": "full", "method": method, "num_layers": num_layers, "checkpoint": CHECKPOINTS[name]}
    expected = _pass(_layers(), Recompute(**plan))
    with counting() as found:
        ours = _pass(_layers(), Recompute(**plan, host=_host()))
    for mine, plain in zip(ours, expected, strict=True):
        assert torch.equal(mine, plain)
    segments = num_layers if method == "block" else -(-LAYERS // num_layers)
    kinds = found.kinds()
    assert kinds["download_pinned"] == kinds["upload_pinned"] == 2 * segments


@pytest.mark.parametrize(
    ("name", "method", "num_layers"),
    [("torch", "uniform", 1), ("torch", "uniform", 4), ("torch", "block", 2), ("reentrant", "uniform", 1)],
)
def test_the_gradients_are_the_same_to_the_bit_and_every_input_goes_and_comes_back(name, method, num_layers):
    run_on_device(1, _same_bits, name, method, num_layers)


def _memory_and_order() -> None:
    peaks, layers = {}, _layers()
    for where, host in (("device", None), ("host", _host())):
        plan = Recompute("full", host=host)
        x = torch.randn(1, TOKENS, WIDTH).to(DEVICE).requires_grad_()
        with counting() as found:
            before = found.allocated
            y = x * 1.0
            for step in plan.layers([lambda x, layer=layer: torch.tanh(layer(x)) for layer in layers]):
                y = step(y)
            module = torch.get_device_module("gpu")
            kept = module.memory_allocated() - before
        assert not found.waits
        with counting() as found:
            y.sum().backward()
        assert not found.waits, "\n".join(map(str, found.waits))
        peaks[where] = kept
        events = [event.kind for event in found.events if event.kind == "upload_pinned"]
        assert len(events) == (LAYERS if host else 0)
    size = TOKENS * WIDTH * 4
    assert peaks["device"] - peaks["host"] >= (LAYERS - 1) * size


def test_inputs_leave_the_device_and_no_pass_waits_for_the_host():
    run_on_device(1, _memory_and_order)


def _fetched_ahead() -> None:
    asked: list[str] = []
    from megads.parallel import host_checkpoints as tested

    fetch, take = tested._Kept.fetch, tested._Kept.take
    numbers: dict[int, int] = {}

    def of(kept) -> int:
        return numbers.setdefault(id(kept), len(numbers))

    tested._Kept.fetch = lambda kept: (kept.x is None and asked.append(f"fetch {of(kept)}"), fetch(kept))[1]
    tested._Kept.take = lambda kept: (asked.append(f"take {of(kept)}"), take(kept))[1]
    try:
        _pass(_layers(), Recompute("full", host=_host()), micro_batches=1)
    finally:
        tested._Kept.fetch, tested._Kept.take = fetch, take
    expected = ["take 0", "fetch 0", "fetch 1"]
    for number in range(1, LAYERS):
        expected += [f"take {number}", *([f"fetch {number + 1}"] if number + 1 < LAYERS else [])]
    assert asked == expected


def test_the_next_input_is_fetched_before_the_layer_behind_it_is_done():
    run_on_device(1, _fetched_ahead)


def _what_is_not_of_the_device_stays() -> None:
    chain = _host().begin()
    scalar, empty = torch.ones(3), torch.empty(0, device=DEVICE)
    assert chain._pack(scalar) is scalar
    assert chain._pack(empty) is empty
    assert chain._unpack(scalar) is scalar
    kept = chain._pack(torch.arange(4.0, device=DEVICE).requires_grad_())
    for _ in range(2):  # a graph may be gone through again
        again = chain._unpack(kept)
        assert again.requires_grad
        assert again.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_only_tensors_of_the_device_are_moved():
    run_on_device(1, _what_is_not_of_the_device_stays)
