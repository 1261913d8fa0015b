"""What is drawn is what the search found."""

from __future__ import annotations

import pytest

from megads.monitor.plots.plan.data import MOST_LAYOUTS, layout_name, planned_hosts, planned_layouts
from megads.plan.memory import GIB
from megads.plan.search.hosts import Row
from tests.monitor.plots.plan.made import searched

PP4 = {"PP": "4", "PIPELINE_SCHEDULE": "1f1b"}


def test_layouts_have_the_numbers_of_the_candidates():
    found = searched(**PP4)
    planned = planned_layouts(found, [7.0])
    assert planned.title == "7B on a100: 2 hosts x 4"
    assert planned.lines[0].startswith("ESTIMATED, not measured: 5.93B parameters")
    assert (planned.limit_gib, planned.device_gib) == (found.ask.limit_bytes / GIB, found.ask.device_bytes / GIB)
    slower = [each for each in found.losers if each.kind == "fits"]
    assert len(planned.layouts) == min(MOST_LAYOUTS, len(found.best) + len(slower))
    assert [layout.days for layout in planned.layouts[:2]] == [7.0, None]
    for layout, candidate in zip(planned.layouts, [*found.best, *slower], strict=False):
        _, memory, time = candidate.timed()
        assert sum(layout.memory_gib.values()) == pytest.approx(memory.total / GIB)
        assert layout.memory_gib["weights"] == memory.weights / GIB
        assert sum(layout.step_s.values()) == pytest.approx(time.step_s)
        assert layout.tokens_per_s == pytest.approx(time.tokens / time.step_s)
    assert planned.timeline.schedule == "1f1b"
    assert "PP=" not in planned.layouts[0].settings  # the user gives it


def test_names_leave_out_degrees_of_one():
    names = {layout_name(each.timed()[0]) for each in searched(**PP4).best}
    assert all("PP4" in name and "ZeRO" in name and "micro" in name for name in names)
    chunks = searched(PP="4", VIRTUAL_STAGES="2", ZERO_STAGE="1", TP="1", SP="1", MICRO_BATCH="1", RECOMPUTE="full")
    assert layout_name(chunks.best[0].timed()[0]) == "PP4 VPP2 DP2 ZeRO1 micro 1 full"


def test_hosts_have_the_best_layout_of_each():
    found = searched(**PP4)
    planned = planned_hosts([Row(found.ask, None, "does not fit"), Row(found.ask, found.best[0])])
    assert [each.layout for each in planned.hosts] == ["does not fit", layout_name(found.best[0].timed()[0])]
    assert planned.hosts[0].tokens_per_s == 0
    time = found.best[0].timed()[2]
    assert planned.hosts[1].tokens_per_s == pytest.approx(time.tokens / time.step_s)
    assert planned.title == "7B on a100"
