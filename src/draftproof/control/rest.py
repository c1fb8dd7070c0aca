"""Rounds that go by without a decision: there is nothing to decide, and deciding costs time.

Nothing was offered, and where there are draft models, it was decided a few rounds ago to leave them
alone. Such rounds are plain ones; they are counted together, when the next decision is due.

Not here: when that is (``Controller.rests``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftproof.control.choice import Budget, Rate
from draftproof.control.estimates import Estimates
from draftproof.control.turn import Ask, Stream, mean_written
from draftproof.types import Forecast

REST = 7  # rounds between two decisions on draft models that draft nothing at present


@dataclass(slots=True)
class Rest:
    """Rounds of the same sequences, so far.

    Attributes:
        owners: the requests.
        sequences: of the target's pass, all of them together.
        streams: what is known of the requests.
        sampled: whether any of them draws.
        context: tokens of each sequence when it began, on average.
        rounds: how many.
        forecast: what each of them is expected to bring; None where nothing is known.
    """

    owners: tuple[int, ...] = ()
    sequences: int = 0
    streams: list[Stream] = field(default_factory=list)
    sampled: bool = False
    context: float = 0.0
    rounds: int = 0
    forecast: Forecast | None = None

    def begin(self, asks: Sequence[Ask], sequences: int, estimates: Estimates) -> None:
        """Begin anew."""
        self.owners = tuple(ask.owner for ask in asks)
        self.sequences = sequences
        self.streams = [estimates.stream(ask) for ask in asks]
        self.sampled = any(ask.sampled for ask in asks)
        self.context = mean_written(asks)
        self._plain(estimates)

    def _plain(self, estimates: Estimates) -> float:
        """Seconds of a plain round, at scale 1; they are foretold of the rounds from here on."""
        plain = estimates.verify(self.sequences, 0, self.sampled, self.context)[0]
        known = estimates.known(self.sequences)
        self.forecast = Forecast(1.0, plain * estimates.scale.value, False) if known else None
        return plain

    def settle(self, estimates: Estimates, budget: Budget, rate: Rate) -> None:
        """Count the rounds as what they were."""
        plain = self._plain(estimates)
        budget.earn(self.rounds)
        rate.add(self.sequences, plain, self.rounds)
        for stream in self.streams:
            stream.hindsight.tokens += self.rounds
            stream.hindsight.seconds += self.rounds * plain / self.sequences
        self.context += self.rounds
        self.rounds = 0
