"""A network namespace has loopback and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CUT_OFF = Path(__file__).with_name("cut_off.py")
INSIDE = """
import errno, os, socket
print(sorted(name for _, name in socket.if_nameindex()), os.getuid())
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname()).close()
try:
    socket.create_connection(("192.0.2.7", 9))  # reserved: nobody has it
except OSError as error:
    print(errno.errorcode[error.errno])
"""


def test_nothing_but_loopback_can_be_reached():
    done = subprocess.run([sys.executable, str(CUT_OFF), sys.executable, "-c", INSIDE], capture_output=True, text=True)
    if (
        done.returncode
        and "cannot make a network namespace" in done.stderr
        and not os.environ.get("MEGADS_REQUIRE_ALL")
    ):
        pytest.skip(done.stderr.splitlines()[-1])
    assert not done.returncode, done.stderr
    assert done.stdout == f"['lo'] {os.getuid()}\nENETUNREACH\n"
