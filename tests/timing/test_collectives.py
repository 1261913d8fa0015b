"""Collectives are sections of communication, and so is the wait for those in the background."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from megads.device.timeline import HostTimeline
from megads.timing import collectives
from megads.timing.step_times import StepClock
from tests.timing.test_step_times import Host


class Work:
    """A collective under way, which takes 8 seconds more."""

    def __init__(self, host):
        self.host, self.is_done = host, False

    def wait(self):
        self.host.work(8)
        self.is_done = True
        return True


def test_calls_and_waits_count_as_communication():
    host = Host()

    def send(tensor, *, async_op=False):
        host.work(2)
        return Work(host) if async_op else None

    call, clock = collectives.timed(send), StepClock(HostTimeline(host))
    with clock.running():
        assert call(1) is None
        work = call(1, async_op=True)
        host.work(4)
        assert work.wait()
    assert work.is_done  # all else is the work's own
    assert clock.read(took_s=16, waited_s=0).seconds == pytest.approx(
        {"data": 0, "forward": 0, "backward": 0, "communication": 12, "optimizer": 0, "other": 4}
    )


def test_who_replaces_torchs_collective_does_so_here(monkeypatch):
    monkeypatch.setattr(dist, "all_reduce", lambda *args, **options: (args, options))
    assert collectives.all_reduce(1, group=2) == ((1,), {"group": 2})
