import io
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from megads.config.machine_facts import Facts
from megads.doctor.launcher import run
from megads.doctor.launcher.run import Silence, check_health
from megads.errors import ConfigError, LaunchError
from megads.launch.request import TrainRequest
from tests.doctor.launcher.test_host_checks import _site

ROOT = Path(__file__).parents[3]


def test_on_a_login_node_it_says_what_it_could_not_check(monkeypatch, tmp_path):
    program = tmp_path / "qsub"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    site = _site(tmp_path, Facts(device="intel", scheduler="pbs"), PATH=str(tmp_path))
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "machines.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "_site", lambda ask: site)
    out = io.StringIO()
    code = check_health(site.request, out, sys.stderr)
    text = out.getvalue()
    assert "not inside a job of pbs: only this host is checked, which may be a login node" in text
    assert "ranks          skipped" in text
    assert "collectives and speeds are not checked; call megads doctor inside a job (qsub -I -l select=2 ...)" in text
    assert "not checked: vendor, ranks" in text.splitlines()[-1]  # this checkout has no table of vendors
    assert code == 0, text


def test_a_wrong_setting_is_no_finding(tmp_path):
    ask = TrainRequest(None, (), {"MACHINE": "cpu", "TP": "two"}, "host", ROOT, sys.executable)
    with pytest.raises(ConfigError, match="TP"):
        check_health(ask, io.StringIO(), io.StringIO())


def test_a_folder_that_can_not_be_written_is_one_line(monkeypatch, tmp_path):
    def refuse(**where):
        raise PermissionError(13, "Permission denied")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run.tempfile, "mkdtemp", refuse)
    monkeypatch.setattr(run, "_examine", lambda *_: None)
    ask = TrainRequest(None, (), {"MACHINE": "cpu", "PATH": os.environ["PATH"]}, "host", ROOT, sys.executable)
    with pytest.raises(LaunchError, match=r"cannot be written \(Permission denied\); run megads doctor in another"):
        check_health(ask, io.StringIO(), io.StringIO())


def test_a_rank_0_that_is_silent_ends_the_check(tmp_path):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        with Silence(tmp_path / "record", 60.0):
            pass
        assert not heard, "over before"
        watch = Silence(tmp_path / "record", 0.2)
        with watch:
            until = time.monotonic() + 100
            while not heard and time.monotonic() < until:
                time.sleep(0.05)
        assert watch.silent
        assert heard == [1]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_findings_of_a_record_that_is_cut_off_are_none(tmp_path):
    (tmp_path / "record").write_text(json.dumps({"stage": "x"})[:5])
    assert run._recorded(tmp_path / "record") == []
