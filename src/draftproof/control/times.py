"""What drafting takes, before it is done: passes of draft models, and reading what they missed.

Not here: the seconds of a pass (``latency.py``) and what is chosen (``decision.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.control.choice import choose
from draftproof.control.estimates import Estimates
from draftproof.control.turn import LONGEST, Kind, Turn

AHEAD = 64  # tokens of an answer that reading the text before it has to pay for


class Times:
    """Of the drafters in one round, at scale 1.

    Args:
        kinds: what they are, by place.
        estimates: what is known.
        context: tokens of each sequence, on average.
    """

    def __init__(self, kinds: Sequence[Kind], estimates: Estimates, context: float) -> None:
        self._kinds, self._estimates, self._context = kinds, estimates, context

    def passes(self, turns: Sequence[Turn], places: Sequence[int | None]) -> list[float]:
        """Seconds of drafting by the number of passes."""
        drawn = self.drawn(turns, places)
        if not drawn:
            return [0.0]
        each = sum(self.one(place, len(mine), len(mine)) for place, mine in drawn)
        left = max(min(AHEAD, turn.ask.left) for turn in turns)
        first = self.behind(turns, places) / left
        deepest = max(turn.ask.room for turn in turns)
        return [0.0, *(first + each * passes for passes in range(1, deepest + 1))]

    def behind(self, turns: Sequence[Turn], places: Sequence[int | None]) -> float:
        """Seconds that the drafters take to catch up with the text, beyond one pass."""
        seconds = 0.0
        for place, mine in self.drawn(turns, places):
            first = self.one(place, self.unread(place, mine), len(mine))
            seconds += first - self.one(place, len(mine), len(mine))
        return seconds

    def one(self, place: int, unread: int, sequences: int) -> float:
        """Seconds of a drafter's pass over so many tokens of so many sequences."""
        return self._estimates.draft_pass(place, unread, sequences, self._context)

    def drawn(
        self, turns: Sequence[Turn], places: Sequence[int | None]
    ) -> list[tuple[int, list[Turn]]]:
        """The drafters that take time, and whom they draft for."""
        groups: dict[int, list[Turn]] = {}
        for turn, place in zip(turns, places, strict=True):
            if place is not None and self._kinds[place] is not Kind.FREE:
                groups.setdefault(place, []).append(turn)
        return list(groups.items())

    def unread(self, place: int, turns: Sequence[Turn]) -> int:
        """Tokens that the first pass of a drafter has to read."""
        if self._kinds[place] is not Kind.GUIDED:
            return len(turns)
        return sum(max(1, turn.ask.written - turn.stream.read.get(place, 0)) for turn in turns)

    def promises(self, turn: Turn, place: int, sequences: int, sampled: bool) -> bool:
        """Whether a drafter's drafts would be worth the time that it takes to read the prompt.

        Args:
            turn: of a sequence whose prompt is being read.
            place: the drafter.
            sequences: of the target's pass.
            sampled: whether the target draws.
        """
        if not self._estimates.known(1):
            return True
        room = min(LONGEST, turn.ask.left - 1)
        written = turn.ask.written
        verify = self._estimates.verify(sequences, room, sampled, written)
        each = self._estimates.draft_pass(place, sequences, sequences, written) / sequences
        passes, rate = [each * more for more in range(room + 1)], sequences / verify[0]
        choice = choose([turn.unread(place, room)], verify, passes, rate)
        assert choice is not None
        gained = choice.value / rate + verify[0]  # seconds a round
        reading = self._estimates.draft_pass(place, self.unread(place, [turn]), 1, written / 2)
        return gained * min(AHEAD, turn.ask.left) > reading
