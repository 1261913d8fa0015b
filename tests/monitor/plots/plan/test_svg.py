"""Charts as SVG: places and lengths follow the numbers."""

from __future__ import annotations

import itertools
import re

import pytest

from megads.monitor.plots.plan import svg
from tests.monitor.plots.plan.made import TIMELINE, of_hosts

RECT = re.compile(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" [^>]*><title>(.*?)</title>')


def test_bars_stack_in_proportion():
    text = svg.bars(["one", "two & three"], [{"a": 3.0, "b": 1.0}, {"a": 0.0, "b": 2.0}], ["4 s", "2 s"], "s", [8.0])
    found = {said: tuple(map(float, numbers)) for *numbers, said in RECT.findall(text)}
    first, second, third = found["one: a 3 s"], found["one: b 1 s"], found["two &amp; three: b 2 s"]
    assert len(found) == 3  # none for nothing
    assert first[2] == pytest.approx(3 * second[2], abs=0.02)
    assert third[2] == pytest.approx(2 * second[2], abs=0.02)
    assert second[0] == pytest.approx(first[0] + first[2], abs=0.02)
    assert third[0] == first[0]
    assert third[1] > first[1] == second[1]
    limit = float(re.search(r'class="limit" x1="([\d.]+)"', text)[1])
    assert limit - first[0] == pytest.approx(8 * second[2], abs=0.1)


def test_blocks_lie_where_they_are_in_time():
    found = RECT.findall(svg.timeline(TIMELINE))
    assert len(found) == sum(map(len, TIMELINE.stages))
    by_words = {(said, float(y)): float(x) for x, y, _, said in found}
    forward = [x for (said, _), x in by_words.items() if said.startswith("forward")]
    backward = [x for (said, _), x in by_words.items() if said.startswith("backward")]
    assert (backward[0] - backward[1]) == pytest.approx(2 * (forward[1] - forward[0]), abs=0.05)


def test_points_rise_with_the_speed():
    hosts = [each for each in of_hosts().hosts if each.tokens_per_s]
    text = svg.curve(hosts)
    points = [tuple(map(float, each)) for each in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', text)]
    assert len(points) == 5
    steps = [(b[0] - a[0], a[1] - b[1]) for a, b in itertools.pairwise(points)]
    assert all(step == pytest.approx(steps[0], abs=0.11) for step in steps)  # equal factors, equal steps
    assert "4 hosts, 32 ranks: 3,249 tokens/s, TP2 DP16" in text
    assert svg.curve(hosts[:1]).count("<circle") == 1


def test_a_legend_has_the_colours_of_the_bars():
    colours = re.findall(r"background:(#\w+)", svg.keys([("a", 0), ("b & c", 1)]))
    text = svg.bars(["x"], [{"a": 1.0, "b & c": 1.0}], [""], "s")
    assert re.findall(r'<rect [^>]*fill="(#\w+)"', text) == colours
    assert "b &amp; c" in svg.keys([("b & c", 1)])
