"""Records where processes connect, by a library that stands before libc's calls (connects.c)."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("connects.c")


def recorder_env(record: Path) -> dict[str, str]:
    """Return the variables with which a process and all that it starts write to ``record``; builds the library."""
    library = record.with_name("connects.so")
    command = ["gcc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", str(SOURCE), "-o", str(library), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    record.touch()
    return {"LD_PRELOAD": str(library), "CONNECTS_TO": str(record)}


def is_of_this_host(line: str) -> bool:
    """Return whether a line of the record is about loopback: by address, or by a name of this host."""
    name = line.split()[1]
    try:
        address = ipaddress.ip_address(name)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:
        return line.startswith("lookup ") and name in ("localhost", socket.gethostname())
