"""Sections count for the clock that runs, and for none otherwise."""

from __future__ import annotations

import pytest

from megads.device.timeline import HostTimeline
from megads.timing.sections import BACKWARD, FORWARD, in_section, section
from megads.timing.step_times import PARTS, StepClock
from tests.timing.test_step_times import Host


def test_without_a_clock_sections_do_nothing():
    @in_section(FORWARD)
    def double(x):
        return 2 * x

    assert double(4) == 8
    host = Host()
    clock = StepClock(HostTimeline(host))
    with clock.running():
        assert double(4) == 8
    with section(BACKWARD):
        host.work(5)
    assert clock.read(0.0, 0.0).seconds == dict.fromkeys(PARTS, 0.0)


def test_a_step_that_fails_stops_its_clock():
    host = Host()
    clock = StepClock(HostTimeline(host))

    def fail():
        with clock.running(), section(FORWARD):
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fail()
    clock.end()
    before = clock.seconds()
    with section(BACKWARD):
        host.work(5)
    assert clock.seconds() == before
