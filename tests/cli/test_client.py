"""``megads client``: what it sends, and what it says of answers."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from megads.cli.client import _address, ask
from megads.errors import ConfigError


@pytest.fixture
def server():
    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.server.bodies.append(body)
            status, answer = self.server.answers.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *words):
            """Say nothing."""

    made = HTTPServer(("127.0.0.1", 0), Handler)
    made.bodies, made.answers = [], []
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def _ask(server):
    return ask(_address(f"127.0.0.1:{server.server_port}"), "hello", 5, 30)


def test_it_puts_prompts_and_prints_the_text(server):
    server.answers.append((200, b'{"text": ["hello world"]}'))
    assert _ask(server) == "hello world"
    assert server.bodies == [{"prompts": ["hello"], "tokens_to_generate": 5}]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (400, b'{"message": "too long"}', "400: too long"),
        (400, b'"top_k must be an integer"', "400: top_k must be an integer"),  # as Megatron-LM's server answers
        (500, b"<html>", "500: <html>"),
        (200, b"[]", "not that of a text generation server"),
        (200, b"no", "not that of a text generation server"),
    ],
)
def test_errors_are_one_line(server, status, body, words):
    server.answers.append((status, body))
    with pytest.raises(ConfigError, match=words):
        _ask(server)


def test_addresses():
    assert _address("host:5000") == "http://host:5000/api"
    assert _address("https://host/") == "https://host/api"
    assert _address("http://host:5000/api") == "http://host:5000/api"
    with pytest.raises(ConfigError, match="pass host:port"):
        _address("ftp://host")


def test_nobody_listens():
    with pytest.raises(ConfigError, match="is the server running"):
        ask("http://127.0.0.1:9/api", "hello", 5, 5)
