"""A plan as PNG: bars and blocks as long as their numbers, no text over another."""

from __future__ import annotations

from dataclasses import replace

import matplotlib.image
import pytest

from megads.errors import ConfigError
from megads.monitor.plots import plan
from megads.monitor.plots.plan.data import Planned
from megads.monitor.plots.plan.picture import render_plan, save_plan, timeline_title
from megads.plan.search.hosts import Row
from tests.monitor.plots.plan.made import TIMELINE, by_hand, of_hosts, searched
from tests.monitor.plots.test_picture import overlapping


@pytest.mark.parametrize("planned", [by_hand(), by_hand(1), by_hand(12), of_hosts()], ids=["3", "1", "12", "hosts"])
def test_no_text_lies_over_another(planned):
    assert overlapping(render_plan(planned)) == []


def test_a_timeline_that_is_shorter_than_predicted_says_so():
    timeline = replace(TIMELINE, predicted_s=24.0, of_micro_batches=1024, of_stages=128, schedule="interleaved")
    assert "; step 20.0s, 24.0s predicted (no message hidden)" in timeline_title(timeline)
    assert "predicted" not in timeline_title(replace(TIMELINE, predicted_s=20.9))
    assert overlapping(render_plan(replace(by_hand(), timeline=timeline))) == []


def test_bars_are_as_long_as_the_numbers():
    planned = by_hand()
    memory, time, speed, pipeline = render_plan(planned).axes
    for axes, stacks in (
        (memory, [each.memory_gib for each in planned.layouts]),
        (time, [each.step_s for each in planned.layouts]),
    ):
        widths = [patch.get_width() for patch in axes.patches]
        assert widths == pytest.approx([stack[key] for key in stacks[0] for stack in stacks])
        assert [patch.get_x() for patch in axes.patches[:3]] == [0, 0, 0]
        assert [patch.get_y() for patch in axes.patches[:3]] == sorted(
            [patch.get_y() for patch in axes.patches[:3]], reverse=True
        )
    assert [line.get_xdata()[0] for line in memory.lines] == [30.0, 40.0]
    assert [patch.get_width() for patch in speed.patches] == pytest.approx([64_000, 57_600, 51_200])
    ends = sorted(path.vertices[:, 0].max() for each in pipeline.collections for path in each.get_paths())
    assert ends == sorted(block.end_s for row in TIMELINE.stages for block in row)
    assert [text.get_text() for text in memory.get_legend().get_texts()] == [
        "weights",
        "gradients",
        "optimizer",
        "activations",
    ]


def test_hosts_are_drawn_without_those_that_have_no_layout():
    (axes,) = render_plan(of_hosts()).axes
    even, found = axes.lines
    assert list(found.get_xdata()) == list(even.get_xdata()) == [2, 4, 8, 16, 32]
    assert list(even.get_ydata()) == pytest.approx([1710.0 * 2**each for each in range(5)])
    assert axes.get_xscale() == "log"


def test_one_number_of_hosts_and_no_pipeline_are_drawn(tmp_path):
    one = replace(of_hosts(), hosts=of_hosts().hosts[1:2])
    save_plan(one, tmp_path / "one.png")
    save_plan(replace(by_hand(), timeline=None), tmp_path / "none.png")
    assert matplotlib.image.imread(tmp_path / "one.png").std() > 0
    assert render_plan(Planned("nothing", ("at all",))).axes == []


def test_files_of_a_search(tmp_path):
    found = searched(PP="4", PIPELINE_SCHEDULE="1f1b")
    plan.draw(found, tmp_path / "plan.picture", [3.0])
    assert matplotlib.image.imread(tmp_path / "plan.picture", format="png").shape[1] == 1320
    plan.page(found, tmp_path / "plan.html", [3.0])
    assert "7B on a100: 2 hosts x 4" in (tmp_path / "plan.html").read_text()
    rows = [Row(found.ask, found.best[0])]
    plan.draw_hosts(rows, tmp_path / "hosts.png")
    plan.page_hosts(rows, tmp_path / "hosts.html")
    assert (tmp_path / "hosts.png").stat().st_size > 1000
    for call in (plan.draw, plan.page):
        with pytest.raises(ConfigError, match=r"missing/plan\.x: No such file or directory; "):
            call(found, tmp_path / "missing/plan.x")
