"""The routes.

Not here: what bodies may hold (``schema.py``), what answers look like (``shapes.py``), the page
(``explain.py``), and listening (``run.py``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from importlib import metadata
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from draftproof.engine import Engine
from draftproof.server.events import EventStream, Telling, while_connected
from draftproof.server.explain import add_page
from draftproof.server.exposition import Exposition
from draftproof.server.guard import Guard, guarded
from draftproof.server.metrics import Metrics
from draftproof.server.prepare import Job, Preparation
from draftproof.server.refusals import Refusal, add_handlers, document, short
from draftproof.server.schema import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerationBody,
    TokenizeBody,
)
from draftproof.server.service import Place, Service
from draftproof.server.settings import Settings
from draftproof.server.shapes import ChatShape, Shape, TextShape
from draftproof.types import Speculation

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The request cannot be answered as it is."},
    401: {"description": "There is no such key."},
    404: {"description": "There is no such model."},
    413: {"description": "The body is too large."},
    429: {"description": "Too many answers are asked for at once."},
    500: {"description": "A model failed."},
    503: {"description": "The server is shutting down."},
}
BEARER = HTTPBearer(auto_error=False)  # for the description: the routes' class asks for keys
VERSION = metadata.version("draftproof")
STREAM = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}


def create_app(
    engine: Engine, settings: Settings, speculation: Speculation | None = None
) -> FastAPI:
    """An application that owns an engine while it runs.

    Args:
        engine: what answers.
        settings: the server's.
        speculation: where a request asks for nothing else.
    """
    server = Server(engine, settings, speculation or Speculation())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        server.service.start()
        try:
            yield
        finally:
            await asyncio.to_thread(server.service.stop)

    app = FastAPI(
        title="Draftproof",
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = server.service
    for router in (_answers(server), _knowledge(server)):
        app.include_router(router, dependencies=[Depends(BEARER)])
    app.include_router(_open(server))
    app.add_middleware(Guard, limit=settings.max_body)
    add_handlers(app)
    add_page(app)
    return app


class Server:
    """What the routes use.

    Args:
        engine: what answers.
        settings: the server's.
        speculation: where a request asks for nothing else.
    """

    def __init__(self, engine: Engine, settings: Settings, speculation: Speculation) -> None:
        capabilities = engine.target.capabilities
        slots, self.context = capabilities.max_sequences, capabilities.context_length
        self.settings, self.routes = settings, guarded(settings)
        self.metrics = Metrics(slots, slots * self.context, settings.log_interval)
        self.exposition = Exposition(self.metrics, settings.name)
        self.service = Service(engine, self.metrics, settings.max_waiting)
        self.preparation = Preparation(engine, settings, speculation)
        self.tokenizer = engine.target.tokenizer
        self.drafter = engine.drafter.name if engine.drafter else None
        self.vocabulary = capabilities.vocabulary
        self._created = int(time.time())

    def named(self, model: str | None) -> str:
        """The name of the model that is asked for.

        Raises:
            Refusal: it is another one.
        """
        if model not in (None, *self.settings.names):
            message = (
                f"there is no model {short(str(model))!r} here: ask for {self.settings.name!r}"
            )
            raise Refusal(404, message, "model_not_found", "model")
        return model or self.settings.name

    def described(self, name: str) -> dict[str, Any]:
        """One entry of the list of models."""
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "draftproof",
            "root": self.settings.name,
            "parent": None,
            "max_model_len": self.context,
        }

    async def answer(
        self, request: Request, body: GenerationBody, shape: Callable[[list[Job]], Shape]
    ) -> Response:
        """Answer a request for text."""
        with ExitStack() as stack:
            place = stack.enter_context(self.service.place())
            place.take(1)
            telling = await while_connected(request, self._ask(body, shape, place))
            if not body.stream:
                return document(await while_connected(request, telling.document()))
            events = await while_connected(request, telling.events())
            return EventStream(events, self.settings.write_timeout, stack.pop_all().close)

    async def _ask(
        self, body: GenerationBody, shape: Callable[[list[Job]], Shape], place: Place
    ) -> Telling:
        jobs = await self.preparation.jobs(body)
        place.take(len(jobs) - 1)
        return Telling(body, shape(jobs), place.ask(jobs), self.tokenizer)


def _answers(server: Server) -> APIRouter:
    """What generates."""
    router = APIRouter(responses=ERRORS, route_class=server.routes)

    @router.post("/v1/chat/completions", responses={200: STREAM})
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        """Answer the messages of a chat."""
        model = server.named(body.model)
        scored = body.logprobs
        return await server.answer(
            request, body, lambda jobs: ChatShape(model, server.tokenizer, scored)
        )

    @router.post("/v1/completions", responses={200: STREAM})
    async def completions(body: CompletionBody, request: Request) -> Response:
        """Go on from a text."""
        model = server.named(body.model)
        scored = body.logprobs is not None
        return await server.answer(
            *(request, body),
            lambda jobs: TextShape(model, server.tokenizer, scored, jobs, body.echo),
        )

    return router


def _knowledge(server: Server) -> APIRouter:
    """What the model is, and its tokens."""
    router = APIRouter(responses=ERRORS, route_class=server.routes)

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The model, by all its names."""
        names = server.settings.names
        return {"object": "list", "data": [server.described(name) for name in names]}

    @router.get("/v1/models/{model:path}")
    async def model(model: str) -> dict[str, Any]:
        """The model."""
        return server.described(server.named(model))

    @router.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        """The tokens of a text or of messages."""
        server.named(body.model)
        tokens = await asyncio.to_thread(_tokens, server.preparation, body)
        spelled = map(ChatShape("", server.tokenizer, False).spelled, tokens)
        return {
            "count": len(tokens),
            "max_model_len": server.context,
            "tokens": tokens,
            "token_strs": list(spelled) if body.return_token_strs else None,
        }

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> dict[str, str]:
        """The text of tokens."""
        server.named(body.model)
        if any(token >= server.vocabulary for token in body.tokens):
            raise Refusal(400, f"tokens go from 0 to {server.vocabulary - 1}", param="tokens")
        pieces = map(server.tokenizer.piece, body.tokens)
        return {"prompt": b"".join(pieces).decode("utf-8", "replace")}

    return router


def _tokens(preparation: Preparation, body: TokenizeBody) -> list[int]:
    if body.messages is not None:
        return preparation.chat(body.messages)
    if not body.prompt:
        return []
    return preparation.encode(body.prompt, body.add_special_tokens)


def _open(server: Server) -> APIRouter:
    """What is open to all: it tells nothing of texts."""
    router = APIRouter()

    @router.get("/health", responses={503: ERRORS[503]})
    async def health() -> dict[str, str]:
        """Whether answers can be asked for."""
        if not server.service.healthy:
            raise Refusal(503, "the server takes no more requests", "shutting_down")
        return {"status": "ok"}

    @router.get("/version")
    async def version() -> dict[str, str]:
        """The program's version."""
        return {"version": VERSION}

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """The counts for Prometheus."""
        return Response(generate_latest(server.exposition.registry), media_type=CONTENT_TYPE_LATEST)

    @router.get("/stats")
    async def stats() -> dict[str, Any]:
        """The counts for the page."""
        return server.metrics.to_json(server.settings.name, server.drafter)

    return router
