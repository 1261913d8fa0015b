"""Where the ranks of a check meet."""

import socket
from pathlib import Path

import pytest

from megads.cluster.ranks import TOKEN, RankInfo
from megads.doctor.ranks.protocol import meet
from megads.errors import LaunchError
from tests.doctor.ranks.test_protocol import _port


def test_nobody_at_the_address_is_told_with_it():
    info = RankInfo(1, 2, 1, 2, "test")
    with socket.socket() as held:  # bound and not listening: nobody else can answer there
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"no answer at MASTER_ADDR=localhost \(127.0.0.1\) port {port}"):
            meet(info, {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}, 1.0)


def test_an_address_that_does_not_resolve_is_told():
    info = RankInfo(1, 2, 1, 2, "test")
    with pytest.raises(LaunchError, match=r"MASTER_ADDR=no-such-host\.invalid does not resolve on this host"):
        meet(info, {"MASTER_ADDR": "no-such-host.invalid", "MASTER_PORT": "1"}, 1.0)


def test_the_store_of_one_host_is_on_loopback_and_its_keys_begin_with_the_secret():
    port = _port()
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), TOKEN: "of this launch"}
    lead = meet(RankInfo(0, 2, 0, 2, "test"), env, 5.0)
    peer, stranger = (
        meet(RankInfo(1, 2, 1, 2, "test"), given, 5.0) for given in (env, {**env, TOKEN: "of another launch"})
    )
    lead.store.set("go", "run")
    lead.groups.set("made", "1")
    assert (peer.store.check(["go"]), peer.groups.check(["made"])) == (True, True)
    assert (stranger.store.check(["go"]), stranger.groups.check(["made"])) == (False, False)
    # Every listener on this port: local address, state 0A.
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path("/proc/net", name).read_text().splitlines()[1:]]
    assert [row[1] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"] == [f"0100007F:{port:04X}"]
