"""Run a command in a network namespace of its own, in which nothing but loopback exists: python cut_off.py WORD...

Without root it needs a kernel that gives users namespaces.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_* of sched.h
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP of net/if.h


def cut_off() -> None:
    """Leave the network of this host.

    Raises:
        OSError: the kernel does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(NEW_NETWORK if user == 0 else NEW_NETWORK | NEW_USER):
        raise OSError(ctypes.get_errno(), "cannot make a network namespace")
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, GET_FLAGS, request))[1]
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sH14x", b"lo", flags | UP))


if __name__ == "__main__":
    cut_off()
    os.execvp(sys.argv[1], sys.argv[1:])
