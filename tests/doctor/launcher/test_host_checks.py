"""What is wrong with this host, before a rank is started."""

import socket
import sys
import threading

from megads.config.machine_facts import Facts
from megads.config.schema import RunConfig
from megads.doctor.launcher import host_checks
from megads.doctor.launcher.host_checks import Site, check_names, check_port
from megads.launch.request import TrainRequest
from megads.launch.schedulers.allocation import Allocation


def _site(tmp_path, facts=None, **env):
    request = TrainRequest(None, (), env, "login1", tmp_path, sys.executable)
    return Site(request, RunConfig(machine="somewhere"), facts or Facts())


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
    told = threading.Event()
    monkeypatch.setattr(host_checks, "address_of", lambda host: told.wait(60) and "10.0.0.1")
    found = check_names(["a"], 0.1)
    told.set()
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


def test_ten_thousand_hosts_are_looked_up_together(monkeypatch):
    together = threading.Barrier(host_checks.RESOLVERS)
    first = {f"host{number}" for number in range(host_checks.RESOLVERS)}

    def resolve(host: str) -> str:
        if host in first:
            together.wait(60)  # the name service answers when as many ask it
        return "10.0.0.1"

    monkeypatch.setattr(host_checks, "address_of", resolve)
    assert check_names([f"host{number}" for number in range(10_000)], 100).status == "ok"
