"""A clean interpreter that has the command's modules loaded, and forks for each call of it.

A call costs a tenth of what a new interpreter takes, and is otherwise the same: a process of its
own, with its own folder, environment and streams, that can be killed.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

ROOT = Path(__file__).parents[3]


@dataclass
class Call:
    """What to run."""

    words: list[str]
    folder: str
    env: dict[str, str] = field(default_factory=dict)
    stdin: str = os.devnull
    file_limit: int = 0  # bytes a file may have
    streams: str = ""  # where stdout and stderr go: this path with .out and .err behind it


def serve(pipe: Connection) -> None:
    """Fork for each :class:`Call` and answer with the process id; wait for each id and answer with its status."""
    import orjson  # noqa: F401

    import megads.cli.corpus.frame
    import megads.cli.data
    import megads.cli.data.preprocess
    import megads.data.corpus.frame.run
    import megads.data.formats.record
    import megads.data.preprocess.run
    import megads.data.tokenizers.build
    import megads.data.tokenizers.encoders.fastest  # noqa: F401

    while True:
        try:
            message = pipe.recv()
        except EOFError:
            return
        if message is None:
            return
        if isinstance(message, int):
            pipe.send(os.waitpid(message, 0)[1])
            continue
        pid = os.fork()
        if pid == 0:
            pipe.close()
            _become(message)
        pipe.send(pid)


def _become(call: Call) -> None:
    status = 1
    try:
        os.chdir(call.folder)
        os.environ.update(call.env)
        for number, path in enumerate((call.stdin, call.streams + ".out", call.streams + ".err")):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY, 0o644)
            os.dup2(handle, number)
            os.close(handle)
        if call.file_limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (call.file_limit, call.file_limit))
        from megads.cli import main

        main(call.words)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class Zygote:
    """The other side."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.data.preprocess.zygote", str(theirs.fileno())],
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
            # No test finds what another one proved.
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DATA_CACHE_PATH": "/dev/null/none"},
        )
        theirs.close()

    def start(self, call: Call) -> int:
        """Return the process id."""
        self._pipe.send(call)
        pid: int = self._pipe.recv()
        return pid

    def wait(self, pid: int) -> int:
        """Return the exit code; of a killed process the negative number of the signal."""
        self._pipe.send(pid)
        return os.waitstatus_to_exitcode(self._pipe.recv())

    def close(self) -> None:
        # Said, because other processes that were forked from this one may have the pipe open, too.
        self._pipe.send(None)
        self._pipe.close()
        self._process.wait(timeout=10)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
