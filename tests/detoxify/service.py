"""A server in the place of the Perspective API: it answers as the service does, and as broken ones do."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

NAMES = ("TOXICITY", "SEVERE_TOXICITY", "SEXUALLY_EXPLICIT", "THREAT", "PROFANITY", "IDENTITY_ATTACK")
KEY = "secret-key-0123456789"
Reply = tuple[int, dict[str, str], bytes]


def value_of(text: str, name: str) -> float:
    """Return the score that the server gives a text."""
    return (sum(text.encode()) + len(name)) % 1000 / 1000


def good(text: str) -> Reply:
    """Return the answer to a text."""
    scores = {name: {"summaryScore": {"value": value_of(text, name), "type": "PROBABILITY"}} for name in NAMES}
    return 200, {}, json.dumps({"attributeScores": scores, "languages": ["en"]}).encode()


def failure(status: int, message: str = "", headers: dict[str, str] | None = None, **detail: str) -> Reply:
    """Return an error in the service's form."""
    content = {"error": {"code": status, "message": message, "details": [detail] if detail else []}}
    return status, headers or {}, json.dumps(content).encode()


class Service:
    """What the server does, and what it saw.

    Attributes:
        reply: gives the answer to the ``n``-th request for a text, from 0.
        seen: texts, in the order of their requests.
        bodies: of the requests.
        keys: of the requests.
        times: of the requests.
        most: requests at the same time.
    """

    def __init__(self, reply: Callable[[str, int], Reply]):
        self.reply = reply
        self.seen: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.times: list[float] = []
        self.most = self.now = 0
        self.url = ""
        self.lock = threading.Lock()

    def answer(self, path: str, body: bytes) -> Reply:
        content, query = json.loads(body), parse_qs(urlsplit(path).query)
        text = content["comment"]["text"]
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            number = self.seen.count(text)
            self.seen.append(text)
            self.bodies.append(content)
            self.keys += query.get("key", [])
            self.times.append(time.monotonic())
        try:
            assert urlsplit(path).path == "/v1alpha1/comments:analyze"
            return self.reply(text, number)
        finally:
            with self.lock:
                self.now -= 1


@contextmanager
def served(reply: Callable[[str, int], Reply] = lambda text, number: good(text)) -> Iterator[Service]:
    """Yield a service that answers on a free port of this host."""
    service = Service(reply)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # one packet an answer

        def do_POST(self) -> None:
            status, headers, content = service.answer(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            if status == 0:  # the connection breaks
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(content))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *words: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: object, address: object) -> None:
            pass  # a client that waits no longer

    server = Server(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
