"""What the server has done: counted for Prometheus and the page, told in the log.

Counts come from ``Step`` records, so stop strings and end tokens are behind them. A round gives
several tokens at once: each is counted with its share of the time since the round before.

Not here: the names Prometheus knows them by (``exposition.py``).
"""

from __future__ import annotations

import logging
import time
from threading import Lock
from typing import Any

from draftproof.server.counts import Counts, Histogram, Progress, Speed
from draftproof.types import Step

logger = logging.getLogger("draftproof.server")

LONG = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
SHORT = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class Metrics:
    """Counts for one engine; safe to read while its thread counts.

    Args:
        slots: sequences the engine holds at once.
        capacity: tokens it can hold in all.
        interval: seconds between two lines in the log.

    Attributes:
        lock: held while counting, and by who reads counts that belong together.
    """

    def __init__(self, slots: int, capacity: int, interval: float) -> None:
        self._slots, self._capacity = slots, capacity
        self.lock = Lock()
        self._started = time.perf_counter()
        self.counts = Counts()
        self.speeds = {True: Speed(), False: Speed()}
        self.first_token = Histogram(LONG)
        self.per_token = Histogram(SHORT)
        self.whole = Histogram(LONG)
        self.queue = Histogram(LONG)
        self._round = -1
        self.running = self.waiting = self.held = 0
        self._log = Log(interval)

    def count(self, step: Step, progress: Progress, now: float) -> None:
        """Count what a round did to one answer."""
        with self.lock:
            if not progress.seen:
                progress.seen = True
                seconds = step.seconds.draft + step.seconds.verify + step.seconds.other
                self.queue.observe(max(0.0, now - seconds - progress.arrival))
            progress.prefilled += step.prefilled
            self._count_round(step)
            if step.tokens:
                if not progress.first:
                    self._count_prompt(progress)
                self.counts.add(step)
                self._count_time(step, progress, now)

    def _count_prompt(self, progress: Progress) -> None:
        """A prompt that has been read: both counts at once, so that their ratio is right."""
        self.counts.prompt_tokens += progress.prompt_tokens
        self.counts.cached_tokens += progress.prompt_tokens - progress.prefilled

    def _count_round(self, step: Step) -> None:
        """The seconds of a round are those of all its steps."""
        if step.round != self._round:
            self._round = step.round
            self.counts.draft_seconds += step.seconds.draft
            self.counts.verify_seconds += step.seconds.verify
            self.counts.other_seconds += step.seconds.other

    def _count_time(self, step: Step, progress: Progress, now: float) -> None:
        new = len(step.tokens)
        if progress.first:
            gap = now - progress.last
            self.per_token.observe(gap / new, new)
            speed = self.speeds[progress.speculated]
            speed.tokens += new
            speed.seconds += gap
        else:
            progress.first = now
            self.first_token.observe(now - progress.arrival)
        progress.last, progress.tokens = now, progress.tokens + new

    def ended(self, reason: str, seconds: float | None = None) -> None:
        """Count an answer that has ended; the seconds are those of one that is complete."""
        with self.lock:
            self.counts.ends[reason] += 1
            if seconds is not None:
                self.whole.observe(seconds)

    def state(self, open_: int, held: int) -> None:
        """Take note of how many answers are open, and of the tokens in the cache."""
        with self.lock:
            self.running = min(open_, self._slots)
            self.waiting, self.held = open_ - self.running, held
            self._log.tell(self.counts, self.running, self.waiting)

    @property
    def usage(self) -> float:
        """The part of the cache that is filled, with what is kept for later prompts."""
        return self.held / self._capacity

    def to_json(self, model: str, drafter: str | None) -> dict[str, Any]:
        """What ``GET /stats`` tells."""
        with self.lock:
            counts, positions = self.counts, range(max(self.counts.draft_lengths, default=0))
            return {
                "model": model,
                "drafter": drafter,
                "rounds": counts.rounds,
                "completion_tokens": counts.completion_tokens,
                "drafted": counts.drafted,
                "accepted": counts.accepted,
                "evaluated_at_position": [counts.evaluated_at[i] for i in positions],
                "accepted_at_position": [counts.accepted_at[i] for i in positions],
                "draft_lengths": {str(k): n for k, n in sorted(counts.draft_lengths.items())},
                "running": self.running,
                "waiting": self.waiting,
                "tokens_per_second": {
                    "speculative": self.speeds[True].rate,
                    "plain": self.speeds[False].rate,
                },
                "cache_tokens": self.held,
                "uptime": time.perf_counter() - self._started,
            }


class Log:
    """A line of counts now and then, where there is something to tell.

    Args:
        interval: seconds between two lines.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._next = time.perf_counter() + interval
        self._before = (0, 0, 0, 0, 0)

    def tell(self, counts: Counts, running: int, waiting: int) -> None:
        """Write one, if it is time."""
        now = time.perf_counter()
        if now < self._next:
            return
        present = (
            *(counts.completion_tokens, counts.rounds, counts.drafted),
            *(counts.evaluated, counts.accepted),
        )
        seconds = now - self._next + self._interval
        tokens, rounds, drafted, evaluated, accepted = (
            new - old for new, old in zip(present, self._before, strict=True)
        )
        self._next, self._before = now + self._interval, present
        if rounds:
            logger.info(
                "%d running, %d waiting; %.1f tokens/s; drafts: %d accepted, %d rejected, "
                "%d discarded; acceptance length %.2f",
                *(running, waiting, tokens / seconds, accepted, evaluated - accepted),
                *(drafted - evaluated, tokens / rounds),
            )
