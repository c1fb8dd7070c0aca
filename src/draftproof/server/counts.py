"""What is counted, as plain numbers. Not here: who counts (``metrics.py``)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate

from draftproof.types import Origin, Step


@dataclass(slots=True)
class Progress:
    """How far an answer has come.

    Attributes:
        arrival: when it was asked for.
        prompt_tokens: tokens of its prompt.
        prefilled: how many of them the target read.
        speculated: whether a drafter may draft for it.
        first: when its first tokens came, 0 before.
        last: when its newest came.
        tokens: how many.
        seen: whether it has run.
    """

    arrival: float
    prompt_tokens: int
    speculated: bool
    prefilled: int = 0
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    seen: bool = False


class Histogram:
    """Observations by size.

    Args:
        bounds: upper bounds of the buckets but the last.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds, self.sum = bounds, 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """Bounds and what lies at or below them, as Prometheus has it."""
        bounds = [*map(str, self._bounds), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))


@dataclass(slots=True)
class Speed:
    """Tokens after the first ones, and the seconds they took: of single answers, added up."""

    tokens: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float | None:
        """Tokens per second of one answer; None where there were none."""
        return self.tokens / self.seconds if self.seconds else None


@dataclass(slots=True)
class Counts:
    """Everything that only grows."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    rounds: int = 0
    drafts: int = 0
    drafted: int = 0
    evaluated: int = 0
    accepted: int = 0
    predicted: int = 0
    prediction_rejected: int = 0
    forced: int = 0
    evaluated_at: Counter[int] = field(default_factory=Counter)
    accepted_at: Counter[int] = field(default_factory=Counter)
    draft_lengths: Counter[int] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    other_seconds: float = 0.0

    def add(self, step: Step) -> None:
        """Count a step that emitted something."""
        drafted = len(step.drafted)
        self.rounds += 1
        self.completion_tokens += len(step.tokens)
        self.drafts += drafted > 0
        self.drafted += drafted
        self.evaluated += step.evaluated
        self.accepted += step.accepted
        self.evaluated_at.update(range(step.evaluated))
        self.accepted_at.update(range(step.accepted))
        self.draft_lengths[drafted] += 1
        predicted = step.origins.count(Origin.PREDICTED)
        self.predicted += predicted
        self.prediction_rejected += step.predicted - predicted
        self.forced += step.origins.count(Origin.FORCED)
