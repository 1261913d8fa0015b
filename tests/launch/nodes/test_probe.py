"""A check of a suspect host: what its ranks leave, and the host that it is compared with."""

from __future__ import annotations

import json
import os
import sys

import pytest

from megads.launch.launchers.plan import LaunchPlan
from megads.launch.nodes.probe import Probe
from megads.monitor.check_stages import Finding, Verdict

RANK = """
import json, pathlib, sys, time
found, options = json.loads(sys.argv[2]), json.loads(pathlib.Path(sys.argv[1], "doctor.json").read_text())
told = found.get(options["hosts"][0], {})
with open(pathlib.Path(sys.argv[1], "health.jsonl"), "w") as file:
    for stage in told.get("stages", []):
        file.write(json.dumps(stage) + "\\n")
time.sleep(told.get("sleeps", 0))
sys.exit(told.get("code", 0))
"""
OK, BAD = (Finding("devices", Verdict(status, "3 of 4"), 1.0).as_dict() for status in ("ok", "failed"))
WELL, ILL = {"stages": [OK, OK]}, {"stages": [OK, BAD], "code": 1}


def probe(tmp_path, limit_s: float = 60.0, **hosts) -> Probe:
    def plan(host, folder):
        return LaunchPlan((sys.executable, "-c", RANK, str(folder), json.dumps(hosts)), {})

    return Probe(plan, tmp_path, {"limit_s": 1.0}, os.environ, limit_s)


@pytest.mark.parametrize(
    ("suspect", "other", "state", "why"),
    [
        (WELL, WELL, "healthy", "2 stages"),
        (ILL, WELL, "broken", "devices: 3 of 4"),
        ({"code": 3}, WELL, "broken", "the check ended with exit code 3"),
        ({}, WELL, "broken", "the check ended with exit code 0"),
        (ILL, ILL, "unknown", "b fails the same check (devices: 3 of 4)"),
    ],
)
def test_a_host_is_broken_only_if_another_one_passes(tmp_path, suspect, other, state, why):
    found = probe(tmp_path, a=suspect, b=other).check("a", ("b",))
    assert (found.state, found.why) == (state, why)
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_takes_too_long_is_ended(tmp_path):
    found = probe(tmp_path, 0.5, a={**WELL, "sleeps": 600}).check("a")
    assert found.state == "broken"
    assert found.why.startswith("the check did not end within 0.5 s")


def test_what_cannot_be_started_or_written_blames_nobody(tmp_path):
    def nothing(host, folder):
        return LaunchPlan((str(tmp_path / "no-such-program"),), {})

    assert Probe(nothing, tmp_path, {}, os.environ).check("a").state == "unknown"
    assert probe(tmp_path / "gone").check("a").state == "unknown"
