"""Bodies of requests, errors as answers, and clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from megads.errors import MegadsError
from megads.storage.reading import Bounds, parse_json

_Result = TypeVar("_Result")


class BadRequest(MegadsError):
    """A request that the client can correct.

    Attributes:
        status: of the answer.
        field: that is wrong; None: not one field.
    """

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, field: str | None = None):
        super().__init__(message)
        self.field = field


class NotFound(BadRequest):
    """What the client names does not exist."""

    status = 404


class TooLarge(BadRequest):
    """A body with more bytes than the server accepts."""

    status = 413


class TooSlow(BadRequest):
    """A request that is not finished in time."""

    status = 504
    kind = "timeout_error"


async def read_body(request: Request) -> bytes:
    """Return the body.

    Raises:
        TooLarge: it has more bytes than ``max_body`` of the application's state.
    """
    most = request.app.state.max_body
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise TooLarge(f"the body has more than {most} bytes")
    return bytes(body)


async def read_json(request: Request) -> dict[str, Any]:
    """Return the body, an object.

    Raises:
        BadRequest: it is something else.
    """
    try:
        found = parse_json(await read_body(request), constant=_refuse_constant)
    except Bounds as error:
        raise BadRequest(f"the body {error}") from None
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadRequest("the body has a surrogate without its other half, which is not a character") from None
    if not isinstance(found, dict):
        raise BadRequest("the body must be a JSON object")
    return found


def _refuse_constant(name: str) -> None:
    raise Bounds(f"is not JSON: {name} is not a number there")


async def all_of(works: Sequence[Awaitable[_Result]]) -> list[_Result]:
    """Return what all of ``works`` give, in order; when one fails or is cancelled, so are the others."""
    tasks = [asyncio.ensure_future(each) for each in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def while_connected(request: Request, work: Awaitable[_Result]) -> _Result:
    """Return what ``work`` gives; cancel it when the client leaves or it takes too long.

    Raises:
        ClientDisconnect: the client has left.
        TooSlow: ``timeout_s`` of the application's state have passed.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_left(request))
    timeout_s = request.app.state.timeout_s
    try:
        done, _ = await asyncio.wait({task, watcher}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            return task.result()
        if watcher in done:
            raise ClientDisconnect
        raise TooSlow(f"not finished in {timeout_s:g} s; ask for fewer tokens, or raise --request-timeout")
    finally:
        watcher.cancel()
        if not task.done():
            task.cancel()
        await asyncio.gather(watcher, task, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
