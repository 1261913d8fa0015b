"""Turn this process into another command, as exec would, but with its modules as they are.

Used in the processes of the server only: :func:`install` replaces how they start and become programs.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import inspect
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from tests.forks import MODULES

IMPORT_TIME = re.compile(
    r"PYTHON(?!UNBUFFERED$|SAFEPATH$)\w*|(OMP|MKL|OPENBLAS|GOMP|KMP|LD|CUDA|HIP|ROCR|ZE|NCCL|LC)_\w+|"
    r"(TORCH|DS)_\w+|LANG|LANGUAGE|TZ|MALLOC_\w+|TMPDIR"
)
"""Variables that an import, or the interpreter at its start, may read."""

SET_BY_LAUNCHERS = {"DS_ACCELERATOR": "cpu", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "NCCL_ALGO": "Ring"}
"""What :data:`IMPORT_TIME` matches and a launcher may set: to the value that the server has, or without effect here."""

PLANTED = "sitecustomize"
"""A module that a test may have a process import first: from a folder of PYTHONPATH that holds nothing else."""

_IGNORING = ("sh", "-c", 'trap "" USR1; exec "$@"', "sh")
PADDING, ROOM = "-" * 2048, "-" * 32768
"""An argument and a variable of the server, for room to write what a forked process has over them: /proc shows it."""

_ARGUMENTS, _ENVIRONMENT = 45, 47
"""Fields of /proc/PID/stat behind the name: where they begin in memory; the next field tells where they end."""

_started_with: dict[str, str] = {}
_real_popen = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_real_exec = os.execvpe


@dataclass(frozen=True)
class Program:
    """``python -m module words``, started with SIGUSR1 ignored or not."""

    module: str
    words: tuple[str, ...]
    ignores: bool = False


def program_of(argv: Any) -> Program | None:
    """Return what ``argv`` starts if it can be forked, else None."""
    if not isinstance(argv, (list, tuple)):
        return None
    words = tuple(os.fspath(word) for word in argv)
    ignores = words[:4] == _IGNORING
    if ignores:
        words = words[4:]
    while words[1:2] == ("-u",):  # the streams are unbuffered by the environment already
        words = (words[0], *words[2:])
    if words[:2] != (sys.executable, "-m") or words[2:3] == () or words[2] not in MODULES:
        return None
    return Program(words[2], words[3:], ignores)


def is_forkable(env: Mapping[str, str], started_with: Mapping[str, str]) -> bool:
    """Return whether a fork of a process that was started with one environment is what ``env`` asks for."""
    for name in {*env, *started_with}:
        if not IMPORT_TIME.fullmatch(name) or name.startswith("TORCHELASTIC_"):
            continue
        if name in SET_BY_LAUNCHERS and env.get(name, SET_BY_LAUNCHERS[name]) == SET_BY_LAUNCHERS[name]:
            continue
        if env.get(name) != started_with.get(name) and not (name == "PYTHONPATH" and _plants(env, started_with)):
            return False
    return True


def _plants(env: Mapping[str, str], started_with: Mapping[str, str]) -> bool:
    """Return whether PYTHONPATH is that of ``started_with`` behind a folder in which nothing is but what is planted."""
    folder, _, rest = env.get("PYTHONPATH", "").partition(os.pathsep)
    if rest != started_with.get("PYTHONPATH") or not os.path.isdir(folder):
        return False
    return set(os.listdir(folder)) <= {f"{PLANTED}.py", "__pycache__"}


def install() -> None:
    """Let this process and those forked from it fork what they start; call it before anything is started."""
    _started_with.update(os.environ)
    subprocess.Popen._execute_child = _fork_child  # type: ignore[attr-defined]
    os.execvpe = _execvpe


def fork(
    program: Program,
    streams: Sequence[int],
    folder: str | None,
    env: Mapping[str, str],
    *,
    new_session: bool = False,
    in_child: Callable[[], object] | None = None,
) -> int:
    """Fork a process that runs ``program``; return its id.

    Args:
        program: what to run.
        streams: stdin, stdout and stderr; -1: as here.
        folder: to run in; None: this process's.
        env: its whole environment.
        new_session: whether it leads a session of its own.
        in_child: called in it before anything else of it runs.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        _take_streams(streams)
        if folder is not None:
            os.chdir(folder)
        if new_session:
            os.setsid()
        _reset_signals()
        if in_child is not None:
            in_child()
    except BaseException:
        traceback.print_exc()
        os._exit(255)
    _run(program, env)


def _fork_child(self: Any, *args: Any) -> None:
    given = inspect.signature(_real_popen).bind(self, *args).arguments
    program = program_of(given["args"])
    env = os.environ if given["env"] is None else given["env"]
    plain = not (given["shell"] or given["executable"] or given["pass_fds"]) and given["close_fds"]
    if program is None or not plain or not is_forkable(env, _started_with):
        return _real_popen(self, *args)
    streams = (given["p2cread"], given["c2pwrite"], given["errwrite"])
    self.pid = fork(
        program,
        streams,
        given["cwd"],
        env,
        new_session=given["start_new_session"],
        in_child=given["preexec_fn"],
    )
    self._child_created = True
    pipes = (given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
    self._close_pipe_fds(*pipes)
    return None


def _execvpe(file: Any, argv: Any, env: Any) -> None:
    program = program_of(argv)
    if program is None or not is_forkable(env, _started_with) or threading.active_count() > 1:
        _real_exec(file, argv, env)
    _reset_signals()
    atexit._clear()
    _run(program, env)


def _take_streams(streams: Sequence[int]) -> None:
    """Give the streams their numbers, and close all else, as exec does."""
    above = [os.dup(stream) if 0 <= stream <= 2 else stream for stream in streams]
    for number, stream in enumerate(above):
        if stream >= 0:
            os.dup2(stream, number, inheritable=True)
    _close_others()


def _close_others() -> None:
    os.closerange(3, 65536)


def _reset_signals() -> None:
    """Set signals as a new interpreter finds and sets them: those ignored stay ignored, the others have no handler."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number == signal.SIGINT:
            continue
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def _run(program: Program, env: Mapping[str, str]) -> NoReturn:
    """Run ``program`` as the main module, and leave as an interpreter does."""
    os.environ.clear()
    os.environ.update(env)
    if program.ignores:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    _show((sys.executable, "-m", program.module, *program.words), _ARGUMENTS)
    _show((f"{name}={value}" for name, value in env.items()), _ENVIRONMENT)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=_is_unbuffered(env) or stream is sys.stderr or stream.isatty())  # type: ignore[union-attr]
    sys.argv = [program.module, *program.words]
    sys.path[0] = sys.path[1] if env.get("PYTHONSAFEPATH") else os.getcwd()
    if program.module != "megads":
        sys.modules.pop(program.module, None)  # it is run as the main module, and would be imported besides
    status = 0
    try:
        if _plants(env, _started_with):
            sys.path.insert(1, env["PYTHONPATH"].partition(os.pathsep)[0])
            sys.modules.pop(PLANTED, None)
            importlib.import_module(PLANTED)
        runpy.run_module(program.module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = _status_of(end)
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        status = 1
    with suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except BaseException:
        status = status or 120
    with suppress(BaseException):
        sys.stderr.flush()
    os._exit(status & 0xFF)


def _is_unbuffered(env: Mapping[str, str]) -> bool:
    return bool(env.get("PYTHONUNBUFFERED"))


def _status_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    sys.stderr.write(f"{end.code}\n")
    return 1


def _show(words: Iterable[str], place: int) -> None:
    """Write the command or the environment over the server's own, where the kernel reads it."""
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    begin, end = int(fields[place]), int(fields[place + 1])
    text = b"".join(word.encode(errors="surrogateescape") + b"\0" for word in words)
    room = end - begin
    if begin and room > 1:
        ctypes.memmove(begin, text[: room - 1].ljust(room, b"\0"), room)
