"""Simulated machines and texts that the controller is tried on: no model, no clock but its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from draftproof.control import Controller
from draftproof.control.decision import Decision
from draftproof.control.latency import Table
from draftproof.control.turn import LONGEST, Ask, Kind, Outcome, Turn

# Milliseconds of a target pass over n tokens, measured on a CPU with two cores.
Q4_0 = {1: 7.6, 2: 11.9, 3: 15.6, 4: 17.1, 5: 21.6, 6: 25.8, 8: 31.6, 12: 45.6, 16: 54.9}
Q8_0 = {1: 10.3, 2: 17.6, 3: 23.5, 4: 25.2, 5: 29.4, 6: 29.2, 8: 35.6, 12: 47.8, 16: 67.3}
F16 = {1: 14.5, 2: 20.0, 3: 21.5, 4: 25.0, 5: 26.2, 6: 28.1, 8: 33.7, 12: 43.7, 16: 54.7}
F32 = {1: 20.0, 2: 27.4, 3: 30.5, 4: 34.1, 5: 36.9, 6: 38.5, 8: 47.1, 12: 58.0, 16: 71.8}
STEPS = {n: 10.0 + 6.0 * ((n - 1) // 4) for n in range(1, 200)}
FLAT = dict.fromkeys((1, 200), 10.0)
LINE = {1: 10.0, 200: 10.0 + 199 * 3.0}

Cost = Callable[[int], float]


def cost(table: dict[int, float]) -> Cost:
    """Seconds of a pass over n tokens, on straight lines between the entries."""
    places = sorted(table)

    def seconds(tokens: int) -> float:
        low = max((n for n in places[:-1] if n <= tokens), default=places[0])
        high = next(n for n in places if n > low)
        slope = (table[high] - table[low]) / (high - low)
        return (table[low] + slope * (tokens - low)) / 1000

    return seconds


@dataclass
class Machine:
    """What passes take.

    Attributes:
        verify: seconds of a target pass over n tokens.
        draft: seconds of a draft model's pass.
        noise: half width of the noise, as a part.
        outliers: chance that a pass takes ten times as long.
    """

    verify: Cost
    draft: float = 0.0
    noise: float = 0.0
    outliers: float = 0.0
    slow: float = 1.0
    now: float = 0.0
    coin: random.Random = field(default_factory=lambda: random.Random(1))

    def spend(self, seconds: float) -> float:
        seconds *= self.slow * (1 + self.noise * (2 * self.coin.random() - 1))
        if self.coin.random() < self.outliers:
            seconds *= 10
        self.now += seconds
        return seconds

    def clock(self) -> float:
        return self.now


class Stage:
    """A text whose every token is known to be hit or missed by each drafter.

    Args:
        machine: what it runs on.
        kinds: of the drafters.
        hit: hit(seq, place, position): whether that drafter has the token at that position.
        top: top(seq, position): top probability of the guided drafters' row there.
    """

    def __init__(
        self,
        machine: Machine,
        kinds: Sequence[Kind],
        hit: Callable[[int, int, int], bool],
        top: Callable[[int, int], float] = lambda seq, position: 0.8,
        sequences: int = 1,
        fixed: int | None = None,
    ) -> None:
        self.machine, self.kinds, self.hit, self.top = machine, tuple(kinds), hit, top
        self.control = Controller(kinds, machine.clock)
        self.positions = [0] * sequences
        self.streak = [[0] * len(kinds) for _ in range(sequences)]
        self.fixed = fixed
        self.owner = 0
        self.drafted: list[list[int]] = []
        self.silent = 0
        self.calibrate()

    def calibrate(self) -> None:
        table = {n: self.machine.verify(n) for n in (*range(1, 10), 13, 17)}
        self.control.estimates.target.adopt(Table(table))

    def run(self, tokens: int) -> float:
        """Go on until every sequence has so many more tokens; tokens per second."""
        start, aim = self.machine.now, [at + tokens for at in self.positions]
        before = sum(self.positions)
        while any(at < end for at, end in zip(self.positions, aim, strict=True)):
            self.round()
        return (sum(self.positions) - before) / (self.machine.now - start)

    def round(self) -> None:
        count, room = len(self.positions), LONGEST if self.fixed is None else self.fixed
        asks = [
            Ask(seq, self.owner, at + 1, room, self.fixed is not None)
            for seq, at in enumerate(self.positions)
        ]
        round_ = self.control.open(asks, count)
        for turn in round_.turns:
            seq = turn.ask.seq
            for place, kind in enumerate(self.kinds):
                if kind is Kind.FREE and room:
                    draft = [self._token(seq, place, i) for i in range(room)]
                    turn.offers[place] = (draft, self.streak[seq][place])
        round_.decide()
        self.asked = False
        for place, kind in enumerate(self.kinds):
            asked = [] if kind is Kind.FREE or not room else round_.asked(place)
            if asked:
                self.asked = True
                (self._draw if kind is Kind.GUIDED else self._whole)(round_, place, asked)
        self._verify(round_)

    def _token(self, seq: int, place: int, ahead: int) -> int:
        return 1 if self.hit(seq, place, self.positions[seq] + ahead) else 0

    def _draw(self, round_: Decision, place: int, asked: list[Turn]) -> None:
        round_.begin(place, asked)
        going = list(asked)
        while going:
            self.machine.spend(self.machine.draft)
            seen = [
                (t.ask.seq, self.top(t.ask.seq, self.positions[t.ask.seq] + t.length))
                for t in going
            ]
            more = round_.further(place, seen)
            going = [t for t, n in zip(going, more, strict=True) if n > 1 and t.length < t.ask.room]
        round_.ended(place, [(turn.ask.seq, turn.length) for turn in asked])

    def _whole(self, round_: Decision, place: int, asked: list[Turn]) -> None:
        round_.begin(place, asked)
        lengths = [turn.length for turn in asked]
        self.machine.spend(self.machine.draft * max(lengths))
        round_.ended(place, [(t.ask.seq, n) for t, n in zip(asked, lengths, strict=True)])

    def _verify(self, round_: Decision) -> None:
        outcomes = []
        lengths = [turn.length for turn in round_.turns]
        for turn in round_.turns:
            seq, right = turn.ask.seq, 0
            if turn.speaker is not None:
                while right < turn.length and self._token(seq, turn.speaker, right):
                    right += 1
            judged = min(turn.length, right + 1)
            outcomes.append(Outcome(seq, right, judged, [1] * (right + 1)))
            for place in range(len(self.kinds)):
                for ahead in range(right + 1):
                    hit = self._token(seq, place, ahead)
                    self.streak[seq][place] = (self.streak[seq][place] + 1) * hit
        self.drafted.append(lengths)
        self.silent += not any(lengths)
        seconds = self.machine.spend(self.machine.verify(len(lengths) + sum(lengths)))
        for outcome in outcomes:
            self.positions[outcome.seq] += len(outcome.tokens)
        self.control.learn(outcomes, seconds, 0.0, False)


def coins(alpha: float | Callable[[int], float], seed: int = 0, size: int = 20000):
    """Hits with a chance that may depend on the position; each drafter and sequence has its own."""
    known: dict[tuple[int, int], list[bool]] = {}

    def hit(seq: int, place: int, position: int) -> bool:
        if (seq, place) not in known:
            coin = random.Random(f"{seed} {seq} {place}")
            known[seq, place] = [
                coin.random() < (alpha(i) if callable(alpha) else alpha) for i in range(size)
            ]
        return known[seq, place][position]

    return hit
