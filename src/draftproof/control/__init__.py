"""The controller: who drafts for each sequence, and how many tokens, round by round.

A round is opened, is told what is offered, is decided, and is learned from. What it decides rests
on rounds before it, on committed tokens, and on distributions of draft models before anything is
drawn from them: so it changes the speed and never the text.

Not here: models, drafters (``drafters/chain.py`` asks them) and caches. It knows them by numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from draftproof.control.choice import Budget, Rate
from draftproof.control.decision import Decision
from draftproof.control.estimates import Estimates
from draftproof.control.rest import REST, Rest
from draftproof.control.turn import LONGEST, Ask, Kind, Outcome, Turn
from draftproof.types import Forecast


class Controller:
    """Decides for one engine.

    Args:
        kinds: what its drafters are, by place.
        clock: what tells the seconds.
    """

    def __init__(
        self, kinds: Sequence[Kind], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.kinds = tuple(kinds)
        self.clock = clock
        self.estimates = Estimates(kinds)
        self.budget = Budget()
        self._rates: dict[int, Rate] = {}
        self._open: Decision | None = None
        self._drawn = any(kind is not Kind.FREE for kind in kinds)
        self._rest, self._resting = Rest(), False
        self._quiet: tuple[tuple[int, ...], int] | None = None  # for whom nothing was drafted
        self._due = 0  # rounds until that is decided on again

    def open(self, asks: Sequence[Ask], sequences: int, others: int = 0) -> Decision:
        """Begin a round.

        Args:
            asks: the sequences that may be drafted for.
            sequences: all that are in the target's pass.
            others: drafts in it that are not for the controller to decide.
        """
        self._settle_rest()
        self._resting = False  # still set where the round before failed
        turns = [Turn(ask, self.estimates.stream(ask)) for ask in asks]
        self._open = Decision(
            self.kinds,
            self.estimates,
            self.budget,
            self.rate(sequences),
            self.clock,
            turns,
            sequences,
            others,
        )
        return self._open

    def rests(
        self, owners: tuple[int, ...], sequences: int, asks: Callable[[], Sequence[Ask]]
    ) -> bool:
        """Whether a round in which nothing is offered needs no decision; it is plain then.

        Args:
            owners: the requests that may be drafted for.
            sequences: all that are in the target's pass.
            asks: what they ask for, made only if it is looked at.
        """
        if self._drawn:
            if not self._due or (owners, sequences) != self._quiet:
                return False
            self._due -= 1
        rest = self._rest
        if not rest.rounds or (owners, sequences) != (rest.owners, rest.sequences):
            self._settle_rest()
            rest.begin(asks(), sequences, self.estimates)
        self._resting = True
        return True

    def rested(self, prefill: bool) -> bool:
        """Whether the round went by without a decision; then there is nothing else to learn."""
        rested, self._resting = self._resting, False
        self._rest.rounds += rested and not prefill
        return rested

    @property
    def forecast(self) -> Forecast | None:
        """What a round without a decision is expected to bring each sequence."""
        return self._rest.forecast

    def _settle_rest(self) -> None:
        if self._rest.rounds:
            self._rest.settle(self.estimates, self.budget, self.rate(self._rest.sequences))

    def rate(self, sequences: int) -> Rate:
        """The rate of the long run with so many sequences at once."""
        return self._rates.setdefault(sequences, Rate())

    def learn(
        self, outcomes: Sequence[Outcome], verify: float, other: float, prefill: bool
    ) -> None:
        """What became of the round that was opened last.

        Args:
            outcomes: of each sequence that was judged.
            verify: seconds of the target's pass.
            other: seconds of judging.
            prefill: whether it read any prompt; then its seconds say nothing about others.
        """
        done, self._open = self._open, None
        if done is None:
            return
        if self._drawn:
            plain = not (done.drawn or prefill) and done.rows == done.sequences
            self._due = max(0, min(REST, int(self.budget.waits))) if plain else 0
            self._quiet = (tuple(turn.ask.owner for turn in done.turns), done.sequences)
        turns = {turn.ask.seq: turn for turn in done.turns}
        settled = [(turns[o.seq], o) for o in outcomes if o.seq in turns]
        for turn, outcome in settled:
            turn.settle(self.kinds, outcome)
        if not prefill and done.turns:  # of others the context is not known
            self.estimates.observe(
                done.rows, done.sequences, verify, other, done.sampled, done.context
            )
            self._account(done, settled)

    def _account(self, done: Decision, settled: Sequence[tuple[Turn, Outcome]]) -> None:
        """Take note of the time that passed and of what drafts have gained."""
        drafted = done.rows - done.sequences
        row = self.estimates.verify(done.sequences, drafted, done.sampled, done.context)
        plain, seconds = row[done.others], row[drafted] + done.drafting
        self.budget.earn(seconds / plain)
        if done.drawn:
            more = sum(len(outcome.tokens) - 1 for _, outcome in settled)
            self.budget.settle(1 + more / done.sequences - seconds / plain, done.probe)
        if not done.probe:
            expected = done.sequences + sum(turn.expected - 1 for turn in done.turns)
            self.rate(done.sequences).add(expected, seconds)
        for turn, outcome in settled:
            turn.stream.hindsight.tokens += len(outcome.tokens)
            turn.stream.hindsight.seconds += seconds / done.sequences

    def regret(self, seq: int, owner: int, sequences: int, context: int) -> float | None:
        """See ``Hindsight.regret``, for a request.

        Args:
            seq: its slot.
            owner: the request.
            sequences: how many have been in a pass.
            context: tokens of it, on average.
        """
        self._settle_rest()
        stream = self.estimates.streams.get(seq)
        if stream is None or stream.owner != owner or not self.estimates.known(sequences):
            return None
        rows = [self._by_length(place, sequences, context) for place in range(len(self.kinds))]
        return stream.hindsight.regret(rows)

    def _by_length(self, place: int, sequences: int, context: int) -> list[float]:
        """Seconds of a round by the drafts of each sequence, shared by all of them."""
        row = self.estimates.verify(sequences, LONGEST * sequences, False, context)
        free = self.kinds[place] is Kind.FREE
        each = 0.0 if free else self.estimates.draft_pass(place, sequences, sequences, context)
        return [(row[k * sequences] + k * each) / sequences for k in range(LONGEST + 1)]
