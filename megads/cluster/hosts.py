"""Names of hosts and the files that list them."""

from __future__ import annotations

import socket
from pathlib import Path

from megads.errors import LaunchError


def this_host() -> str:
    """Return this host's name as the kernel knows it."""
    return socket.gethostname()


def is_this_host(name: str) -> bool:
    """Return whether ``name`` means this host; domains do not count, schedulers drop or add them."""
    return name in ("localhost", "127.0.0.1", "::1") or name.split(".")[0] == this_host().split(".")[0]


def read_host_file(path: Path, origin: str) -> tuple[str, ...]:
    """Return the hosts listed in ``path``, each once, in the order first seen.

    Lines are ``HOST [slots=N]``; blank lines and ``#`` comments are skipped. PBS repeats a
    host once per MPI process of its chunk.

    Args:
        path: the file.
        origin: where its name came from, for the error message.

    Raises:
        LaunchError: when the file cannot be read or lists nothing.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise LaunchError(f"{origin}={path}: {reason}; it should be a file with one host a line") from None
    words = [line.split("#", 1)[0].split() for line in lines]
    hosts = tuple(dict.fromkeys(word[0] for word in words if word))
    if not hosts:
        raise LaunchError(f"{origin}={path}: lists no host; it should have one host a line")
    return hosts
