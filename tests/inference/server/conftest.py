"""A real server on loopback, with a random model whose tokens are letters."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from megads.comm.grid import Grid
from megads.data.chat.folder_template import ChatTemplate
from megads.inference.server.app import make_app
from megads.inference.server.engine_loop import EngineLoop
from megads.inference.session import Session
from tests.inference.letters import Letters
from tests.inference.theirs import runner_of


@dataclass
class Served:
    """A server that runs."""

    url: str
    loop: EngineLoop

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60, **more)

    def put(self, body: Any) -> httpx.Response:
        return httpx.put(f"{self.url}/api", json=body, timeout=60)


@contextmanager
def running(
    template: str = "",
    api_key: str = "",
    num_slots: int = 4,
    max_waiting: int = 64,
    timeout_s: float = 60,
    session: Session | None = None,
) -> Iterator[Served]:
    """Serve ``session``, or letters."""
    if session is None:
        runner = runner_of("llama3", Grid(), 0, num_slots=num_slots)
        session = Session(runner, runner.groups, Letters(), (52,), "")
    loop = EngineLoop(session, max_waiting)
    chats = ChatTemplate(None)
    chats.text = template
    app = make_app(loop, "tiny", chats, api_key=api_key, max_body=20_000, timeout_s=timeout_s)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    loop.start()
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", loop)
    finally:
        server.should_exit = True
        thread.join()
        loop.stop()
        listener.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with running(template="{% for each in messages %}{{ each.role[:1] }} {{ each.content }} {% endfor %}a ") as server:
        yield server


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Return what starts a server with settings of its own."""
    with ExitStack() as stack:
        yield lambda **more: stack.enter_context(running(**more))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
