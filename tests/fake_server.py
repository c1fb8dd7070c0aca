"""A server of one answer, by the contract of streams with ``include_rounds`` and of ``/stats``."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from draftproof.server.explain import add_page
from draftproof.server.run import address_of, listen

SENTENCE = (
    "The planets, from the Sun outwards: Mercury, the smallest and fastest; Venus, the hottest; "
    "Earth, our own; Mars, red with rust; Jupiter, the largest; Saturn, with its rings; Uranus, "
    "which lies on its side; and Neptune, the windiest of all.\n<b>That is eight.</b>"
)
STATS = {
    "model": "SmolLM2-135M-Instruct.F16.gguf",
    "drafter": "quantize:Q4_0",
    "rounds": 412,
    "completion_tokens": 1290,
    "drafted": 1502,
    "accepted": 878,
    "evaluated": 1203,
    "evaluated_at_position": [402, 340, 266, 195],
    "accepted_at_position": [340, 266, 195, 77],
    "draft_lengths": {"0": 10, "1": 31, "2": 58, "4": 313},
    "running": 2,
    "waiting": 0,
    "tokens_per_second": {"speculative": 61.4, "plain": 38.2},
    "cache_tokens": 2048,
    "uptime": 754.2,
}


def words() -> list[str]:
    """The answer's tokens: each word with the blank before it."""
    first, *rest = SENTENCE.split(" ")
    return [first, *(" " + word for word in rest)]


def chunks(speculative: bool) -> Iterator[dict[str, Any]]:
    """The answer in rounds, by the contract."""
    rng, tokens, number, drafted, accepted = random.Random(3), words(), 0, 0, 0
    evaluated = 0
    while tokens:
        k = min(4, len(tokens) - 1) if speculative and number else 0
        kept = rng.choice((0, 1, 2, 3, 4, 4)) if k else 0
        kept = min(kept, k)
        now, tokens = tokens[: kept + 1], tokens[kept + 1 :]
        last = "plain" if not k else "bonus" if kept == k else "correction"
        origins = ["accepted"] * kept + [last]
        if number == 3 and k:
            origins[0] = "forced"
        judged = kept + (last == "correction")
        number, drafted, accepted = number + 1, drafted + k, accepted + kept
        evaluated += judged
        yield {
            "round": number,
            "pieces": [{"text": t, "origin": o} for t, o in zip(now, origins, strict=True)],
            "rejected": " wrong" if last == "correction" else "",
            "drafted": k,
            "accepted": kept,
            "evaluated": judged,
            "seconds": {"draft": 0.002 * k, "verify": 0.011 + 0.001 * k, "other": 0.0005},
        }
    emitted = len(words())
    yield {
        "stats": {
            "completion_tokens": emitted,
            "rounds": number,
            "drafted": drafted,
            "accepted": accepted,
            "evaluated": evaluated,
            "acceptance_rate": accepted / evaluated if evaluated else None,
            "acceptance_length": emitted / number,
            "tokens_per_second": 61.4 if speculative else 38.2,
        }
    }


class Fake:
    """A server of one answer; ``bodies`` and ``keys`` are those of the requests it got.

    It waits before each chunk, refuses, fails in mid-stream, or answers otherwise without
    speculation, where it is told to.
    """

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.pause = 0.0
        self.refusal: Response | None = None
        self.failing = self.differing = False
        self.app = Starlette(
            routes=[
                Route("/stats", lambda _: JSONResponse(STATS)),
                Route("/v1/chat/completions", self.answer, methods=["POST"]),
            ]
        )
        add_page(self.app)

    async def answer(self, request: Request) -> Response:
        self.keys.append(request.headers.get("Authorization"))
        if self.refusal is not None:
            return self.refusal
        self.bodies.append(await request.json())
        return StreamingResponse(self.events(self.bodies[-1]), media_type="text/event-stream")

    async def events(self, body: dict[str, Any]) -> AsyncIterator[str]:
        for found in chunks(body.get("speculation", True)):
            if self.failing and found.get("round") == 3:
                yield 'data: {"error": {"message": "the model failed: load it again"}}\n\n'
                break
            text = "".join(piece["text"] for piece in found.get("pieces", ()))
            if self.differing and "speculation" in body:
                text = text.replace("Venus", "Pluto")
            choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
            ends = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
            chunk = {"choices": [choice]} if "round" in found else ends
            yield f"data: {json.dumps({**chunk, 'draftproof': found})}\n\n"
            await asyncio.sleep(self.pause)
        yield "data: [DONE]\n\n"


@contextmanager
def served(app: Starlette) -> Iterator[str]:
    """The address of a running app."""
    port = listen("127.0.0.1", 0)
    port.listen()
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([port],))
    thread.start()
    try:
        yield address_of(port)
    finally:
        server.should_exit = True
        thread.join()
        port.close()
