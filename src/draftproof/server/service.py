"""One engine in one thread, for many coroutines.

Coroutines put what they want into an inbox, which the thread empties between two rounds. What a
round brought travels back in one call of the event loop. So a round never waits for a client: one
that reads slowly finds its steps in a queue, which its own answer bounds, and it keeps its place
among the answers that may be open until it has read them.

Not here: HTTP (``app.py``) and what is asked (``prepare.py``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NamedTuple, TypeAlias

from draftproof.engine import Engine
from draftproof.errors import DraftproofError
from draftproof.server.answers import Answers
from draftproof.server.counts import Progress
from draftproof.server.metrics import Metrics
from draftproof.server.prepare import Job
from draftproof.server.refusals import Refusal
from draftproof.types import Step

logger = logging.getLogger("draftproof.server")


def draining() -> Refusal:
    """The refusal of a server that ends."""
    return Refusal(503, "the server is shutting down: ask again later", "shutting_down")


Event: TypeAlias = tuple[Answers, tuple[int, Step] | Exception]
"""What travels to the event loop, and to whom."""


class _Asked(NamedTuple):
    """Who waits for a request of the engine's."""

    answers: Answers
    number: int
    progress: Progress


class Service:
    """Runs an engine.

    Args:
        engine: no one else may use it from ``start`` to ``stop``.
        metrics: counts what is done.
        max_waiting: answers that may be open beyond those the engine holds at once.
    """

    def __init__(self, engine: Engine, metrics: Metrics, max_waiting: int) -> None:
        self._engine, self._metrics = engine, metrics
        self._slots = engine.target.capabilities.max_sequences
        self._room = self._slots + max_waiting
        self._taken = 0
        self._open: set[Answers] = set()
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._asked: dict[int, _Asked] = {}  # by request, in the order they came
        self._stopping = self._ended = False
        self._thread = Thread(target=self._work, name="draftproof-engine")
        self.draining = False

    @property
    def healthy(self) -> bool:
        """Whether answers can be asked for."""
        return not (self.draining or self._ended)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def halt(self) -> None:
        """Tell everyone that it ends now, from the event loop."""
        self._stopping = True
        for answers in self._open:
            answers.put(draining())

    def stop(self) -> None:
        """End after the round that runs. May be called twice."""
        self._stopping = True
        self._inbox.put(lambda: None)
        if self._thread.ident is not None:
            self._thread.join()

    def drain(self) -> None:
        """Finish what runs, refuse what waits and what comes."""
        self.draining = True
        self._inbox.put(self._refuse_waiting)

    @property
    def idle(self) -> bool:
        """Whether no answer is open."""
        return not self._taken

    @contextmanager
    def place(self) -> Iterator[Place]:
        """Room for answers; what is still open at the end of the ``with`` is cancelled.

        Raises:
            Refusal: the server ends.
        """
        if not self.healthy:
            raise draining()
        place = Place(self)
        try:
            yield place
        finally:
            place.close()

    def take(self, count: int, held: int) -> None:
        """Take room for so many answers, beside those held for the same request.

        Raises:
            Refusal: there is not enough.
        """
        if count + held > self._room:
            raise Refusal(400, f"this server holds {self._room} answers at most: ask for fewer")
        if self._taken + count > self._room:
            raise Refusal(
                429,
                "too many answers are asked for at once: wait, and ask again",
                code="queue_full",
                headers={"Retry-After": "1"},
            )
        self._taken += count

    def free(self, count: int) -> None:
        """Give it back."""
        self._taken -= count

    def ask(self, jobs: Sequence[Job]) -> Answers:
        """Ask the engine, from a coroutine."""
        answers = Answers(jobs, asyncio.get_running_loop())
        self._open.add(answers)
        self._inbox.put(partial(self._submit, answers))
        if self._ended:  # after its last look into the inbox, maybe
            answers.put(draining())
        return answers

    def cancel(self, answers: Answers) -> None:
        """End what is not complete of some answers, within a round."""
        self._open.discard(answers)
        self._inbox.put(partial(self._drop, answers, "cancelled"))

    # The engine's thread.

    def _work(self) -> None:
        try:
            while not self._stopping:
                self._obey()
                self._tell()
                if self._asked and not self._stopping:
                    self._round()
        except Exception:
            logger.exception("the engine is beyond help: restart the server")
        self._ended = True
        self._send([(answers, draining()) for answers in _whose(self._asked.values())])
        with suppress(Empty):
            while True:
                self._inbox.get_nowait()()

    def _obey(self) -> None:
        """Do what the inbox holds; wait for something where there is nothing else to do."""
        with suppress(Empty):
            if not self._asked:
                self._inbox.get(timeout=1)()  # and the log has its say
            while True:
                self._inbox.get_nowait()()

    def _submit(self, answers: Answers) -> None:
        if not self.healthy:
            self._send([(answers, draining())])
            return
        try:
            for number, job in enumerate(answers.jobs):
                request = self._engine.submit(*job)
                self._asked[request] = _Asked(answers, number, self._progress(answers, job))
        except Exception as error:
            self._fail([answers], error)

    def _progress(self, answers: Answers, job: Job) -> Progress:
        speculated = self._engine.drafter is not None and job.speculation.draft_length != 0
        return Progress(answers.arrival, len(job.prompt), speculated)

    def _drop(self, answers: Answers, reason: str) -> None:
        """Forget what is not complete of some answers, and let the engine forget it."""
        if self._ended:
            return
        for request in [r for r, asked in self._asked.items() if asked.answers is answers]:
            self._engine.cancel(request)
            self._engine.completion(request)
            del self._asked[request]
            self._metrics.ended(reason)

    def _refuse_waiting(self) -> None:
        running = self._running()
        everyone = _whose(self._asked.values())
        self._fail([answers for answers in everyone if answers not in running], draining())

    def _running(self) -> list[Answers]:
        """Those whose requests are in the engine's places: requests run in the order they came."""
        return _whose(islice(self._asked.values(), self._slots))

    def _round(self) -> None:
        try:
            steps = self._engine.step()
        except Exception as error:
            self._fail(self._running(), error)
            return
        now = time.perf_counter()
        events: list[Event] = []
        for step in steps:
            answers, number, progress = self._asked[step.request]
            self._metrics.count(step, progress, now)
            if step.finish_reason is not None:
                self._complete(step, now)
            events.append((answers, (number, step)))
        self._tell()
        self._send(events)

    def _complete(self, step: Step, now: float) -> None:
        answers, number, progress = self._asked.pop(step.request)
        with suppress(DraftproofError):  # the step holds the error, if there is one
            answers.stats[number] = self._engine.completion(step.request).stats
        seconds = None if step.error else now - progress.arrival
        self._metrics.ended(str(step.finish_reason), seconds)

    def _fail(self, every: Sequence[Answers], error: Exception) -> None:
        """End some answers with an error."""
        if not isinstance(error, (DraftproofError, Refusal)):
            logger.error("the engine failed", exc_info=error)
        for answers in every:
            self._drop(answers, "error")
        self._send([(answers, error) for answers in every])

    def _tell(self) -> None:
        """Let the metrics know how things stand."""
        held = sum(map(self._engine.target.length, range(self._slots)))
        self._metrics.state(len(self._asked), held)

    def _send(self, events: Sequence[Event]) -> None:
        """All that a round brought, in one call of the event loop."""
        if events:
            with suppress(RuntimeError):  # the loop has ended, and nobody waits
                events[0][0].loop.call_soon_threadsafe(_deliver, events)


def _whose(asked: Iterable[_Asked]) -> list[Answers]:
    """Each once, in the order they came."""
    return list(dict.fromkeys(each.answers for each in asked))


def _deliver(events: Sequence[Event]) -> None:
    for answers, event in events:
        answers.put(event)


class Place:
    """Room for the answers to one HTTP request, from before they are asked for to their end."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._taken = 0
        self._answers: Answers | None = None

    def take(self, count: int) -> None:
        """See ``Service.take``."""
        self._service.take(count, self._taken)
        self._taken += count

    def ask(self, jobs: Sequence[Job]) -> Answers:
        """Ask; room must have been taken for all of them."""
        assert len(jobs) <= self._taken
        self._answers = self._service.ask(jobs)
        return self._answers

    def close(self) -> None:
        """Cancel what is open, and give the room back."""
        if self._answers is not None:
            self._service.cancel(self._answers)
        self._service.free(self._taken)
        self._taken = 0
