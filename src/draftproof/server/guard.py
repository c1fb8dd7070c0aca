"""Refuses a body that is too large, before it is read or while it comes in."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftproof.server.refusals import Refusal


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
