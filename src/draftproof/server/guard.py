"""What stands between a stranger and the event loop that answers everyone.

A body that is too large is refused before it is read or while it comes in; one without a key, where
there are keys, before it is read. What is large is read from JSON in a thread.
"""

from __future__ import annotations

import asyncio
import json
import json.scanner
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftproof.server.refusals import Refusal
from draftproof.server.settings import Settings

LARGE = 2**16  # bytes, from which a body is read in a thread; below, the worst takes 10 ms


class Guard:
    """Stands before an application.

    Args:
        app: the application.
        limit: bytes of a body at most.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        told = Headers(scope=scope).get("content-length", "") if scope["type"] == "http" else ""
        if told.isdecimal() and int(told) > self._limit:
            await self._refusal().response()(scope, receive, send)
            return
        left = self._limit

        async def counted() -> Message:  # a body need not tell its length
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise self._refusal()
            return message

        await self._app(scope, counted, send)

    def _refusal(self) -> Refusal:
        message = f"the request has more than {self._limit} bytes: send less"
        return Refusal(413, message, "request_too_large")


def guarded(settings: Settings) -> type[APIRoute]:
    """Routes that want one of the keys, if there are any, and then read a body."""
    one_by_one = asyncio.Lock()  # so that large bodies take turns, and one thread

    class GuardedRequest(Request):
        async def json(self) -> Any:
            """See ``Request``."""
            body = await self.body()
            if len(body) <= LARGE:
                return json.loads(body)
            async with one_by_one:
                return await asyncio.to_thread(_patient, body)

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """See ``APIRoute``."""
            handle = super().get_route_handler()

            async def handler(request: Request) -> Response:
                _require_key(request, settings.api_keys)
                return await handle(GuardedRequest(request.scope, request.receive))

            return handler

    return GuardedRoute


def _require_key(request: Request, keys: tuple[str, ...]) -> None:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    key = given.strip().encode() if scheme.lower() == "bearer" else b""
    if keys and not any(secrets.compare_digest(key, each.encode()) for each in keys):
        raise Refusal(
            401,
            "this server needs an API key: send it as Authorization: Bearer KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _patient(body: bytes) -> Any:
    """Read JSON in Python: the compiled reader lets no other thread run until it is done.

    Texts are read as fast; it is the hostile million of small lists that takes longer, alone.
    """
    decoder: Any = json.JSONDecoder()
    decoder.scan_once = json.scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]
    return decoder.decode(body.decode(json.detect_encoding(body), "surrogatepass"))
