"""A run that does not fit the devices or hosts that are there ends in one line before anything is built."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.device.vendor import VENDORS, Vendor
from megads.errors import ConfigError
from megads.plan.memory import GIB, estimate, host_bytes
from megads.train import memory_check
from megads.train.memory_check import FreeMemory, check_memory, device_problem, least_host
from tests.engine.plain import settings
from tests.ranks import groups_of, run_ranks

ALONE = Groups(Grid(), 0)
BIG = {"model.hidden_size": "4096", "model.num_layers": "8", "train.dtype": "bf16"}


def _device(free_gib: float, total_gib: float = 40) -> Vendor:
    class Row(Vendor):
        module = SimpleNamespace(mem_get_info=lambda device: (int(free_gib * GIB), int(total_gib * GIB)))

    return Row("nvidia", "cuda", ("nccl",), lambda: True)


def _check(row: Vendor, **changes: str) -> None:
    check_memory(settings({}, **{**BIG, **changes}), row, torch.device("cpu"), ALONE)


def test_a_run_that_fits_says_nothing(caplog):
    _check(_device(39.5))
    assert not caplog.records


def test_a_device_that_is_too_small_or_in_use_is_named(monkeypatch):
    monkeypatch.setattr(memory_check, "this_host", lambda: "nid7")
    run = settings({}, **BIG)
    memory = estimate(run, 1)
    needed = (memory.weights + memory.gradients + memory.optimizer) / GIB
    with pytest.raises(ConfigError) as caught:
        _check(_device(needed - 1, total_gib=40))
    assert str(caught.value) == (
        f"rank 0 on nid7 has {needed - 1:.1f} of 40.0 GiB free on its device ({41 - needed:.1f} GiB are in use by "
        f"other programs), and weights, gradients and optimizer need about {needed:.1f} GiB per rank: raise TP, PP or "
        "ZERO_STAGE (now 1, 1, 1) or use more hosts; FORCE=1 starts anyway"
    )
    with pytest.raises(ConfigError, match=r"GiB free on its device, and weights"):
        _check(_device(needed - 1, total_gib=needed - 0.9))
    _check(_device(needed - 1), **{"train.force": "true"})


def test_a_cpu_was_checked_by_the_launcher():
    _check(VENDORS[-1])


def test_activations_that_may_not_fit_are_a_warning(caplog, monkeypatch):
    run = settings({}, **BIG)
    memory = estimate(run, 1)
    free = (memory.total - memory.activations / 2 - memory.logits / 2) / GIB
    monkeypatch.setattr(logging.getLogger("megads"), "propagate", True)
    _check(_device(free))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages[0].startswith(f"memory: about {memory.total / GIB:.1f} GiB per rank with activations, and a")


def test_the_rank_with_least_is_the_one_that_is_named():
    run = settings({"data": 4}, **BIG)
    ranks = [FreeMemory(f"h{rank // 2}", free * GIB, 40 * GIB, 500 * GIB) for rank, free in enumerate((39, 39, 3, 39))]
    assert device_problem(run, estimate(run, 4), ranks).startswith(
        "rank 2 on h1 has 3.0 of 40.0 GiB free on its device"
    )
    assert device_problem(run, estimate(run, 4), [*ranks[:2], ranks[3], ranks[3]]) == ""


def test_ranks_of_a_host_are_counted():
    run = settings({"data": 4}, **BIG)
    needed = host_bytes(run, 4)
    enough = [FreeMemory("a", 0, 0, 3 * needed)] * 3 + [FreeMemory("b", 0, 0, needed)]
    assert least_host(run, enough) == ""
    told = least_host(run, [*enough[:3], FreeMemory("b", 0, 0, needed - GIB // 10)])
    assert told.startswith("b has ")
    assert "GiB of host memory for 1 rank that need about " in told
    assert least_host(run, [*enough[:3], FreeMemory("a", 0, 0, 3 * needed)]).startswith("a has ")


def test_what_is_offloaded_counts_on_the_host():
    plain, offloaded = (
        settings({}, **BIG, **changes) for changes in ({}, {"deepspeed.offload_optimizer": "cpu", "machine": "generic"})
    )
    count = estimate(plain, 1).weights // 2
    assert host_bytes(offloaded, 1) - host_bytes(plain, 1) == count * 16
    assert "use OFFLOAD_OPTIMIZER=none" in least_host(offloaded, [FreeMemory("a", 0, 0, GIB)])
    # A model of 7B on a host of 12 ranks: no copy of its weights.
    assert host_bytes(plain, 1) < 6 * GIB


def _every_rank_is_told_the_same() -> None:
    groups = groups_of(data=2)
    run, free = settings({"data": 2}, **BIG), 39.0 - 36 * groups.rank
    with pytest.raises(ConfigError, match=r"rank 1 on \S+ has 3\.0 of 40\.0 GiB free on its device"):
        check_memory(run, _device(free), torch.device("cpu"), groups)
    check_memory(run, _device(39.0), torch.device("cpu"), groups)


@pytest.mark.dist
def test_every_rank_is_told_the_same():
    run_ranks(2, _every_rank_is_told_the_same)
