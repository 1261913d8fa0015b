"""The process that imports everything once, and forks for each command it is asked for."""

from __future__ import annotations

import gc
import os
import pickle
import select
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.forks.become import fork, install, is_forkable, program_of


@dataclass
class Request:
    """What to start; the three streams travel with it."""

    argv: list[str]
    folder: str
    env: dict[str, str]
    new_session: bool = False


def send(connection: socket.socket, message: Any, streams: tuple[int, ...] = ()) -> None:
    """Send one message, with open files."""
    data = pickle.dumps(message)
    head = struct.pack("!q", len(data))
    if streams:
        socket.send_fds(connection, [head], list(streams))
        connection.sendall(data)
    else:
        connection.sendall(head + data)


def receive(connection: socket.socket) -> tuple[Any, list[int]]:
    """Return one message and the files that came with it.

    Raises:
        EOFError: the other side is gone.
    """
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    while 0 < len(head) < 8:
        head += connection.recv(8 - len(head))
    if not head:
        raise EOFError
    left, parts = struct.unpack("!q", head)[0], []
    while left:
        part = connection.recv(min(left, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        left -= len(part)
    return pickle.loads(b"".join(parts)), list(streams)


def serve(connection: socket.socket, listener: socket.socket) -> None:
    """Fork for each :class:`Request` and answer with the process id; answer an id with its wait status.

    A request that comes through ``listener`` (of ``client.py``) is answered with the status, once it is there, or
    with None if it needs a new interpreter.
    """
    waiters: set[int] = set()
    while True:
        ready, _, _ = select.select([connection, listener], [], [], 5.0)
        for pid in [*waiters]:
            if os.waitpid(pid, os.WNOHANG)[0]:
                waiters.discard(pid)
        if listener in ready:
            caller, _ = listener.accept()
            waiters.add(_answer_when_ended(caller))
            caller.close()
        if connection in ready:
            try:
                message, streams = receive(connection)
            except EOFError:
                return
            if isinstance(message, int):
                send(connection, os.waitpid(message, 0)[1])
            else:
                send(connection, _start(message, streams))


def _start(request: Request, streams: list[int]) -> int:
    program = program_of(request.argv)
    assert program is not None, request.argv
    pid = fork(program, streams, request.folder, request.env, new_session=request.new_session)
    for stream in streams:
        os.close(stream)
    return pid


def _answer_when_ended(caller: socket.socket) -> int:
    pid = os.fork()
    if pid:
        return pid
    with suppress(EOFError, OSError):
        request, streams = receive(caller)
        forkable = is_forkable(request.env, dict(os.environ))
        send(caller, os.waitpid(_start(request, streams), 0)[1] if forkable else None)
    os._exit(0)


def import_everything() -> None:
    """Import what the command and its ranks do, without a thread and without a group."""
    import importlib
    import pkgutil

    from PIL import Image

    import megads
    from megads.engine.compiler import NAME, is_postponed, postpone_compiler
    from megads.engine.deepspeed.package import import_deepspeed

    Image.init()
    for module in pkgutil.walk_packages(megads.__path__, "megads."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("torch.distributed.run", "torch.distributed.elastic.rendezvous.static_tcp_rendezvous", "orjson"):
        importlib.import_module(name)
    postpone_compiler()
    import_deepspeed()
    if is_postponed():  # ranks postpone it themselves
        del sys.modules[NAME]


def main() -> None:
    import_everything()
    assert len(os.listdir("/proc/self/task")) == 1  # a fork has no other thread
    install()
    gc.collect()
    gc.freeze()
    connection, listener = (socket.socket(fileno=int(word)) for word in sys.argv[1:3])
    for each in (connection, listener):
        each.set_inheritable(False)
    send(connection, "ready")
    serve(connection, listener)


if __name__ == "__main__":
    main()
