"""The thread of the engine survives its clients, and says so when it fails."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace

import httpx
import pytest

from megads.comm.presence import LostRanks
from megads.inference.beam import Beam
from megads.inference.server.engine_loop import BeamJob, EngineLoop

SEARCH = {"prompts": ["hello"], "tokens_to_generate": 6, "beam_width": 3}


def test_a_client_that_leaves_during_or_before_its_beam_search(serve, monkeypatch):
    server, begun, goes_on = serve(), threading.Event(), threading.Event()

    def slow(job: BeamJob, session: object) -> list[Beam]:
        begun.set()
        assert goes_on.wait(100)
        return [Beam((1,), 0.0)]

    monkeypatch.setattr(BeamJob, "run", slow)
    for _ in range(2):  # the first one runs, the second one waits
        with pytest.raises(httpx.ReadTimeout):
            httpx.put(f"{server.url}/api", json=SEARCH, timeout=httpx.Timeout(60, read=0.3))
    assert begun.wait(60)
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
    assert failed.wait(60)
    assert httpx.get(f"{server.url}/health", timeout=60).status_code == 500
    assert server.post("/v1/completions", {"prompt": "a"}).status_code == 503


def test_values_at_the_edge_leave_the_engine_alive(serve):
    server = serve()
    body = {"prompt": "hello", "max_tokens": 3, "min_p": 0.1}
    assert server.post("/v1/completions", {**body, "temperature": 1e-310}).status_code == 200
    assert server.post("/v1/completions", {**body, "repetition_penalty": 1e-308}).status_code == 400
    assert server.post("/v1/completions", {**body, "stop": ["a"] * 1000}).status_code == 400
    for text in ("\ud800", ["a\udfff"]):
        content = json.dumps({**body, "prompt": text})  # escapes, as a file of JSON has them
        assert httpx.post(f"{server.url}/v1/completions", content=content, timeout=60).status_code == 400
    assert server.post("/v1/completions", {**body, "prompt": ["a"] * 4000, "n": 128}).status_code == 400
    assert server.loop.failure is None


def test_requests_and_beam_searches_have_their_turns_in_the_order_of_coming(serve, monkeypatch):
    server, goes_on, order = serve(), threading.Event(), []

    def slow(job: BeamJob, session: object) -> list[Beam]:
        order.append(f"beam {job.max_tokens}")
        assert goes_on.wait(100)
        return [Beam((1,), 0.0)]

    def ask(kind: str, number: int) -> None:
        if kind == "beam":
            assert server.put({**SEARCH, "tokens_to_generate": number}).status_code == 200
            return
        body = {"prompt": "a", "max_tokens": number, "ignore_eos": True}
        assert server.post("/v1/completions", body).status_code == 200
        order.append(f"text {number}")

    monkeypatch.setattr(BeamJob, "run", slow)
    threads = []
    for place, (kind, number) in enumerate([("beam", 1), ("beam", 2), ("text", 3), ("beam", 4), ("text", 5)]):
        threads.append(threading.Thread(target=ask, args=(kind, number)))
        threads[-1].start()
        until = time.monotonic() + 60
        # A search that runs is not counted.
        while server.loop._count <= place or (place == 0 and not order):
            assert time.monotonic() < until
            time.sleep(0.005)
    reported = server.loop._report

    def report(client, request):
        if request.finish_reason:  # before the client hears of it
            order.append(f"ended {len(request.output)}")
        return reported(client, request)

    monkeypatch.setattr(server.loop, "_report", report)
    goes_on.set()
    for thread in threads:
        thread.join(60)
    assert [each for each in order if "text" not in each] == ["beam 1", "beam 2", "ended 3", "beam 4", "ended 5"]


class _Presence:
    """Finds that a rank is gone."""

    def error(self) -> LostRanks:
        return LostRanks("rank 1 on there is gone")


def test_a_lost_rank_is_named_to_every_client(serve, monkeypatch):
    server = serve()
    server.loop.presence = _Presence()
    step, is_broken = server.loop.engine.step, threading.Event()

    def broken() -> object:
        if is_broken.is_set():
            raise RuntimeError("Connection closed by peer")
        return step()

    monkeypatch.setattr(server.loop.engine, "step", broken)
    body = {"prompt": "hello", "max_tokens": 40, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: {")
        is_broken.set()
        last = [line for line in lines if line][-1]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["message"], error["code"]) == ("rank 1 on there is gone", 503)
    assert isinstance(server.loop.failure, LostRanks)
    assert server.post("/v1/completions", {"prompt": "a"}).status_code == 503


def test_the_heartbeat_is_faster_than_the_time_out_of_a_collective(serve):
    session = serve().loop.session
    for timeout_s, heartbeat_s in ((600.0, 5.0), (6.0, 2.0)):
        assert EngineLoop(replace(session, timeout_s=timeout_s), 1).heartbeat_s == heartbeat_s
