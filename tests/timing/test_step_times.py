from __future__ import annotations

import pytest

from megads.device.timeline import DeviceTimeline, HostTimeline
from megads.timing.sections import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER, section
from megads.timing.step_times import PARTS, SAVE, Shares, StepClock


class Host:
    """A clock that is moved by hand."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def work(self, seconds):
        self.now += seconds


class Device:
    """A device that works off its queue while the host runs ahead; times in milliseconds, as torch has them."""

    def __init__(self, host):
        self.host, self.done_at, self.waits = host, 0.0, 0

    def order(self, seconds):
        """Put work into the queue, which takes the host no time."""
        self.done_at = max(self.done_at, self.host.now) + seconds

    def read(self):
        """Wait for all that was ordered, as reading the loss does."""
        self.host.now = max(self.done_at, self.host.now)

    def event(self):
        return Event(self)


class Event:
    def __init__(self, device):
        self.device = device

    def record(self, stream):
        assert stream == "compute"
        self.at = max(self.device.done_at, self.device.host.now)

    def synchronize(self):
        assert self.device.host.now >= self.at, "waits for the device"

    def elapsed_time(self, other):
        return 1000 * (other.at - self.at)


def _step(work, send):
    work(1)
    with section(FORWARD):
        work(2)
        with section(COMMUNICATION):
            send(4)
        work(8)
    with section(BACKWARD):
        work(16)
        with section(FORWARD), section(COMMUNICATION), section(COMMUNICATION):
            send(32)
        work(64)
    with section(OPTIMIZER):
        work(128)


EXPECTED = {"data": 0.5, "forward": 10, "backward": 80, "communication": 36, "optimizer": 128, "other": 1}


def test_a_section_inside_another_one_counts_alone():
    host = Host()
    clock = StepClock(HostTimeline(host))
    for _ in range(2):  # a step leaves nothing behind
        with clock.running():
            _step(host.work, host.work)
        times = clock.read(took_s=255.5, waited_s=0.5)
        assert times.seconds == pytest.approx(EXPECTED)
    assert times.busy_s == pytest.approx(218.5)
    assert times.row() == pytest.approx({f"time/{part}_s": seconds for part, seconds in EXPECTED.items()})


def test_what_no_section_claims_is_the_rest_of_the_step():
    host = Host()
    clock = StepClock(HostTimeline(host))
    with clock.running():
        _step(host.work, host.work)
    times = clock.read(took_s=300, waited_s=0.5)
    assert times.seconds["other"] == pytest.approx(1 + 44.5)
    assert sum(times.seconds.values()) == pytest.approx(300)


def test_on_a_device_counts_when_work_is_done_and_nobody_waits_for_it():
    host = Host()
    device = Device(host)
    made: list[Event] = []

    def make():
        made.append(device.event())
        return made[-1]

    clock = StepClock(DeviceTimeline(make, "compute"))
    for _ in range(3):
        began = host.now
        with clock.running():
            _step(device.order, device.order)
        assert host.now == began, "the host waited"
        device.read()
        times = clock.read(took_s=255.5, waited_s=0.5)
        assert times.seconds == pytest.approx(EXPECTED)
    assert len(made) == len(clock.marks)  # made once, used in every step


class Late(Event):
    """What is waited for."""

    def synchronize(self):
        self.device.host.now = max(self.device.host.now, self.at)


def test_a_step_lasts_until_the_device_is_done_with_it():
    host = Host()
    device = Device(host)
    clock = StepClock(DeviceTimeline(lambda: Late(device), "compute"))
    began = host.now
    with clock.running():
        with section(FORWARD):
            device.order(3)
        device.read()  # the loss, before the update
        with section(OPTIMIZER):
            device.order(5)
    assert host.now - began == 3
    clock.wait()
    assert host.now - began == 8
    times = clock.read(took_s=host.now - began, waited_s=0.0)
    assert times.seconds == pytest.approx({**dict.fromkeys(PARTS, 0.0), "forward": 3, "optimizer": 5})


def test_the_summary_tells_shares_of_steps_and_saves():
    shares = Shares()
    assert shares.line() == ""
    shares.update(
        {"data": 0.1, "forward": 31.0, "backward": 52.0, "communication": 8.0, "optimizer": 4.9, "other": 0.0}
    )
    assert shares.line() == "forward 32%, backward 54%, communication 8%, optimizer 5%"
    shares.update({SAVE: 4.0})
    assert shares.line() == "forward 31%, backward 52%, communication 8%, optimizer 5%, save 4%"
