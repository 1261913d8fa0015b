"""The web application: routes, limits, errors and metrics."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable
from importlib.resources import files

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from megads.data.chat.folder_template import ChatTemplate
from megads.errors import ConfigError, MegadsError
from megads.inference.server.engine_loop import EngineLoop, Overloaded
from megads.inference.server.megatron_api import MegatronApi
from megads.inference.server.openai_api import OpenAI
from megads.inference.server.requests import BadRequest
from megads.monitor.log import LOG

Endpoint = Callable[[Request], Awaitable[Response]]
LEFT = 499
"""Status in the metrics of a request whose client has left."""


class Metrics:
    """What ``/metrics`` shows, in Prometheus' text format.

    Args:
        loop: the engine.
    """

    def __init__(self, loop: EngineLoop):
        self.registry = CollectorRegistry()
        here = self.registry
        labels = ("route", "status")
        self.requests = Counter("megads_requests", "Requests by route and status.", labels, registry=here)
        self.seconds = Histogram("megads_request_seconds", "Seconds of a request.", labels[:1], registry=here)
        running = Gauge("megads_running_requests", "Sequences that run or wait.", registry=here)
        running.set_function(lambda: loop.num_requests)
        Gauge("megads_generated_tokens", "Tokens generated.", registry=here).set_function(lambda: loop.generated)

    async def show(self, request: Request) -> Response:
        """``GET /metrics``."""
        return PlainTextResponse(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)


def make_app(
    loop: EngineLoop, model: str, template: ChatTemplate, *, api_key: str, max_body: int, timeout_s: float
) -> Starlette:
    """Return the application.

    Args:
        loop: the engine, started.
        model: the name under which the model is served.
        template: of its chats.
        api_key: that ``/v1`` and ``/api`` demand; empty: none.
        max_body: bytes of a request.
        timeout_s: of a request that is not streamed.
    """
    openai, megatron, metrics = OpenAI(loop, model, template), MegatronApi(loop), Metrics(loop)

    def route(path: str, endpoint: Endpoint, *methods: str) -> Route:
        return Route(
            path,
            _counted(_guarded(endpoint, api_key if path.startswith(("/v1", "/api")) else ""), path, metrics),
            methods=methods,
        )

    async def health(request: Request) -> Response:
        return Response(status_code=500 if loop.failure else 200)

    async def page(request: Request) -> Response:
        return HTMLResponse(files("megads.inference.server").joinpath("page.html").read_text("utf8"))

    app = Starlette(
        routes=[
            route("/v1/completions", openai.completions, "POST"),
            route("/v1/chat/completions", openai.chat, "POST"),
            route("/v1/models", openai.models, "GET"),
            route("/v1/models/{name:path}", openai.models, "GET"),
            route("/tokenizer_info", openai.tokenizer_info, "GET"),
            route("/tokenize", openai.tokenize, "POST"),
            route("/detokenize", openai.detokenize, "POST"),
            route("/api", megatron.generate, "PUT", "POST"),
            Route("/health", health, methods=["GET"]),
            Route("/metrics", metrics.show, methods=["GET"]),
            Route("/", page, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _on_http_error},
    )
    app.state.max_body, app.state.timeout_s = max_body, timeout_s
    return app


def _guarded(endpoint: Endpoint, api_key: str) -> Endpoint:
    """Return an endpoint that demands the key, and answers errors of megads with one line."""

    async def guarded(request: Request) -> Response:
        if api_key:
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {api_key}".encode()):
                return error_of(request, "the API key is missing or wrong; send Authorization: Bearer KEY", 401, "auth")
        try:
            return await endpoint(request)
        except BadRequest as error:
            return error_of(request, str(error), error.status, error.kind, error.field)
        except Overloaded as error:
            answer = error_of(request, str(error), 429, "overloaded_error")
            answer.headers["Retry-After"] = "1"
            return answer
        except ConfigError as error:
            return error_of(request, str(error), 400, "invalid_request_error")
        except ClientDisconnect:
            return Response(status_code=LEFT)
        except MegadsError as error:
            return error_of(request, str(error), 503, "server_error")
        except Exception:
            LOG.exception("a request to %s failed", request.url.path)
            return error_of(request, "internal error; see the server's log", 500, "server_error")

    return guarded


def _counted(endpoint: Endpoint, path: str, metrics: Metrics) -> Endpoint:
    async def counted(request: Request) -> Response:
        began = time.monotonic()
        answer = await endpoint(request)
        metrics.requests.labels(path, str(answer.status_code)).inc()
        metrics.seconds.labels(path).observe(time.monotonic() - began)
        return answer

    return counted


def error_of(request: Request, message: str, status: int, kind: str, field: str | None = None) -> Response:
    """Return an error as OpenAI's clients, or for ``/api`` Megatron-LM's, expect it."""
    line = " ".join(message.split())
    if request.url.path == "/api":
        return JSONResponse({"message": line}, status)
    return JSONResponse({"error": {"message": line, "type": kind, "param": field, "code": status}}, status)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_of(
        request, f"{request.method} {request.url.path}: {error.detail}", error.status_code, "not_found_error"
    )
