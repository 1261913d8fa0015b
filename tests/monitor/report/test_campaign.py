"""What a run folder says about its campaign."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megads.errors import ConfigError
from megads.monitor.report.campaign import read_campaign
from tests.monitor.report.chain import CHAIN, FIRST, LAST, write_chain


def test_jobs_hours_and_efficiency_of_a_chain(tmp_path):
    found = read_campaign(write_chain(tmp_path / "r"), now=1.7e9 + 99999)
    assert (found.facts.state, found.facts.step, found.facts.total) == ("done", 100, 100)
    assert (found.jobs, len(found.links)) == (2, 3)
    allocated = 2 * 600 + 2 * (600 + 30) + 600
    assert found.host_hours == pytest.approx(allocated / 3600)
    assert found.rank_hours == pytest.approx((8 * 600 + 8 * 630 + 4 * 600) / 3600)
    assert found.queued_s == 9000 - 1230
    assert found.efficiency == pytest.approx((2 * 400 * 40 / 50 + 2 * 400 + 400) / allocated)
    assert found.best("valid_loss") == pytest.approx((3.0, 60))
    assert (found.last("energy_kwh"), found.last("co2_kg"), found.last("nothing")) == (12.5, 4.0, None)
    assert found.data_stall == pytest.approx(0.05)


def test_events_say_what_changed_and_what_failed(tmp_path):
    found = read_campaign(write_chain(tmp_path / "r"), now=1.7e9 + 99999)
    assert [each.text for each in found.events] == [
        "job 101: 8 ranks on 2 hosts",
        "1 step rejected: 33",
        "job 101, restart 1: 8 ranks on 2 hosts from step 40",
        "failed (node) after step 50: n2 went down; 10 steps repeated later",
        "excluded n2",
        "rolled back from step 70 to 60",
        "stopped after step 90: wall time",
        "job 102: 4 ranks on 1 host from step 90; was 8 ranks on 2 hosts; layout TP 2 PP 1 SP 1 DP 2 ZERO 1, "
        "was TP 2 PP 1 SP 1 DP 4 ZERO 1; accumulation 1 -> 2",
        "done after step 100",
    ]
    assert [each.is_bad for each in found.events] == [False, True, False, True, True, True, False, False, False]


def test_a_run_without_recorded_starts_has_its_losses(tmp_path):
    found = read_campaign(write_chain(tmp_path / "r", ()), now=1.7e9 + 99999)
    assert (found.links, found.jobs, found.efficiency, found.host_hours) == ((), 0, None, 0.0)
    assert found.best("valid_loss") == pytest.approx((3.0, 60))


def test_outside_of_a_scheduler_every_call_of_the_command_is_a_job(tmp_path):
    calls = tuple(replace(each, job="") for each in CHAIN)
    found = read_campaign(write_chain(tmp_path / "r", calls), now=1.7e9 + 99999)
    assert (found.jobs, len(found.links)) == (2, 3)
    assert [link.waited_s for link in found.links] == [0.0, 30.0, 0.0]


def test_a_run_that_failed_before_its_first_step_has_a_report(tmp_path):
    folder = write_chain(tmp_path / "r", (replace(FIRST, reached=0),))
    (folder / "metrics.jsonl").unlink()
    (folder / "outcome.json").unlink()
    found = read_campaign(folder, now=1.7e9 + 99999)
    assert found.facts.state == "not started"  # nothing but a prepared folder is left
    assert [each.text for each in found.events][1] == "failed (node) after step 0: n2 went down"


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"gone: not found; `megads runs`"):
        read_campaign(tmp_path / "gone")
    with pytest.raises(ConfigError, match="no run here"):
        read_campaign(tmp_path)


def test_the_last_start_has_no_lost_steps(tmp_path):
    found = read_campaign(write_chain(tmp_path / "r", (LAST,)), now=1.7e9 + 99999)
    assert [link.lost_steps for link in found.links] == [0]
