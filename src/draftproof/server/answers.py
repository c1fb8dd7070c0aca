"""What the engine answers, on its way from its thread to a coroutine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from draftproof.server.prepare import Job
from draftproof.stats import Stats
from draftproof.types import Step


class Answers:
    """The answers to some jobs on their way to one coroutine.

    Args:
        jobs: what is asked.
        loop: the coroutine's.

    Attributes:
        stats: of the answers that are complete.
    """

    def __init__(self, jobs: Sequence[Job], loop: asyncio.AbstractEventLoop) -> None:
        self.jobs, self.loop = jobs, loop
        self.arrival = time.perf_counter()
        self.stats: list[Stats] = [Stats() for _ in jobs]
        self._events: asyncio.Queue[tuple[int, Step] | Exception] = asyncio.Queue()

    def put(self, event: tuple[int, Step] | Exception) -> None:
        """Hand on a step of the answer with this number, or what ended all of them."""
        self._events.put_nowait(event)

    async def steps(self) -> AsyncIterator[tuple[int, Step]]:
        """The steps of all answers with the answers' numbers, until all are complete.

        Raises:
            Exception: what ended one of them.
        """
        left = len(self.jobs)
        while left:
            event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            number, step = event
            if step.error is not None:
                raise step.error
            left -= step.finish_reason is not None
            yield number, step
