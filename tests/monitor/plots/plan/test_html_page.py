"""The page of a plan: complete without a script, and drawn by a real browser that has no network."""

from __future__ import annotations

import re

import matplotlib.image

from megads.monitor.plots.plan.html_page import plan_page, save_plan_page
from tests.browser import browse
from tests.monitor.plots.html.test_page import ink
from tests.monitor.plots.plan.made import by_hand, of_hosts


def tables(text):
    """Return the cells of every row by the table's title and the row's name."""
    found = {}
    for title, body in re.findall(r"<h2>(.*?)</h2>\n<div class=wide><table>(.*?)</table>", text, re.DOTALL):
        for name, cells in re.findall(r"<tr><th>(.*?)</th>((?:<td.*?</td>)+)</tr>", body):
            found[title, name] = re.findall(r"<td[^>]*>(.*?)</td>", cells)
    return found


def test_every_number_stands_in_a_table():
    found = tables(plan_page(by_hand()))
    name = "PP2 &lt;DP&gt; ZeRO1 micro 1"
    assert found["Layouts", name] == ["57,600", "45.0%", "4.083", "19.80", "11.5", "TP=1 ZERO_STAGE=1"]
    assert found["Memory (GiB)", name] == ["3.60", "4.50", "5.40", "6.30", "19.80"]
    assert found["Time of a step, seconds", name] == ["3.333", "0.75", "4.083"]
    assert found["Pipeline in seconds: 1 of 7 micro-batches", "stage 0"] == ["1", "2", "0", "0.5", "3"]
    hosts = tables(plan_page(of_hosts()))
    assert hosts["Hosts", "1"] == ["8", "", "does not fit"]
    assert hosts["Hosts", "2"] == ["16", "1,710", "TP2 DP8"]


def test_the_page_needs_no_network_and_no_script():
    for planned in (by_hand(), of_hosts()):
        text = plan_page(planned)
        assert not re.search(r"https?://|<script|\b(src|href)\s*=|url\(|@import", text)
        assert "default-src 'none'; style-src 'unsafe-inline'" in text
        assert "{{" not in text


def test_names_are_no_markup():
    text = plan_page(by_hand())
    assert "<DP>" not in text
    assert "<from>" not in text
    assert "<title>7B &amp; more</title>" in text


def test_a_browser_draws_it(tmp_path):
    save_plan_page(by_hand(), tmp_path / "plan.html")
    dom = browse(tmp_path / "plan.html", tmp_path, "--dump-dom")
    assert re.findall(r'id="chart-(\w+)"', dom) == ["memory", "time", "speed", "timeline"]
    assert "micro 0: weights 4 GiB</title>" in dom
    assert "backward of micro-batch 0, chunk 0: 4 s to 6 s" in dom
    browse(tmp_path / "plan.html", tmp_path, f"--screenshot={tmp_path / 'page.png'}", size=(1100, 900))
    picture = matplotlib.image.imread(tmp_path / "page.png")
    assert ink(picture, (250, 110, 900, 190)) > 10_000  # bars of memory
    save_plan_page(of_hosts(), tmp_path / "hosts.html")
    browse(tmp_path / "hosts.html", tmp_path, f"--screenshot={tmp_path / 'hosts.png'}", size=(1100, 500))
    assert ink(matplotlib.image.imread(tmp_path / "hosts.png"), (100, 110, 1000, 380)) > 1_000
