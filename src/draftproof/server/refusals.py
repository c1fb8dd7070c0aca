"""Errors as the OpenAI API writes them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from draftproof.errors import DraftproofError, UserError
from draftproof.params import GRAMMARS, SamplingParams

logger = logging.getLogger("draftproof.server")

SENT = "send the body as JSON, with Content-Type: application/json"
OBJECT = "the body must be a JSON object"
UNKNOWN = "this field is not known here: leave it out"
SHAPELESS = ("missing", "model_attributes_type", "model_type", "dict_type")
FIELDS = {field.name for field in fields(SamplingParams)} - set(GRAMMARS)
SHORT, LONG = 80, 600  # characters of what a client named, and of all it is told
TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class Refusal(HTTPException):
    """A request that is not answered.

    Args:
        status: of HTTP.
        message: what to do about it.
        code: a word for programs.
        param: the field that is at fault.
        headers: more of them.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, short(message, LONG), headers)
        self.code, self.param = code, param

    def document(self) -> dict[str, Any]:
        """The body of the response."""
        kind = "server_error" if self.status_code >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.detail,
                "type": TYPES.get(self.status_code, kind),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> Response:
        """The whole response."""
        return document(self.document(), self.status_code, self.headers)


def short(text: str, most: int = SHORT) -> str:
    """A text without its middle, where it is longer."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}…{text[1 - most // 2 :]}"


def encoded(value: Any) -> bytes:
    """JSON, whatever a text in it holds; characters that no text can have become ``?``."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def document(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(encoded(value), status, headers, media_type="application/json")


def refusal_of(error: Exception) -> Refusal:
    """What a client is told about an error."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, HTTPException):
        return Refusal(error.status_code, str(error.detail), headers=error.headers)
    if isinstance(error, UserError):
        return Refusal(400, str(error), param=_field(error))
    if isinstance(error, DraftproofError):
        return Refusal(500, str(error))
    return Refusal(500, "the server failed at this request: its log says why")


def add_handlers(app: FastAPI) -> None:
    """Answer every error of an application in this form."""

    async def known(request: Request, error: Exception) -> Response:
        return refusal_of(error).response()

    async def malformed(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return _malformed(error).response()

    for kind in (DraftproofError, HTTPException, Exception):
        app.add_exception_handler(kind, known)
    app.add_exception_handler(RequestValidationError, malformed)


def _field(error: UserError) -> str | None:
    """The sampling option an error is about: its message begins with the name."""
    name = str(error).partition(" ")[0]
    return name if name in FIELDS else None


def _malformed(error: RequestValidationError) -> Refusal:
    """The first thing that is wrong with a body."""
    first = error.errors()[0]
    kind, context = first["type"], first.get("ctx", {})
    if kind == "json_invalid":
        return Refusal(400, f"the body is not JSON: {context['error']}")
    place = first["loc"][1:]
    if not place and kind in SHAPELESS:
        return Refusal(400, SENT if isinstance(error.body, bytes) else OBJECT)
    if kind == "missing":
        path = [*_path(place[:-1], error.body), str(place[-1])]
    else:
        path = _path(place, error.body)
    if kind == "refused":
        path.append(context["name"])
    param = ".".join(map(short, path)) or None
    message = UNKNOWN if kind == "extra_forbidden" else first["msg"]
    return Refusal(400, f"{param}: {message}" if param else message, param=param)


def _path(place: Sequence[str | int], body: Any) -> list[str]:
    """The part of a place that names fields and not the types that were tried there."""
    path = []
    for part in place:
        try:
            body = body[part]
        except (KeyError, IndexError, TypeError):
            break
        path.append(str(part))
    return path
