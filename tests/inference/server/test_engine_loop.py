"""The thread of the engine survives its clients, and says so when it fails."""

from __future__ import annotations

import json
import threading

import httpx
import pytest

from megads.inference.beam import Beam
from megads.inference.server.engine_loop import BeamJob

SEARCH = {"prompts": ["hello"], "tokens_to_generate": 6, "beam_width": 3}


def test_a_client_that_leaves_during_or_before_its_beam_search(serve, monkeypatch):
    server, begun, goes_on = serve(), threading.Event(), threading.Event()

    def slow(job: BeamJob, session: object) -> list[Beam]:
        begun.set()
        assert goes_on.wait(30)
        return [Beam((1,), 0.0)]

    monkeypatch.setattr(BeamJob, "run", slow)
    for _ in range(2):  # the first one runs, the second one waits
        with pytest.raises(httpx.ReadTimeout):
            httpx.put(f"{server.url}/api", json=SEARCH, timeout=0.2)
    assert begun.wait(30)
    goes_on.set()
    assert server.put(SEARCH).status_code == 200
    assert server.loop.failure is None


def test_a_failure_reaches_every_client_and_ends_the_server(serve, monkeypatch):
    server, failed = serve(), threading.Event()
    server.loop._on_failure = failed.set

    def broken(job: BeamJob, session: object) -> list[Beam]:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(BeamJob, "run", broken)
    answer = server.put(SEARCH)
    assert (answer.status_code, answer.json()["message"]) == (503, "the engine has failed; see the server's log")
    assert failed.wait(30)
    assert httpx.get(f"{server.url}/health").status_code == 500
    assert server.post("/v1/completions", {"prompt": "a"}).status_code == 503


def test_values_at_the_edge_leave_the_engine_alive(serve):
    server = serve()
    body = {"prompt": "hello", "max_tokens": 3, "min_p": 0.1}
    assert server.post("/v1/completions", {**body, "temperature": 1e-310}).status_code == 200
    assert server.post("/v1/completions", {**body, "repetition_penalty": 1e-308}).status_code == 400
    assert server.post("/v1/completions", {**body, "stop": ["a"] * 1000}).status_code == 400
    for text in ("\ud800", ["a\udfff"]):
        content = json.dumps({**body, "prompt": text})  # escapes, as a file of JSON has them
        assert httpx.post(f"{server.url}/v1/completions", content=content).status_code == 400
    assert server.post("/v1/completions", {**body, "prompt": ["a"] * 4000, "n": 128}).status_code == 400
    assert server.loop.failure is None
