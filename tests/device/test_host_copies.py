"""Uploads without a wait; on a device: tests/simgpu/test_host_waits.py."""

import torch

from megads.device.host_copies import HostMemory, copies_done, upload


def test_on_a_cpu_it_is_the_same_tensor():
    host = torch.arange(3)
    assert upload(host, torch.device("cpu")) is host


def test_host_memory_of_a_cpu_is_plain_and_counted():
    memory, flat = HostMemory(), torch.arange(5.0)
    taken = [memory.like(flat), memory.like(flat.to(torch.uint8))]
    assert [(each.shape, each.dtype) for each in taken] == [((5,), torch.float32), ((5,), torch.uint8)]
    assert memory.bytes == 25
    copies_done(torch.device("cpu"))()
