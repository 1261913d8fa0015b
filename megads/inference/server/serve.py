"""Serve until a signal: finish what has begun, then end with exit code 0."""

from __future__ import annotations

import ipaddress
import math
import signal
import socket
from dataclasses import dataclass

from megads.comm.presence import Presence
from megads.errors import ConfigError, DependencyError
from megads.inference.server.engine_loop import EngineLoop, follow
from megads.inference.session import Session
from megads.monitor.log import LOG


@dataclass(frozen=True)
class ServerOptions:
    """How a model is served.

    Attributes:
        host: address to listen on.
        port: 0: a free one.
        model: the name under which it is served.
        api_key: that ``/v1`` and ``/api`` demand; empty: none.
        max_waiting: sequences that wait for a slot; more are answered with 429.
        max_body: bytes of a request.
        timeout_s: of a request that is not streamed.
    """

    host: str = "127.0.0.1"
    port: int = 5000
    model: str = "model"
    api_key: str = ""
    max_waiting: int = 64
    max_body: int = 1 << 20
    timeout_s: float = 600.0


def serve(session: Session, options: ServerOptions, presence: Presence | None = None) -> None:
    """Serve a model on rank 0 until SIGTERM or SIGINT; the other ranks follow it. All ranks call it.

    Raises:
        ConfigError: the layout has replicas, or the address cannot be used.
        DependencyError: a package of the extra ``serve`` is missing.
        LostRanks: other ranks are gone, by what ``presence`` knows.
    """
    if session.groups.data_size > 1:
        raise ConfigError(
            f"{session.groups.data_size} replicas of the model have started; a server has one: start TP x PP ranks"
        )
    if not session.speaks:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # rank 0 ends it
        follow(session, presence)
        return
    try:
        import uvicorn

        from megads.inference.server.app import make_app
    except ImportError as problem:
        raise DependencyError(f"megads serve needs {problem.name}; pip install -e '.[serve]' in the checkout") from None
    listener = _listen(options.host, options.port)
    loop = EngineLoop(session, options.max_waiting, presence)
    app = make_app(
        loop,
        options.model,
        session.template,
        api_key=options.api_key,
        max_body=options.max_body,
        timeout_s=options.timeout_s,
    )
    # A client that does not read its stream must not keep the server from ending.
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=math.ceil(options.timeout_s),
    )
    server = uvicorn.Server(config)
    # uvicorn ends on these two and then raises them again, which must not end the process before it has finished;
    # one that comes before uvicorn listens to them counts, too.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: setattr(server, "should_exit", True))
    loop.start(on_failure=lambda: setattr(server, "should_exit", True))
    host, port = listener.getsockname()[:2]
    LOG.info("serving %s at http://%s:%d (Ctrl-C to stop)", options.model, f"[{host}]" if ":" in host else host, port)
    if not ipaddress.ip_address(host.partition("%")[0]).is_loopback and not options.api_key:
        LOG.warning("everybody who reaches %s can use the model; MEGADS_API_KEY sets a key", host)
    try:
        server.run(sockets=[listener])
    finally:
        loop.stop()
    if loop.failure:
        raise loop.failure
    LOG.info("stopped: %d tokens generated", loop.generated)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        raise ConfigError(
            f"--host {host} --port {port}: {error.strerror}; use another one, --port 0 for a free one"
        ) from None
    return listener
