"""The page in a real browser that has no network."""

import json
import re

import matplotlib.image
import numpy as np
import pytest

from megads.monitor.plots.drawing import draw
from megads.monitor.plots.html.page import page, save_page
from megads.monitor.plots.source import read_run
from tests.browser import browse
from tests.monitor.plots.made import make_run, rows_of, step_row, write_rows

SPIKE = 4321


def drawing_of(*folders, **options):
    runs = [read_run(folder, lambda key: True, folder.name) for folder in folders]
    return draw(runs, **{"most": 4000 // len(runs), **options})


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Return a page of three runs: one with a spike and skipped steps, one with nulls and a hole, a short one."""
    folder = tmp_path_factory.mktemp("page")
    spiky = rows_of(8000, every=1000)
    for row in spiky:
        row.update({"skipped_iterations": int(row["iteration"] > 2000)} if "lm_loss" in row else {})
        row.update({"lm_loss": 25.0} if row["iteration"] == SPIKE and "lm_loss" in row else {})
    gone = [row for row in rows_of(6000, every=1000) if not 2500 < row["iteration"] < 3500]
    gone += [step_row(6001, 6000, lm_loss=None, grad_norm=None, mfu=None)]
    make_run(folder / "spiky", spiky, LR="3e-4")
    make_run(folder / "gone", gone, LR="6e-4")
    make_run(folder / "short", rows_of(3, every=999))
    save_page(drawing_of(folder / "spiky", folder / "gone", folder / "short"), folder / "several.html")
    return folder / "several.html"


def ink(picture, box):
    """Return how many pixels of a box (left, top, right, bottom) stand out more than a grid does."""
    left, top, right, bottom = box
    return int((np.abs(picture[top:bottom, left:right, :3] - picture[2, 2, :3]).max(axis=2) > 0.25).sum())


def test_the_page_draws_without_network_and_shows_what_is_asked(several, tmp_path):
    dom = browse(several, tmp_path, "--dump-dom", address=f"dark&x=tokens&scale=log&at={SPIKE * 8 * 2048}")
    assert re.search(r'<html[^>]* data-theme="dark"', dom)
    charts = dom.count('class="chart"')
    assert f'data-drawn="{charts}"' in dom
    assert charts >= 8
    tip = re.search(r'<div class="tip"[^>]*display: block[^>]*>(.*?)</div></div>', dom)[1]
    words = re.sub(r"<[^>]*>", " ", tip)
    assert re.search(r"tokens 70\.\d+M", words)
    assert "(2.1155 to 25)" in words
    assert words.split()[6:7] == ["spiky"]
    assert [dom.count(f">{each}<") for each in ("auto", "reset zoom", "best validation loss")] == [1, 1, 1]
    assert (
        dom.index('id="large"') < dom.index('id="chart-loss"') < dom.index('id="charts"') < dom.index('id="chart-lr"')
    )
    legend = re.search(r'<div id="legend">(.*?)</div>', dom)[1]
    assert re.sub(r"<[^>]*>", " ", legend).split() == ["spiky", "gone", "short"]
    assert "skipped (1)" in dom


def test_the_spike_is_seen_in_light_and_dark(several, tmp_path):
    for theme in ("light", "dark"):
        browse(several, tmp_path, f"--screenshot={tmp_path / theme}.png", address=theme)
        picture = matplotlib.image.imread(tmp_path / f"{theme}.png")
        # The first chart, without its heading; at half its height there is nothing but the spike.
        assert ink(picture, (92, 160, 570, 260)) > 90
        assert (picture[5, 5, :3].mean() < 0.2) == (theme == "dark")


def test_zooming_shows_single_steps(several, tmp_path):
    browse(several, tmp_path, f"--screenshot={tmp_path / 'z.png'}", address=f"light&zoom={SPIKE - 4},{SPIKE + 4}")
    picture = matplotlib.image.imread(tmp_path / "z.png")
    assert ink(picture, (92, 160, 570, 260)) > 100


def test_the_page_names_nothing_outside_itself(several):
    text = several.read_text()
    assert not re.search(r"https?://", text)
    assert not re.search(r"\b(src|href)\s*=|url\(|@import|fetch\(|XMLHttpRequest|WebSocket", text)
    assert "default-src 'none'" in text


def test_settings_that_differ_stand_in_a_table(several):
    rows = re.findall(r"<tr><th>(.*?)</th>(.*?)</tr>", several.read_text())
    table = {name: re.findall(r"<td>(.*?)</td>", cells) for name, cells in rows}
    assert table["optim.lr"][:2] == ["0.0003", "0.0006"]
    assert table["step"][0].startswith("8000 of ")


def test_a_name_can_not_end_the_script(tmp_path):
    path = write_rows(tmp_path / "a", rows_of(5))
    run = read_run(path, lambda key: True, "</script><script>alert(1)</script>")
    text = page(draw([run], most=9))
    assert "<script>alert" not in text
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1]
    assert json.loads(found)["runs"][0]["name"] == run.name


def test_a_run_of_ten_thousand_steps_is_a_page_of_less_than_a_megabyte(tmp_path):
    write_rows(tmp_path / "a", rows_of(10_000, every=500))
    save_page(drawing_of(tmp_path / "a"), tmp_path / "a.html")
    assert (tmp_path / "a.html").stat().st_size < 1 << 20


def test_one_row_is_drawn(tmp_path):
    write_rows(tmp_path / "a", [step_row(1, 1)])
    save_page(drawing_of(tmp_path / "a"), tmp_path / "a.html")
    assert 'data-drawn="7"' in browse(tmp_path / "a.html", tmp_path, "--dump-dom", address="at=1")
