"""Storages are counted once, under the first kind."""

from __future__ import annotations

import torch

from megads.engine.memory_count import MemoryCounter


def test_a_storage_counts_once_and_whole():
    flat = torch.zeros(10)
    counter = MemoryCounter("cpu")
    counter.add("weights", [flat[2:4]])
    counter.add("optimizer", [flat, torch.zeros(3)])
    assert (counter.found.weights, counter.found.optimizer, counter.found.total) == (40, 12, 52)


def test_what_gradients_cover_of_a_bucket():
    flat = torch.zeros(10)
    counter = MemoryCounter("cpu")
    counter.add_covered("gradients", [flat[2:4], flat[3:6]])
    assert (counter.found.gradients, counter.found.buffers) == (16, 24)


def test_memory_of_another_device_is_on_the_host():
    counter = MemoryCounter("cuda")
    counter.add("optimizer", [torch.zeros(3)])
    assert counter.found.on_host == 12


def test_empty_storages_are_nothing():
    counter = MemoryCounter("cpu")
    tensor = torch.zeros(4)
    tensor.untyped_storage().resize_(0)
    counter.add("weights", [tensor])
    assert counter.found.total == 0


def test_tensors_without_data_count_unless_they_are_shapes_only():
    from torch._subclasses.fake_tensor import FakeTensorMode

    counter = MemoryCounter("cpu")
    with FakeTensorMode():
        flat, other = torch.zeros(10), torch.zeros(3)
    shape = torch.zeros(100, device="meta")
    counter.add("weights", [flat[2:4], flat, other, shape])
    counter.add_covered("gradients", [shape])
    assert (counter.found.total, counter.found.on_host) == (52, 0)
