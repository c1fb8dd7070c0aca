"""From steps to responses: a document in one, or server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from draftproof.server.answers import Answers
from draftproof.server.refusals import Refusal, encoded, refusal_of
from draftproof.server.schema import GenerationBody
from draftproof.server.shapes import Score, Shape
from draftproof.server.usage import Drafts, round_of, usage
from draftproof.text import Tokenizer
from draftproof.types import Step

logger = logging.getLogger("draftproof.server")

DONE = b"data: [DONE]\n\n"

_T = TypeVar("_T")


class Telling:
    """Tells the answers to one request.

    Args:
        body: how it asked.
        shape: what it is told in.
        answers: what it is told.
        tokenizer: the target's.
    """

    def __init__(
        self, body: GenerationBody, shape: Shape, answers: Answers, tokenizer: Tokenizer
    ) -> None:
        self._body, self._shape = body, shape
        self._answers, self._tokenizer = answers, tokenizer
        self._drafts = Drafts()
        options = body.stream_options
        self._usage = options is not None and options.include_usage

    async def document(self) -> dict[str, Any]:
        """The response in one."""
        count = len(self._answers.jobs)
        texts: list[list[str]] = [[] for _ in range(count)]
        scores: list[list[Score]] = [[] for _ in range(count)]
        reasons = [""] * count
        async for number, step in self._answers.steps():
            self._drafts.add(step)
            text, new = self._shape.told(number, step)
            texts[number].append(text)
            scores[number] += new
            reasons[number] = step.finish_reason or ""
        choices = [
            self._shape.whole(number, "".join(texts[number]), scores[number], reasons[number])
            for number in range(count)
        ]
        return self._shape.document(choices, usage=self._used(), **self._metrics())

    async def events(self) -> AsyncIterator[bytes]:
        """The response in parts, once the first is there: what goes wrong before is raised.

        What goes wrong later is the last of them.
        """
        chunks = self._chunks()
        return self._sent(await anext(chunks), chunks)

    async def _sent(
        self, first: dict[str, Any], others: AsyncIterator[dict[str, Any]]
    ) -> AsyncIterator[bytes]:
        yield _event(first)
        try:
            async for chunk in others:
                yield _event(chunk)
        except Exception as error:
            refusal = refusal_of(error)
            logger.warning("a stream ended early: %s", refusal.detail)
            yield _event(refusal.document())
        yield DONE

    async def _chunks(self) -> AsyncIterator[dict[str, Any]]:
        opened: set[int] = set()
        left = len(self._answers.jobs)
        async for number, step in self._answers.steps():
            self._drafts.add(step)
            if number not in opened:
                opened.add(number)
                if (opening := self._shape.opening(number)) is not None:
                    yield self._chunk(opening)
            if (part := self._part(number, step)) is not None:
                yield part
            if step.finish_reason is not None:
                left -= 1
                closing = self._shape.closing(number, step.finish_reason)
                yield self._chunk(closing, **({} if self._usage or left else self._stats()))
        if self._usage:
            used = {"usage": self._used(), **self._metrics()}
            yield self._shape.chunk([], **used, **self._stats())

    def _part(self, number: int, step: Step) -> dict[str, Any] | None:
        """What there is to tell of a step."""
        text, scores = self._shape.told(number, step)
        if not (text or scores or self._body.include_rounds):
            return None
        part = self._shape.part(number, text, scores)
        if not self._body.include_rounds:
            return self._chunk(part)
        return self._chunk(part, draftproof=round_of(step, self._tokenizer))

    def _chunk(self, choice: dict[str, Any], **more: Any) -> dict[str, Any]:
        if self._usage:
            more["usage"] = None
        return self._shape.chunk([choice], **more)

    def _used(self) -> dict[str, Any]:
        return usage(self._answers.jobs, self._answers.stats, self._body.n)

    def _metrics(self) -> dict[str, Any]:
        """As in vLLM it is of one answer or of none."""
        (job, *others) = self._answers.jobs
        found = self._drafts.to_json(job.speculation.draft_length)
        return {"metrics": {"speculative_decoding": found}} if found and not others else {}

    def _stats(self) -> dict[str, Any]:
        if not self._body.include_rounds:
            return {}
        return {"draftproof": {"stats": self._answers.stats[0].to_json()}}


class EventStream(StreamingResponse):
    """Sends events until they end, the client goes, or it reads nothing for too long.

    Args:
        events: what to send.
        timeout: seconds for a client to take one.
        close: called at the end.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], timeout: float, close: Callable[[], None]
    ) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._timeout, self._close = timeout, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()

    async def stream_response(self, send: Send) -> None:
        """See ``StreamingResponse``."""

        async def timely(message: Message) -> None:
            async with asyncio.timeout(self._timeout):
                await send(message)

        try:
            await super().stream_response(timely)
        except TimeoutError:
            logger.warning("a client read nothing for %g s and was given up", self._timeout)


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + encoded(chunk) + b"\n\n"


async def while_connected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Do something for a client as long as it is there.

    Raises:
        Refusal: it has gone.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Refusal(499, "the client has gone")
    finally:
        task.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
