"""What counts as this host, and that calls from Python and from a library are both recorded."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from tests.release.recorder import is_of_this_host, recorder_env

# 192.0.2.0/24 and names in .invalid are reserved: nobody has them. UDP: the address is set, and nothing is sent.
CALLS = """
import socket
for address in ("127.0.0.1", "192.0.2.7"):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.connect((address, 9))
        except OSError:
            pass  # no network: the attempt counts
try:
    socket.getaddrinfo("a.invalid", 80, flags=socket.AI_NUMERICHOST)
except OSError:
    pass
"""


def test_calls_are_recorded(tmp_path):
    record = tmp_path / "record"
    env = {"PATH": os.environ["PATH"], **recorder_env(record)}
    subprocess.run([sys.executable, "-S", "-c", CALLS], env=env, check=True)
    lines = record.read_text().splitlines()
    assert lines == ["connect 127.0.0.1 9", "connect 192.0.2.7 9", "lookup a.invalid"]
    assert [is_of_this_host(line) for line in lines] == [True, False, False]


@pytest.mark.parametrize(
    ("line", "is_ours"),
    [
        ("connect ::1 80", True),
        ("connect ::ffff:127.0.0.1 80", True),
        ("connect ::ffff:10.0.0.1 80", False),
        ("connect 127.9.9.9 80", True),
        ("connect 10.0.0.1 80", False),
        ("sendto 8.8.8.8 53", False),
        ("lookup localhost", True),
        (f"lookup {socket.gethostname()}", True),
        ("lookup pypi.invalid", False),
        ("connect localhost 1", False),
    ],
)
def test_only_loopback_and_this_host_by_name_are_ours(line, is_ours):
    assert is_of_this_host(line) is is_ours
