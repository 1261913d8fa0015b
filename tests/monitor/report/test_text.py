"""The report in the terminal."""

from __future__ import annotations

import json
import math
import time

from megads.monitor.report.campaign import read_campaign
from megads.monitor.report.text import MOST_EVENTS, RUNS_HEAD, as_data, date_text, lines_of, run_rows, table
from tests.monitor.report.chain import CHAIN, write_chain

NOW = 1.7e9 + 99999


def test_the_lines_of_a_chain(tmp_path):
    lines = lines_of(read_campaign(write_chain(tmp_path / "r"), now=NOW), price=3.0)
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(1.7e9))
    assert lines[1:9] == [
        "state      done",
        "step       100 of 100, 100k tokens",
        "loss       training 2.0000, validation 3.4000, best 3.0000 at step 60",
        "jobs       2 jobs, 3 starts",
        f"time       2h40m from {began}, 2h09m between jobs",
        "allocated  0.85 host-hours, 3.4 rank-hours",
        lines[7],
        "energy     12.5 kWh measured, 1.25 kWh estimated, 4 kg CO2",
    ]
    assert lines[7].startswith("trained    60.1% (5.0% of it waited for data); launch and exit 16.3%, ")
    assert "lost steps 5.2%" in lines[7]
    assert "waits between starts 2.0%" in lines[7]
    assert lines[9] == "cost       2.55 at 3 per host-hour"
    assert lines[11].split() == ["job", "began", "hosts", "ranks", "layout", "steps", "wall", "trained", "end"]
    assert lines[12].endswith("failed: node")
    assert "101 #1" in lines[13]


def test_many_events_are_cut_and_counted(tmp_path):
    chain = tuple(CHAIN[0] for _ in range(1)) + tuple(
        type(CHAIN[0])(**{**vars(CHAIN[1]), "attempt": number, "started": 1.7e9 + 1000 * number})
        for number in range(1, 40)
    )
    lines = lines_of(read_campaign(write_chain(tmp_path / "r", chain), now=NOW))
    assert sum("  step " in line for line in lines[45:]) == MOST_EVENTS
    assert any("earlier events in the page)" in line for line in lines)


def test_runs_side_by_side(tmp_path):
    found = [read_campaign(write_chain(tmp_path / name, loss=loss), now=NOW) for name, loss in (("a", 3.0), ("b", 4.0))]
    lines = table(run_rows(found, ["a", "b"]), RUNS_HEAD)
    assert lines[0].split("  ")[0] == "run"
    assert lines[1].split() == ["a", "done", "100/100", "2.0000", "3.4000", "2", "3", "0.85", "60.1%", "12.5", "10"]
    assert lines[2].split()[3] == "3.0000"


def test_programs_get_exact_numbers(tmp_path):
    data = as_data(read_campaign(write_chain(tmp_path / "r"), now=NOW), price=2.0)
    again = json.loads(json.dumps(data))
    assert again["lost_steps"] == 10
    assert math.isclose(sum(again["host_seconds"].values()) / 3600, again["host_hours"])
    assert again["cost"] == 2.0 * again["host_hours"]
    assert [each["kept"] for each in again["links"]] == [40, 90, 100]


def test_a_time_that_is_not_known_is_empty():
    assert date_text(0.0) == ""
