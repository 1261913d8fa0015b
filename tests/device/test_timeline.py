"""Marks in time: the host's clock, and events in a device's queue."""

from __future__ import annotations

from megads.device.timeline import DeviceTimeline, HostTimeline


def test_the_host_reads_its_clock():
    times = iter([1.0, 3.5, 4.0])
    timeline = HostTimeline(lambda: next(times))
    assert timeline.seconds([timeline.mark() for _ in range(3)]) == [2.5, 0.5]


class Event:
    """Notes when it is recorded, as a device's would when its queue reaches it."""

    now = 0.0
    waits = 0

    def record(self, stream):
        assert stream == "compute"
        self.at = Event.now

    def synchronize(self):
        self.waits += 1

    def elapsed_time(self, other):
        return 1000 * (other.at - self.at)


def test_events_of_a_device_are_made_once_and_the_last_is_waited_for():
    made = []
    timeline = DeviceTimeline(lambda: made.append(Event()) or made[-1], "compute")
    for start in (0.0, 10.0):
        timeline.begin()
        marks = []
        for Event.now in (start, start + 1.5, start + 2.0):
            marks.append(timeline.mark())
        assert timeline.seconds(marks) == [1.5, 0.5]
        assert marks == made
    assert made[-1].waits == 2
    timeline.wait(marks[-1])
    assert made[-1].waits == 2
