"""Several drafters in one: in each round and for each sequence, the one that promises most speaks.

What a drafter promises is tokens per second: 1 + the drafts expected to be accepted, over the
seconds of its draft and of the rest of the round.

- *Accepted.* Each sequence keeps, for each drafter, how many drafts were accepted of those that
  were evaluated; lookup by the length of its match, in powers of two. A draft of n tokens at
  acceptance a is expected to bring a + a^2 + ... + a^n. Older rounds fade, and so an estimate that
  nothing feeds returns to the first guess: a drafter that was given up is tried again.
- *Seconds.* Medians of what was measured lately, over all sequences: a pause spoils no decision.
  Lookup counts as free. Of equals the one named first speaks.

Lookup is asked in every round and its draft is compared with the text even when another spoke, so
it comes back at once where it pays again. That is exact: its draft is a function of the committed
tokens. A draft model is asked only when it is to speak, as a draft that was drawn must never be
dropped for what it says; what it has not read meanwhile goes into the first pass of its next one.
Outcomes are read from the committed tokens. So a decision knows the past alone, and the text is the
target's whatever is decided.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from draftproof.drafters import Drafter, DraftRequest
from draftproof.drafters.lookup import LookupDrafter
from draftproof.types import Draft

FADE = 0.95  # what an outcome still counts a round later
MEMORY = 16.0  # most outcomes that count: a round brings many when it goes well, one when it fails
GUESS = 2.0  # outcomes that the first guess is worth
MODEL_GUESS = 0.75  # acceptance of a draft model nothing is known about
LONGEST_CLASS = 6  # matches of 32 tokens and more

Kind = tuple[int, int]
"""A drafter's place in the chain, and the class of its match (0 for all but lookup)."""


class ChainDrafter:
    """Lets the most promising of its drafters speak, per sequence and round.

    Args:
        drafters: at least one; the chain closes them.
        clock: what tells the seconds.
    """

    def __init__(
        self, drafters: Sequence[Drafter], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        assert drafters
        self.name = ",".join(drafter.name for drafter in drafters)
        self._drafters = tuple(drafters)
        self._clock = clock
        self._histories: dict[int, _History] = {}
        self._per_token = [_Seconds() for _ in drafters]  # of a draft
        self._rest = _Seconds()  # of a round, without the draft
        self._left: float | None = None  # when the last round's draft was done

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """See ``Drafter.propose``."""
        if self._left is not None:
            self._rest.add(self._clock() - self._left)
        turns = [_Turn(request, self._history(request)) for request in requests]
        for place, drafter in enumerate(self._drafters):
            if isinstance(drafter, LookupDrafter):
                self._look_up(place, drafter, turns)
            else:
                self._consider(place, turns)
        for place, drafter in enumerate(self._drafters):
            if not isinstance(drafter, LookupDrafter):
                self._ask(place, drafter, [turn for turn in turns if turn.asks(place)])
        self._left = self._clock()
        return [turn.finish() for turn in turns]

    def _history(self, request: DraftRequest) -> _History:
        """What is known of the sequence, the outcome of its last round included."""
        history = self._histories.get(request.seq)
        if history is None or history.owner != request.owner:
            history = self._histories[request.seq] = _History(request.owner)
        history.settle(request.tokens)
        return history

    def _look_up(self, place: int, drafter: LookupDrafter, turns: list[_Turn]) -> None:
        drafts = drafter.propose([turn.request for turn in turns])
        for turn, draft in zip(turns, drafts, strict=True):
            if draft.tokens:
                match = drafter.match_length(turn.request)
                kind = (place, min(match.bit_length(), LONGEST_CLASS))
                guess = match / (match + 2)  # the longer the match, the more it is trusted
                gain = turn.history.expected(kind, guess, len(draft.tokens))
                turn.offer(kind, gain / self._rest.typical(1.0), draft)

    def _consider(self, place: int, turns: list[_Turn]) -> None:
        for turn in turns:
            length = turn.request.length
            if length:
                gain = turn.history.expected((place, 0), MODEL_GUESS, length)
                seconds = self._rest.typical(1.0) + length * self._per_token[place].typical(0.0)
                turn.offer((place, 0), gain / seconds)

    def _ask(self, place: int, drafter: Drafter, turns: list[_Turn]) -> None:
        if not turns:
            return
        began = self._clock()
        drafts = drafter.propose([turn.request for turn in turns])
        longest = max(len(draft.tokens) for draft in drafts)
        if longest:
            self._per_token[place].add((self._clock() - began) / longest)
        for turn, draft in zip(turns, drafts, strict=True):
            turn.drafts[(place, 0)] = draft

    def close(self) -> None:
        """See ``Drafter.close``."""
        for drafter in self._drafters:
            drafter.close()


class _Seconds:
    """What something takes: the median of the last times it was measured."""

    def __init__(self) -> None:
        self._measured: deque[float] = deque(maxlen=15)

    def add(self, seconds: float) -> None:
        self._measured.append(seconds)

    def typical(self, unknown: float) -> float:
        """Seconds; ``unknown`` before the first measurement, and where the clock saw none."""
        return (median(self._measured) if self._measured else 0.0) or unknown


@dataclass(slots=True)
class _Track:
    """Outcomes of one kind of draft, older ones fading."""

    accepted: float = 0.0
    evaluated: float = 0.0

    def add(self, draft: Sequence[int], text: Sequence[int]) -> None:
        """Count a draft by the text that came; nothing to propose counts as refused."""
        agreed = [mine == theirs for mine, theirs in zip(draft, text, strict=False)]
        refused = not draft or False in agreed
        accepted = agreed.index(False) if False in agreed else len(agreed)
        self.accepted += accepted
        self.evaluated += accepted + refused

    def fade(self) -> None:
        kept = min(FADE, MEMORY / max(MEMORY, self.evaluated))
        self.accepted *= kept
        self.evaluated *= kept


@dataclass(slots=True)
class _History:
    """What each kind of draft has earned in one sequence.

    Attributes:
        owner: the request it belongs to.
        tracks: outcomes so far.
        drafts: of the last round, whether they spoke or not.
        start: tokens that were committed when they were made.
    """

    owner: int
    tracks: dict[Kind, _Track] = field(default_factory=dict)
    drafts: dict[Kind, Draft] = field(default_factory=dict)
    start: int = 0

    def settle(self, tokens: Sequence[int]) -> None:
        """Count the drafts of the last round, by what has been committed since."""
        text = tokens[self.start :]
        if text and self.drafts:  # none where the round failed: it is done again
            for track in self.tracks.values():
                track.fade()
            for kind, draft in self.drafts.items():
                self.tracks.setdefault(kind, _Track()).add(draft.tokens, text)
        self.drafts, self.start = {}, len(tokens)

    def expected(self, kind: Kind, guess: float, length: int) -> float:
        """Tokens a round is expected to emit with a draft of that length."""
        track = self.tracks.get(kind, _Track())
        rate = (track.accepted + guess * GUESS) / (track.evaluated + GUESS)
        return sum(rate**i for i in range(length + 1))


class _Turn:
    """One sequence's part of a round: who may speak, who is to, and what was drafted."""

    def __init__(self, request: DraftRequest, history: _History) -> None:
        self.request = request
        self.history = history
        self.drafts: dict[Kind, Draft] = {}
        self._offers: list[tuple[float, Kind]] = []

    def offer(self, kind: Kind, worth: float, draft: Draft | None = None) -> None:
        """Take note of a candidate, and of its draft if that is known."""
        self._offers.append((worth, kind))
        if draft is not None:
            self.drafts[kind] = draft

    def asks(self, place: int) -> bool:
        """Whether that drafter is to speak; all of them read on where there is no draft to make."""
        return not self.request.length or self._ranked()[0][0] == place

    def finish(self) -> Draft:
        """The draft of the best that has one; all of them are kept, to be judged by the text."""
        if not self.request.length:
            return Draft()
        self.history.drafts = self.drafts
        made = [self.drafts[kind] for kind in self._ranked() if kind in self.drafts]
        return next((draft for draft in made if draft.tokens), Draft())

    def _ranked(self) -> list[Kind]:
        """The best first; of equals the one that was named first."""
        return [kind for _, kind in sorted(self._offers, key=lambda offer: -offer[0])]
