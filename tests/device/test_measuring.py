"""Waits of the host are found through torch's warnings, and the mode is as before afterwards."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from megads.device.measuring import free_cached, host_waits
from megads.device.vendor import VENDORS, vendor

NVIDIA = next(row for row in VENDORS if row.name == "nvidia")


@pytest.fixture
def modes(monkeypatch):
    import torch

    found: list[Any] = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: found[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", found.append)
    return found


def test_every_wait_has_a_place_and_other_warnings_have_none(modes):
    with host_waits(NVIDIA) as found:
        assert modes[-1] == "warn"
        for _ in range(2):
            warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=1)
        warnings.warn("something else", UserWarning, stacklevel=1)
    assert found is not None
    assert len(found) == 2
    assert found[0].rpartition(":")[0] == __file__
    assert modes == [0, "warn", 0]


def test_the_mode_is_restored_after_an_error(modes):
    with pytest.raises(RuntimeError), host_waits(NVIDIA):
        raise RuntimeError("out of memory")
    assert modes == [0, "warn", 0]


def test_a_cpu_has_no_waits_to_find_and_no_cache(modes):
    row = vendor({"MEGADS_DEVICE": "cpu"})
    with host_waits(row) as found:
        assert found is None
    free_cached(row)
    assert modes == [0]


def test_the_allocator_gives_back_what_it_keeps():
    calls: list[str] = []
    row: Any = SimpleNamespace(device_type="cuda", module=SimpleNamespace(empty_cache=lambda: calls.append("empty")))
    free_cached(row)
    assert calls == ["empty"]
