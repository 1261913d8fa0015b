"""A signal ends the server at any time."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import uvicorn

from megads.comm.grid import Grid
from megads.inference.server.serve import ServerOptions, serve
from megads.inference.session import Session
from tests.inference.letters import Letters
from tests.inference.theirs import runner_of


@pytest.fixture
def handlers():
    """Put back what the server sets."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_uvicorn_listens_to_it_ends_the_server(handlers, monkeypatch, number):
    run, is_late = uvicorn.Server.run, threading.Event()

    def signalled(server, **more):
        def give_up() -> None:
            is_late.set()
            server.should_exit = True

        timer = threading.Timer(60, give_up)
        timer.start()
        os.kill(os.getpid(), number)
        run(server, **more)
        timer.cancel()

    monkeypatch.setattr(uvicorn.Server, "run", signalled)
    runner = runner_of("llama3", Grid(), 0)
    serve(Session(runner, runner.groups, Letters(), (52,), ""), ServerOptions(port=0))
    assert not is_late.is_set()
