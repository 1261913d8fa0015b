import io
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from megads.config.machine_facts import Facts
from megads.config.schema import RunConfig
from megads.doctor.launcher import host_checks, run
from megads.doctor.launcher.host_checks import Site, check_names, check_port
from megads.doctor.launcher.run import Silence, Wanted, check_health
from megads.errors import ConfigError, LaunchError
from megads.launch.request import TrainRequest
from megads.launch.schedulers.allocation import Allocation

ROOT = Path(__file__).parents[3]


def _site(tmp_path, facts=None, **env):
    return Site(RunConfig(machine="somewhere"), facts or Facts(), "login1", tmp_path, env, sys.executable)


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
    code = check_health(TrainRequest(None, (), site.env, "login1", tmp_path, sys.executable), Wanted(), out, sys.stderr)
    text = out.getvalue()
    assert "not inside a job of pbs: only this host is checked, which may be a login node" in text
    assert "ranks          skipped" in text
    assert "collectives and speeds are not checked; call megads doctor inside a job (qsub -I -l select=2 ...)" in text
    assert "not checked: ranks" in text.splitlines()[-1]
    assert code == 0, text


def test_a_wrong_setting_is_no_finding(tmp_path):
    ask = TrainRequest(None, (), {"MACHINE": "cpu", "TP": "two"}, "host", ROOT, sys.executable)
    with pytest.raises(ConfigError, match="TP"):
        check_health(ask, Wanted(), io.StringIO(), io.StringIO())


def test_a_folder_that_can_not_be_written_is_one_line(monkeypatch, tmp_path):
    def refuse(**where):
        raise PermissionError(13, "Permission denied")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run.tempfile, "mkdtemp", refuse)
    monkeypatch.setattr(run, "_examine", lambda *_: None)
    ask = TrainRequest(None, (), {"MACHINE": "cpu", "PATH": os.environ["PATH"]}, "host", ROOT, sys.executable)
    with pytest.raises(LaunchError, match=r"cannot be written \(Permission denied\); run megads doctor in another"):
        check_health(ask, Wanted(), io.StringIO(), io.StringIO())


def test_a_host_without_an_address_fails_unless_a_scheduler_knows_it():
    hosts = [socket.gethostname(), "no-such-host.invalid"]
    found = check_names(hosts, 20)
    assert (found.status, found.text) == (
        "failed",
        "no address for no-such-host.invalid; name hosts that resolve in HOSTFILE",
    )
    known = check_names(hosts, 20, scheduler="slurm")
    assert known.status == "ok"
    assert known.notes == ("no address for no-such-host.invalid; only slurm knows where they are",)


def test_a_name_service_that_is_silent_is_told(monkeypatch):
    monkeypatch.setattr(host_checks, "_resolve", lambda host: time.sleep(1) or "10.0.0.1")
    found = check_names(["a"], 0.1)
    assert (found.status, found.text) == ("failed", "no answer for a in 0.1 s; ask the site about its name service")


def test_a_port_that_somebody_holds_fails():
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen(1)
        port = str(holder.getsockname()[1])
        assert check_port(port, "127.0.0.1").status == "failed"
    assert check_port(port, "127.0.0.1").status == "ok"
    assert check_port("", "127.0.0.1").status == "skipped"
    assert "its rank 0 checks it" in check_port(port, "192.0.2.1").text


def test_accelerators_that_are_not_used_are_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(host_checks, "visible_accelerators", lambda env: {"nvidia": 4})
    found = host_checks.check_accelerators(_site(tmp_path), Allocation("none", ("login1",), 2))
    assert found.notes == ("2 of 4 accelerators of a host are not used (NGPU_PER_HOST)",)


def test_few_open_files_for_many_ranks_are_a_note(monkeypatch):
    monkeypatch.setattr(host_checks.resource, "getrlimit", lambda number: (1024, 4096))
    assert host_checks.check_limits(100).notes == ()
    (note,) = host_checks.check_limits(10_000).notes
    assert note.startswith("ulimit -Hn 4096: rank 0 opens up to 20256 connections")


def test_a_rank_0_that_is_silent_ends_the_check(tmp_path):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        with Silence(tmp_path / "record", 0.2) as watch:
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


def test_ten_thousand_hosts_are_looked_up_together(monkeypatch):
    together = threading.Barrier(host_checks.RESOLVERS)
    first = {f"host{number}" for number in range(host_checks.RESOLVERS)}

    def resolve(host: str) -> str:
        if host in first:
            together.wait(60)  # the name service answers when as many ask it
        return "10.0.0.1"

    monkeypatch.setattr(host_checks, "_resolve", resolve)
    assert check_names([f"host{number}" for number in range(10_000)], 100).status == "ok"
