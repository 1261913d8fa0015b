"""Checksums: every bit counts, in every type, and ranks compare them in one collective."""

from __future__ import annotations

import pytest
import torch

from megads.train.numbers.checksums import checksum, checksums, differing
from tests.ranks import groups_of, run_ranks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.uint8])
def test_every_bit_counts(dtype):
    tensor = (100 * torch.randn(3, 117, generator=torch.Generator().manual_seed(2))).to(dtype)
    first = int(checksum(tensor))
    assert int(checksum(tensor.clone())) == first
    assert int(checksum(tensor.t().contiguous().t())) == first
    raw = tensor.view(-1).view(torch.uint8)
    for byte in (0, 1, len(raw) // 2, len(raw) - 1):
        for bit in range(8):
            raw[byte] ^= 1 << bit
            assert int(checksum(tensor)) != first, (byte, bit)
            raw[byte] ^= 1 << bit
    assert int(checksum(tensor)) == first


def test_elements_that_change_places_are_seen():
    tensor = torch.randn(1000)
    first = int(checksum(tensor))
    tensor[[3, 4]] = tensor[[4, 3]]
    assert int(checksum(tensor)) != first


def test_nothing_has_a_checksum_too():
    assert int(checksum(torch.zeros(0))) == 0
    assert checksums([], torch.device("cpu")).shape == (0,)


def _differing() -> None:
    groups = groups_of(data=3)
    mine = torch.tensor([5, -7, 2**62 + groups.rank, -(2**63), groups.rank == 1])
    assert differing(mine, groups.data_seq).tolist() == [False, False, True, False, True]


@pytest.mark.dist
def test_ranks_find_what_is_not_the_same_everywhere():
    run_ranks(3, _differing)
