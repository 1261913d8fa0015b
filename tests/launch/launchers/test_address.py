from __future__ import annotations

import os
import socket

import pytest

from megads.config.machine_facts import Facts
from megads.errors import LaunchError
from megads.launch.launchers.address import ephemeral_ports, master_address, master_port, port_is_free

FABRIC = Facts(fabric=("{host}-hsn0", "{host}.fast.site"))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"x1-hsn0", "x1.fast.site", "x1"}, "x1-hsn0"),
        ({"x1.fast.site", "x1.cm.site"}, "x1.fast.site"),
        ({"x1.cm.site"}, "x1.cm.site"),
        ({"10.0.0.1"}, "10.0.0.1"),
    ],
)
def test_the_first_name_that_resolves_is_taken(names, expected):
    found = master_address(["x1.cm.site", "x2"], FABRIC, names.__contains__, lambda host: ["10.0.0.1"])
    assert found == expected


def test_ranks_of_one_host_meet_on_its_loopback():
    assert master_address(["x1"], FABRIC, lambda name: False) == "127.0.0.1"


def test_a_plain_name_is_also_tried_with_the_domain_of_this_host(monkeypatch):
    monkeypatch.setattr(socket, "getfqdn", lambda: "login.site.org")
    assert master_address(["x1", "x2"], Facts(), {"x1.site.org"}.__contains__) == "x1.site.org"


def test_names_that_do_not_resolve_are_told():
    with pytest.raises(LaunchError, match=r"x1-hsn0, x1.fast.site, x1.*no such name resolves on") as caught:
        master_address(["x1", "x2"], FABRIC, lambda name: False)
    assert "\n" not in str(caught.value)


def test_a_name_that_resolves_here_is_found_for_real():
    assert master_address(["localhost", "x2"], Facts()) == "localhost"
    with pytest.raises(LaunchError):
        master_address(["no-such-host.invalid", "x2"], Facts())


def test_the_port_follows_from_job_step_and_attempt():
    ports = {master_port(job, step, n) for job in ("7", "8", "9") for step in ("", "1") for n in range(4)}
    assert len(ports) == 24
    assert master_port("7", "", 0) == master_port("7", "", 0)


@pytest.mark.parametrize("ephemeral", [(32768, 60999), (1024, 40000), (10000, 65535), (15000, 64999), (49152, 65535)])
def test_the_port_is_outside_the_ephemeral_range(ephemeral):
    low, high = ephemeral
    for job in range(200):
        port = master_port(str(job), "", 0, ephemeral=ephemeral)
        assert 1024 < port < 65536
        # A kernel whose range is all there is leaves no choice.
        assert not low <= port <= high or (low, high) == (10000, 65535)


def test_a_port_that_is_taken_is_passed_over():
    wanted = master_port("7", "", 0)
    with socket.socket() as listener:
        listener.bind(("", wanted))
        assert not port_is_free(wanted)
        other = master_port("7", "", 0, is_free=port_is_free)
    assert other != wanted
    assert port_is_free(other)
    with pytest.raises(LaunchError, match="no TCP port from"):
        master_port("7", "", 0, is_free=lambda port: False)


def test_the_kernels_range_is_read(tmp_path):
    (tmp_path / "range").write_text("40000\t50000\n")
    assert ephemeral_ports(tmp_path / "range") == (40000, 50000)
    assert ephemeral_ports(tmp_path / "none") == (32768, 60999)
    if os.path.exists("/proc/sys/net/ipv4/ip_local_port_range"):
        assert ephemeral_ports()[0] > 0
