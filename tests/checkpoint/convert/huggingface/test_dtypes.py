"""Rounding equals torch's for every bfloat16 and float16, their ties and neighbours, infinities and NaNs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from megads.checkpoint.convert.huggingface.dtypes import pack, unpack
from megads.errors import CheckpointError


def all_upper_halves() -> np.ndarray:
    return np.arange(2**16, dtype=np.uint32) << 16


@pytest.mark.parametrize("lower", [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_bf16_is_rounded_as_torch_does(lower):
    numbers = (all_upper_halves() + np.uint32(lower)).view(np.float32)
    ours = torch.from_numpy(pack(numbers, "bf16").view(np.int16)).view(torch.bfloat16)
    theirs = torch.from_numpy(numbers).bfloat16()
    is_nan = torch.from_numpy(np.isnan(numbers))
    assert torch.equal(ours.isnan(), is_nan)
    assert torch.equal(ours[~is_nan].view(torch.int16), theirs[~is_nan].view(torch.int16))


def test_every_bf16_comes_back_as_it_was():
    stored = np.arange(2**16).astype("<u2")
    assert np.array_equal(pack(unpack(stored, "BF16"), "bf16"), stored)


def test_every_fp16_comes_back_as_it_was():
    stored = np.arange(2**16).astype("<u2").view("<f2")
    again = pack(unpack(stored, "F16"), "fp16")
    is_nan = np.isnan(stored)
    assert np.array_equal(again[~is_nan].view("<u2"), stored[~is_nan].view("<u2"))
    assert np.isnan(again[is_nan]).all()


def test_fp16_holds_up_to_65504():
    numbers = np.array([65504.0, -65519.0, np.inf, 1e-8], np.float32)
    assert pack(numbers, "fp16").tolist() == [65504.0, -65504.0, np.inf, 0.0]
    with pytest.raises(CheckpointError, match="fp16 cannot hold 65520: its largest value is 65504"):
        pack(np.array([1.0, -65520.0], np.float32), "fp16")
