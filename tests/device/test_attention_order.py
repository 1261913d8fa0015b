"""The math kernel is tried behind all fused ones on NVIDIA devices; others are left alone."""

from __future__ import annotations

import pytest
import torch

from megads.device.attention_order import kernel_order, order_kernels

# Of torch's SDPBackend.
FLASH, EFFICIENT, MATH, CUDNN, OTHER = 1, 2, 0, 3, 4
BY_DEFAULT = [FLASH, EFFICIENT, MATH, CUDNN, OTHER]


def test_math_is_behind_what_is_fused_in_torchs_order():
    assert kernel_order(BY_DEFAULT) == [FLASH, EFFICIENT, CUDNN, MATH, OTHER]
    on_hopper = [CUDNN, FLASH, EFFICIENT, MATH, OTHER]
    assert kernel_order(on_hopper) == on_hopper


class Torch:
    """Torch's order, which it sets itself when it is first asked for a kernel, and what it is asked and told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, own: list[int]):
        self.order, self.own, self.asked = BY_DEFAULT, own, False
        monkeypatch.setattr(torch._C, "_set_sdp_priority_order", self.set)
        monkeypatch.setattr(torch._C, "_get_sdp_priority_order", lambda: self.order)
        monkeypatch.setattr(torch, "_fused_sdp_choice", self.ask)

    def ask(self, *heads: torch.Tensor) -> int:
        assert [each.dtype for each in heads] == [torch.float16] * 3
        if not self.asked:
            self.order, self.asked = self.own, True
        return self.order[0]

    def set(self, order: list[int]) -> None:
        self.order = order


@pytest.mark.parametrize("own", [BY_DEFAULT, [CUDNN, FLASH, MATH, EFFICIENT, OTHER]])
def test_torch_is_told_after_it_has_set_its_own(own, monkeypatch):
    found = Torch(monkeypatch, own)
    order_kernels("nvidia", torch.device("cpu"))
    half = torch.zeros(1, dtype=torch.float16)
    assert torch._fused_sdp_choice(half, half, half) == own[0]
    assert found.order == kernel_order(own) != own


@pytest.mark.parametrize("case", ["cpu", "intel", "amd", "nvidia"])
def test_others_are_left_alone(case, monkeypatch):
    found = Torch(monkeypatch, BY_DEFAULT)
    if case == "nvidia":  # with a torch that has no order
        monkeypatch.delattr(torch._C, "_set_sdp_priority_order")
    order_kernels(case, torch.device("cpu"))
    assert (found.order, found.asked) == (BY_DEFAULT, False)


def test_torch_takes_such_an_order():
    before = torch._C._get_sdp_priority_order()
    try:
        order_kernels("nvidia", torch.device("cpu"))
        assert torch._C._get_sdp_priority_order() == kernel_order(before)
    finally:
        torch._C._set_sdp_priority_order(before)
