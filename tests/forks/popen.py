"""``subprocess.Popen`` and ``run`` whose megads commands are forked by this worker's server."""

from __future__ import annotations

import atexit
import inspect
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.forks.become import PADDING, ROOM, is_forkable, program_of
from tests.forks.server import Request, receive, send

ROOT = Path(__file__).parents[2]
_real = subprocess.Popen._execute_child  # type: ignore[attr-defined]


class Server:
    """The other side of ``server.py``."""

    def __init__(self) -> None:
        kept = ("PATH", "HOME", "LANG", "TMPDIR")
        self.env = {name: os.environ[name] for name in kept if name in os.environ}
        self.env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
        self.folder = tempfile.mkdtemp(prefix="megads-forks-")
        self.address = f"{self.folder}/server"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.address)
        listener.listen(64)
        self.connection, theirs = socket.socketpair()
        fds = [theirs.fileno(), listener.fileno()]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.forks.server", *map(str, fds), PADDING],
            cwd=ROOT,
            env=self.env | {"ROOM": ROOM},
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        listener.close()
        assert receive(self.connection)[0] == "ready"

    def ask(self, message: Any, streams: tuple[int, ...] = ()) -> int:
        send(self.connection, message, streams)
        answer: int = receive(self.connection)[0]
        return answer

    def close(self) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()
        self.process.wait(timeout=20)
        shutil.rmtree(self.folder, ignore_errors=True)


_servers: list[Server] = []


def server() -> Server:
    """Return this process's server; started on first use."""
    if not _servers or _servers[0].process.poll() is not None:
        _servers[:] = [Server()]
        atexit.register(close_server)
    return _servers[0]


def close_server() -> None:
    """End the server, if there is one; what it has forked lives on."""
    while _servers:
        _servers.pop().close()


class Popen(subprocess.Popen[Any]):
    """As the original, but a megads command is forked by the server unless it has to be a new interpreter."""

    _ended_at = -1  # the descriptor of a forked process; -1: it is a child like any other

    def _execute_child(self, *args: Any) -> None:
        given = inspect.signature(_real).bind(self, *args).arguments
        env = dict(os.environ if given["env"] is None else given["env"])
        odd = given["shell"] or given["executable"] or given["pass_fds"] or given["preexec_fn"]
        program = program_of(given["args"])
        if odd or program is None or os.environ.get("MEGADS_TEST_FORK") == "0":
            return _real(self, *args)
        forks = server()
        if not is_forkable(env, forks.env):
            return _real(self, *args)
        wanted = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        streams = tuple(number if stream < 0 else stream for number, stream in enumerate(wanted))
        folder = os.fspath(given["cwd"] or os.getcwd())
        words = [os.fspath(word) for word in given["args"]]
        self.pid = forks.ask(Request(words, folder, env, given["start_new_session"]), streams)
        self._ended_at = os.pidfd_open(self.pid)
        self._child_created = True
        pipes = (given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        return None

    def _has_ended(self, wait: bool) -> bool:
        return bool(select.select([self._ended_at], [], [], None if wait else 0)[0])

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._ended_at < 0:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        if not self._has_ended(wait=not wait_flags & os.WNOHANG):
            return 0, 0
        status = server().ask(self.pid)
        os.close(self._ended_at)
        return self.pid, status

    def _internal_poll(self, *args: Any, **kwargs: Any) -> int | None:
        if self._ended_at < 0:
            return super()._internal_poll(*args, **kwargs)  # type: ignore[misc,no-any-return]
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


def run(
    words: Any, *, input: Any = None, capture_output: bool = False, timeout: float | None = None, check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """As ``subprocess.run``."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options["stdout"] = options["stderr"] = subprocess.PIPE
    with Popen(words, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done
