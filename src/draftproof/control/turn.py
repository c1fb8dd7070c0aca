"""One sequence's part of a round, as the controller sees it.

Not here: estimating (``acceptance.py``) and deciding (``control.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from draftproof.control.acceptance import Acceptance
from draftproof.control.choice import Way
from draftproof.control.hindsight import Hindsight

LONGEST = 16
"""Most tokens of a draft whose length is not fixed."""


ENDLESS = 1 << 20
"""More tokens than any answer has."""


class Kind(Enum):
    """What a drafter is to the controller.

    FREE: its drafts cost nothing, are functions of the committed tokens, and may be cut anywhere.
    GUIDED: it asks before each token it draws, ``Decision.further``.
    SHARING: so does it, and what the target has read it need not read.
    WHOLE: it has to know the length before.
    """

    FREE = "free"
    GUIDED = "guided"
    SHARING = "sharing"
    WHOLE = "whole"


class Ask(NamedTuple):
    """A sequence that may be drafted for.

    Attributes:
        seq: its slot.
        owner: changes when another request takes the slot over.
        written: tokens the draft goes on from.
        room: most tokens to draft; 0 where there is none to make.
        fixed: draft exactly so many, not fewer.
        sampled: whether the target draws.
        reading: whether its prompt is still being read.
        left: most tokens it may still get.
    """

    seq: int
    owner: int
    written: int
    room: int
    fixed: bool = False
    sampled: bool = False
    reading: bool = False
    left: int = ENDLESS


class Outcome(NamedTuple):
    """What became of a sequence in a round: drafts accepted, drafts judged, tokens emitted."""

    seq: int
    accepted: int
    evaluated: int
    tokens: Sequence[int]


@dataclass(slots=True)
class Stream:
    """What is known of one request.

    Attributes:
        owner: the request.
        chances: by drafter.
        read: tokens each drafter has taken in, by its place; where that was looked at.
        hindsight: what its rounds did.
    """

    owner: int
    chances: list[Acceptance]
    read: dict[int, int]
    hindsight: Hindsight


@dataclass(slots=True)
class Turn:
    """One sequence's part of a round.

    Attributes:
        ask: what there is to do.
        stream: what is known of it.
        offers: by drafter its draft and the evidence for it, where they are known beforehand.
        ways: by drafter what may be chosen from.
        speaker: the drafter that was chosen.
        length: how many tokens are to be verified, as far as that is decided.
        tops: classes of the rows drawn from.
        survival: chance that all tokens drawn so far are accepted.
        heard: whether the speaker had anything to say.
        expected: tokens the round is expected to emit.
    """

    ask: Ask
    stream: Stream
    offers: dict[int, tuple[Sequence[int], int]] = field(default_factory=dict)
    ways: dict[int, Way] = field(default_factory=dict)
    speaker: int | None = None
    length: int = 0
    tops: list[int] = field(default_factory=list)
    survival: float = 1.0
    heard: bool = False
    expected: float = 1.0

    def prepare(self, kinds: Sequence[Kind]) -> None:
        """What each drafter's draft is worth, by what is known before the round."""
        room = self.ask.room
        for place, kind in enumerate(kinds):
            chances, offer = self.stream.chances[place], self.offers.get(place)
            if kind is not Kind.FREE and room:
                self.ways[place] = self.unread(place, room)
            elif offer and offer[0]:
                known = chances.agreeing(offer[1], len(offer[0]))
                self.ways[place] = Way(_survival(known, chances.shared.trust))

    def unread(self, place: int, room: int) -> Way:
        """What a draft model may draft, before any of its rows is known."""
        return Way(_survival([self.stream.chances[place].unseen()] * room), 1, 1)

    def speaks(self, place: int | None, length: int) -> None:
        """Let a drafter speak."""
        self.speaker, self.length = (place, length) if length else (None, 0)
        survival = self.ways[place].survival[:length] if place is not None else ()
        self.expected = 1 + sum(survival)

    def ahead(self, top: int) -> Way:
        """What a draft model may still draft, now that the class of its next row is known."""
        place = self.speaker
        assert place is not None
        chances, drawn = self.stream.chances[place], len(self.tops)
        later = [chances.unseen()] * (self.ask.room - drawn - 1)
        return Way(_survival([chances.row(drawn, top), *later], self.survival), 0, 1)

    def draw(self, top: int, survival: float) -> None:
        """Take note of a token that is drawn."""
        self.tops.append(top)
        self.length += 1
        self.survival = survival
        self.expected += survival

    def settle(self, kinds: Sequence[Kind], outcome: Outcome) -> None:
        """Learn from what became of the drafts, whether they spoke or not."""
        for place, (draft, evidence) in self.offers.items():
            agreed = [a == b for a, b in zip(draft, outcome.tokens, strict=False)]
            if False in agreed:
                del agreed[agreed.index(False) + 1 :]
            chances = self.stream.chances[place]
            if place == self.speaker and not self.ask.fixed:
                promised = (self.expected - 1) / chances.shared.trust
                chances.shared.keep(promised, outcome.accepted)
            else:
                chances.shared.doubt()
            chances.settle_agreeing(evidence, agreed)
            self.stream.hindsight.drafters[place].add(sum(agreed), len(agreed))
        for place in self.ways.keys() - self.offers.keys():
            if place == self.speaker:
                self._settle_drawn(place, kinds[place], outcome)
            else:
                self.stream.chances[place].forget()

    def _settle_drawn(self, place: int, kind: Kind, outcome: Outcome) -> None:
        drawn = min(outcome.accepted, max(0, self.length - 1))  # it never read its last token
        self.stream.read[place] = self.ask.written + drawn
        chances = self.stream.chances[place]
        self.stream.hindsight.drafters[place].add(outcome.accepted, outcome.evaluated)
        if not self.heard:
            chances.settle_unseen(0, 1)  # as bad as being wrong
        elif kind is Kind.WHOLE:
            chances.settle_unseen(outcome.accepted, outcome.evaluated)
        else:
            chances.settle_rows(self.tops, outcome.accepted, outcome.evaluated)


def mean_written(asks: Sequence[Ask]) -> float:
    """Tokens of each sequence, on average."""
    return sum(ask.written for ask in asks) / len(asks) if asks else 0.0


def _survival(chances: Sequence[float], start: float = 1.0) -> list[float]:
    survival = []
    for chance in chances:
        start *= chance
        survival.append(start)
    return survival
