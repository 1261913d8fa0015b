"""How a rank fails: what kind of failure it is, who reports it, and with which exit code the rank leaves."""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import torch

from megads.cluster.hosts import this_host
from megads.cluster.ranks import RankInfo
from megads.comm.groups import is_lost_peer
from megads.config.run_folder import OUTCOME
from megads.errors import EXIT_DONE, EXIT_FAILED, EXIT_WRONG, ConfigError, LaunchError, MegadsError, ReplicaError
from megads.monitor.log import failure_text, where
from megads.monitor.run_state.outcome import Outcome, write_first_outcome
from megads.text.secrets import hidden

LOST_WAIT_S = 5.0  # for the rank that failed, or its guard, to be the one that reports


def is_on_its_own(env: Mapping[str, str]) -> bool:
    """Return whether no launcher of megads watches this rank, so that its own exit code is the run's."""
    return env.get("MEGADS_IN_PLACE") == "1" or env.get("MEGADS_WATCHED") != "1"


def fail(
    error: BaseException,
    run_dir: Path,
    info: RankInfo,
    env: Mapping[str, str],
    iteration: int,
    last: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Report ``error`` and leave the process without touching another collective.

    The first rank to fail writes the outcome, which informs the launcher; ranks then leave
    with 0, because a launcher that sees another code adds pages of its own.

    Args:
        last: is called once the outcome is written.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        place = error.filename or run_dir
        error = LaunchError(f"{place}: {error.strerror}; free some space and rerun the same command")
    outcome, kind = run_dir / OUTCOME, kind_of(error)
    code = EXIT_WRONG if kind == "wrong" else EXIT_FAILED
    is_found_by_all = kind in ("wrong", "replica")
    text = hidden(f"megads: {error}\n" if is_found_by_all else failure_text(info.rank, error), env)
    rank, host = info.rank, this_host()
    if isinstance(error, ReplicaError):
        rank, host = error.rank, error.host
    if is_found_by_all and info.rank != 0:
        # Most wrong inputs are found by every rank; one line is enough.
        time.sleep(1.0)
        text = "" if os.path.exists(outcome) else text
    elif kind == "lost":
        rank = -1
        text = "" if _appears(outcome) else f"[{where(info.rank)}] lost another rank: {str(error).splitlines()[0]}\n"
    if not os.path.exists(outcome):
        message = f"{where(info.rank)}: {error}"
        if kind == "lost":
            host = peer_host(str(error))
            message = f"{where(info.rank)}: lost another rank{f' on {host}' if host else ''}: {error}"
        with suppress(ConfigError):  # a full disk; the reason still goes to stderr
            write_first_outcome(run_dir, Outcome(code, hidden(message, env), iteration, kind, rank, host))
    last()
    leave(text, EXIT_DONE if os.path.exists(outcome) and not is_on_its_own(env) else code)


def _appears(outcome: Path) -> bool:
    """Wait for the outcome of the rank that failed first, which knows the reason; return whether it came in time."""
    until, pause = time.monotonic() + LOST_WAIT_S, 0.05
    while time.monotonic() < until and not os.path.exists(outcome):
        time.sleep(pause)
        pause = min(2 * pause, 1.0)  # ten thousand ranks may ask the same file system
    return os.path.exists(outcome)


def peer_host(text: str) -> str:
    """Return the host of the rank that is gone, from the address in gloo's message; empty where it has none."""
    match = re.search(r"\[([0-9a-fA-F.:]+)\]:\d+", text)
    if not match:
        return ""
    address = match[1].removeprefix("::ffff:")
    if address.startswith("127.") or address == "::1":
        return this_host()
    try:
        return socket.gethostbyaddr(address)[0].split(".")[0]
    except OSError:
        return address


def kind_of(error: BaseException) -> str:
    """Return which kind of failure ``error`` is; see :class:`megads.monitor.run_state.outcome.Outcome`."""
    if isinstance(error, MegadsError):
        return "wrong"
    if isinstance(error, ReplicaError):
        return "replica"
    if isinstance(error, ImportError):
        return "import"
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return "memory"
    if isinstance(error, RuntimeError) and is_lost_peer(str(error)):
        return "lost"
    return "error"


def leave(text: str, code: int) -> NoReturn:
    """Write ``text`` to stderr and end the process; nothing of the interpreter runs any more."""
    with suppress(OSError):  # a full disk, or nobody reads any more
        sys.stderr.write(text)
        sys.stderr.flush()
        sys.stdout.flush()
    os._exit(code)
