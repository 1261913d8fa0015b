"""The report as a page: complete in itself, no text of a run is HTML."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from megads.monitor.plots.drawing import draw
from megads.monitor.plots.source import read_run
from megads.monitor.report.campaign import read_campaign
from megads.monitor.report.page import report_page, save_report
from tests.monitor.report.chain import CHAIN, write_chain

NOW = 1.7e9 + 99999
OPEN = {"meta", "br", "link", "rect"}


class Balanced(HTMLParser):
    """Fails where an element is not closed."""

    def __init__(self):
        super().__init__()
        self.stack, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in OPEN or (tag == "rect"):
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def parsed(text: str) -> Balanced:
    page = Balanced()
    page.feed(text)
    assert page.stack == []
    return page


def test_the_page_of_a_chain_has_everything_and_needs_nothing(tmp_path):
    folder = write_chain(tmp_path / "r")
    drawing = draw([read_run(folder, lambda key: True)], most=100)
    text = report_page([read_campaign(folder, now=NOW)], ["r"], drawing, 3.0)
    assert not re.search(r"(?:src|href)=|url\(|https?://|@import", text)
    for part in (
        "Allocated host time",
        "Starts over time",
        "failed: node",
        "n2 went down",
        "12.5 kWh",
        "2.55 at 3 per",
    ):
        assert part in text, part
    found = parsed(text)
    assert "report of r" in found.texts
    bars = re.findall(r'<svg viewBox="0 0 1000 26".*?</svg>', text, re.DOTALL)
    widths = [float(each) for each in re.findall(r' width="([\d.]+)"', bars[0])]
    assert abs(sum(widths) - 1000) < 0.1
    save_report(text, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == text


def test_the_timeline_has_every_start_where_it_was(tmp_path):
    text = report_page([read_campaign(write_chain(tmp_path / "r"), now=NOW)], ["r"], None, 0.0)
    line = re.findall(r'<svg viewBox="0 0 1000 60".*?</svg>', text, re.DOTALL)[0]
    boxes = re.findall(r'x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', line)
    assert float(boxes[0][0]) == 0.0
    assert {height for *_, height in boxes} == {"60.00", "30.00"}  # two hosts, one host
    last = [box for box in boxes if box[3] == "30.00"]
    assert float(last[0][0]) == 9000 / 9600 * 1000
    assert abs(float(last[-1][0]) + float(last[-1][2]) - 1000) < 0.5


def test_no_text_of_a_run_is_html(tmp_path):
    evil = "<script>alert(1)</script>&amp;"
    chain = (replace(CHAIN[0], verdict=evil, job=evil, hosts=(evil, "b")), *CHAIN[1:])
    campaign = read_campaign(write_chain(tmp_path / "<b>r", chain), now=NOW)
    text = report_page([campaign, campaign], ["<b>r", "s"], None, 0.0)
    assert "<script>" not in text
    assert "<b>" not in text
    assert "&lt;script&gt;alert(1)" in text
    parsed(text)


def test_several_runs_have_a_table_and_a_section_each(tmp_path):
    found = [read_campaign(write_chain(tmp_path / name), now=NOW) for name in ("a", "b")]
    text = report_page(found, ["a", "b"], None, 0.0)
    assert text.count("<details>") == 2
    assert "report of 2 runs" in text
    parsed(text)
