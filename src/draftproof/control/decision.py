"""The decision of one round: who drafts for each sequence, and how many tokens.

It is told what is offered, decides, is asked again by draft models before each token they draw, and
takes note of what they did. It rests on rounds before, on committed tokens, and on distributions
before anything is drawn from them: so it changes the speed and never the text.

Not here: learning from what became of it (``control.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftproof.control.acceptance import top_class
from draftproof.control.choice import Budget, Choice, Rate, Way, choose
from draftproof.control.estimates import Estimates
from draftproof.control.times import Times
from draftproof.control.turn import Kind, Turn, mean_written
from draftproof.types import Forecast

QUIET = 32  # rounds without a word after which a drafter is worth trying, at a fixed length

Kinds = tuple[Kind, ...]
FREE: Kinds = (Kind.FREE,)
DRAWN: Kinds = (Kind.GUIDED, Kind.SHARING, Kind.WHOLE)

Plan = tuple[list[int | None], Choice]
"""The drafter of each sequence, and the lengths."""


class Decision:
    """Of one round.

    Args:
        kinds: what the drafters are, by place.
        estimates: what is known.
        budget: what may be lost.
        rate: of the long run.
        clock: what tells the seconds.
        turns: of the sequences that may be drafted for.
        sequences: of the target's pass.
        others: drafts in it that are not decided here.

    Attributes:
        kinds: what the drafters are, by place.
        turns: of the sequences that may be drafted for.
        sequences: of the target's pass.
        others: drafts in it that are not decided here.
        context: tokens of each sequence, on average.
        sampled: whether any of them draws.
        probe: whether it is there to find out.
        drafting: seconds spent on drafts, at scale 1.
        drawn: whether a drafter was asked whose drafts cost something.
    """

    def __init__(
        self,
        kinds: Sequence[Kind],
        estimates: Estimates,
        budget: Budget,
        rate: Rate,
        clock: Callable[[], float],
        turns: Sequence[Turn],
        sequences: int,
        others: int,
    ) -> None:
        self.turns = turns
        self.sequences = sequences
        self.others = others
        self.context = mean_written([turn.ask for turn in turns])
        self.sampled = any(turn.ask.sampled for turn in turns)
        self.probe = False
        self.drafting = 0.0
        self.drawn = False
        self.kinds, self._estimates, self._budget = kinds, estimates, budget
        self._times = Times(kinds, estimates, self.context)
        self._long_run, self._clock = rate, clock
        both = Kind.FREE in kinds and len(set(kinds)) > 1
        self._mixtures: list[Kinds] = [tuple(Kind), FREE] if both else [tuple(Kind)]
        self._by_seq = {turn.ask.seq: turn for turn in turns}
        self._row: list[float] = []  # seconds of the target's pass, by drafts of any kind
        self._begun, self._reading = 0.0, 0

    @property
    def rows(self) -> int:
        """Tokens of the target's pass, as far as that is decided."""
        return self.sequences + self.others + sum(turn.length for turn in self.turns)

    def decide(self) -> None:
        """Choose the speakers and, as far as they have to know them before, the lengths."""
        kinds = self.kinds
        for turn in self.turns:
            turn.prepare(kinds)
        for turn in self.turns:
            if turn.ask.fixed and turn.ways:
                self._rank(turn)
        free = [turn for turn in self.turns if turn.ways and not turn.ask.fixed]
        if free and self._estimates.known(self.sequences):
            self._choose(free)

    def _rank(self, turn: Turn) -> None:
        """The drafter that brings most tokens per second at its full length speaks."""
        places = list(turn.ways)
        worth = {place: self._worth(turn, place) for place in places} if places[1:] else {}
        best = max(places, key=lambda place: worth.get(place, 0.0))
        for place in worth:
            if turn.stream.chances[place].silent >= QUIET and self._budget.affords(
                worth[best] / worth[place] - 1
            ):
                best, self.probe = place, True
        turn.speaks(best, len(turn.ways[best].survival))

    def _worth(self, turn: Turn, place: int) -> float:
        way = turn.ways[place]
        length = len(way.survival)
        verify = self._estimates.verify(self.sequences, length, self.sampled, self.context)
        seconds = verify[length] + self._times.passes([turn], [place])[length * way.each]
        return (1 + sum(way.survival)) / seconds

    def _choose(self, turns: list[Turn]) -> None:
        """The most valuable drafts of all sequences together, or none."""
        self._price()
        plain = Choice(-self._rate * self._verify[0], [0] * len(turns), self._verify[0])
        plans: list[Plan | None] = [([None] * len(turns), plain)]
        plans += [self._plan(turns, kinds) for kinds in self._mixtures]
        places, choice = max((plan for plan in plans if plan), key=lambda plan: plan[1].value)
        # A free drafter's promises are tested in every round, kept or not: they need no guard.
        risk = self._times.behind(turns, places) / self._verify[0]
        unsure = bool(self._times.drawn(turns, places)) and self._budget.margin < risk
        if unsure or not any(choice.lengths):
            places, choice = self._probing(turns, plain)
        for turn, place, length in zip(turns, places, choice.lengths, strict=True):
            turn.speaks(place, length)

    def _price(self) -> None:
        """What drafted tokens cost behind those that are decided, and what time is worth."""
        if not self._row:
            most = self.others + sum(turn.ask.room for turn in self.turns)
            self._row = self._estimates.verify(self.sequences, most, self.sampled, self.context)
        self._verify = self._row[self.rows - self.sequences :]
        self._rate = self._long_run.value(self.sequences / self._row[self.others])

    def _plan(self, turns: Sequence[Turn], kinds: Kinds, least: int = 0) -> Plan | None:
        """The best with drafters of these kinds alone; each sequence has the best for itself."""
        places = [self._best_place(turn, kinds) for turn in turns]
        choice = self._joint(turns, places, least)
        return choice and (places, choice)

    def _best_place(self, turn: Turn, kinds: Kinds) -> int | None:
        places = [place for place in turn.ways if self.kinds[place] in kinds]
        if len(places) < 2:
            return places[0] if places else None
        return max(places, key=lambda place: self._value(turn, place))

    def _value(self, turn: Turn, place: int) -> float:
        choice = self._joint([turn], [place])
        assert choice is not None
        return choice.value

    def _joint(
        self, turns: Sequence[Turn], places: Sequence[int | None], least: int = 0
    ) -> Choice | None:
        ways = [
            Way(()) if place is None else turn.ways[place]
            for turn, place in zip(turns, places, strict=True)
        ]
        return choose(ways, self._verify, self._times.passes(turns, places), self._rate, least)

    def _probing(self, turns: list[Turn], plain: Choice) -> Plan:
        """A draft of a model although it promises nothing, where that can be paid for."""
        plan = self._plan(turns, DRAWN, least=1)
        self.probe = plan is not None and self._budget.affords(self._loss(turns, plan, plain))
        return plan if plan and self.probe else ([None] * len(turns), plain)

    def _loss(self, turns: Sequence[Turn], plan: Plan, plain: Choice) -> float:
        """Plain rounds that a probe costs, all that a draft model has to read for it included."""
        places, choice = plan
        seconds = (plain.value - choice.value) / self._rate + self._times.behind(turns, places)
        return seconds / self._verify[0]

    def asked(self, place: int) -> list[Turn]:
        """The sequences a drafter has to hear of: it speaks, or its caches are to be kept ready."""
        return [turn for turn in self.turns if self._asks(turn, place)]

    def _asks(self, turn: Turn, place: int) -> bool:
        if turn.ask.room:
            return turn.speaker == place
        return turn.ask.fixed or (
            turn.ask.reading and self._times.promises(turn, place, self.sequences, self.sampled)
        )

    def forecast(self, turn: Turn) -> Forecast | None:
        """What the round is expected to bring a sequence, once all have drafted."""
        if turn.ask.fixed or not turn.ask.room or not self._row:
            return None
        seconds = self._row[self.rows - self.sequences] + self.drafting
        return Forecast(turn.expected, seconds * self._estimates.scale.value, self.probe)

    def begin(self, place: int, turns: Sequence[Turn]) -> None:
        """A drafter is about to be asked."""
        self._reading = self._times.unread(place, turns)
        self._begun = self._clock()
        for turn in turns:
            self.drawn |= bool(turn.ask.room)
            if not turn.ask.room:
                turn.stream.read[place] = turn.ask.written
            elif self.kinds[place] is not Kind.WHOLE:
                turn.length, turn.expected = 0, 1.0

    def further(self, place: int, seen: Sequence[tuple[int, float]]) -> list[int]:
        """How many more tokens each sequence is to draft, now that their next rows are known.

        Args:
            place: the drafter that asks, after a pass.
            seen: sequences of the pass, and the top probability of their rows.

        Returns:
            0 to stop, 1 to draw and stop, more to draw and go on.
        """
        seconds, count = self._clock() - self._begun, len(seen)
        self._estimates.observe_draft(place, self._reading, count, seconds, self.context)
        self.drafting += self._times.one(place, self._reading, count)
        turns = [self._by_seq[seq] for seq, _ in seen]
        tops = [top_class(top) for _, top in seen]
        ways = [turn.ahead(top) for turn, top in zip(turns, tops, strict=True)]
        lengths = self._lengths(place, turns, ways)
        for turn, top, way, length in zip(turns, tops, ways, lengths, strict=True):
            turn.heard = True
            if length:
                turn.draw(top, way.survival[0])
        self._reading = sum(length > 1 for length in lengths)
        self._begun = self._clock()
        return lengths

    def _lengths(self, place: int, turns: Sequence[Turn], ways: Sequence[Way]) -> list[int]:
        lengths = [len(way.survival) for way in ways]
        free = [at for at, turn in enumerate(turns) if not turn.ask.fixed]
        if not free:
            return lengths
        self._price()
        each = self._times.one(place, len(turns), len(turns))
        passes = [each * more for more in range(max(lengths))]
        begins = self.probe and not any(turn.tops for turn in turns)
        mine = [ways[at] for at in free]
        choice = choose(mine, self._verify, passes, self._rate, int(begins))
        assert choice is not None
        for at, length in zip(free, choice.lengths, strict=True):
            lengths[at] = length
        return lengths

    def ended(self, place: int, drafted: Sequence[tuple[int, int]]) -> None:
        """A drafter is done.

        Args:
            place: the drafter.
            drafted: sequences, and the tokens of their drafts.
        """
        longest = max((tokens for _, tokens in drafted), default=0)
        if self.kinds[place] is Kind.WHOLE and longest:
            seconds = (self._clock() - self._begun) / longest
            count = len(drafted)
            self._estimates.observe_draft(place, count, count, seconds, self.context)
            self.drafting += longest * self._times.one(place, count, count)
        for seq, tokens in drafted:
            turn = self._by_seq[seq]
            turn.length = tokens
            if self.kinds[place] is Kind.WHOLE and turn.ask.room:
                turn.heard = tokens > 0
                turn.expected = 1 + sum(turn.ways[place].survival[:tokens])
