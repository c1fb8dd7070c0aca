"""How likely drafts are accepted, learned from what became of earlier ones.

Each drafter has chances by class: what it knew before it drew. A row of a draft model belongs to
the class of its top probability and of its place in the draft; a draft whose outcome is a function
of the text, as lookup's, to that of its evidence (how many tokens have agreed up to there). The
chances are shared by all sequences, so that a new one begins with what the others taught. What sets
a sequence apart is one number: how much better the odds of its latest outcomes were than the shared
ones. So all classes follow as soon as a text turns easy or hard.

A draft's outcomes end at its first rejection: nothing is counted behind it.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

MEMORY = 300.0  # outcomes a class looks back
GUESS = 4.0  # outcomes that the first guess is worth
RECENT = 40.0  # outcomes a sequence looks back
SILENT = 32.0  # rounds without an outcome after which most of that is forgotten
CAUTION = 8.0  # outcomes at the shared odds that every sequence is thought to have had
KEPT = 10.0  # tokens that chosen drafts are thought to have promised, and kept
MOST_KEPT = 120.0  # tokens that this looks back
TOPS = (0.3, 0.5, 0.7, 0.85, 0.95, 0.99)  # where classes of top probabilities part
LEVELS = (0.25, 0.4, 0.6, 0.78, 0.9, 0.97, 0.995)  # first guess in each
NEXT = 0.7  # first guess for a row that was not seen yet
LATE = 2  # places in a draft from here on are one class
EVIDENCE = 6  # classes: 32 agreed tokens and more are one

Class = tuple[int, int]
"""Kind of knowledge and value: the place of a row and the class of its top, or -2 and evidence."""

UNSEEN = (-1, -1)


def top_class(probability: float) -> int:
    """The class of a row's top probability."""
    return bisect(TOPS, probability)


@dataclass(slots=True)
class _Track:
    accepted: float
    evaluated: float = GUESS


class Shared:
    """Chances by class, over all sequences."""

    def __init__(self) -> None:
        self._tracks: dict[Class, _Track] = {}
        self._promised = self._kept = KEPT

    def chance(self, kind: Class) -> float:
        """The chance that a draft of this class is accepted."""
        track = self._tracks.get(kind)
        return track.accepted / track.evaluated if track else _guess(kind)

    @property
    def trust(self) -> float:
        """The part of what chosen drafts promised that came true, at most 1.

        Drafts are chosen where their chances seem good, by mistake or not: so they keep less than
        chances that are right on average would have it.
        """
        return min(1.0, self._kept / self._promised)

    def keep(self, promised: float, accepted: int) -> None:
        """Count a draft that was chosen: tokens that were expected, and that came."""
        self._promised += promised
        self._kept += accepted
        fade = MOST_KEPT / max(MOST_KEPT, self._promised)
        self._promised *= fade
        self._kept *= fade

    def doubt(self) -> None:
        """A draft was not chosen: whether it would be believed rightly is forgotten slowly."""
        self._promised += (KEPT - self._promised) / MOST_KEPT
        self._kept += (KEPT - self._kept) / MOST_KEPT

    def add(self, kind: Class, accepted: bool) -> None:
        """Count an outcome; older ones fade."""
        track = self._tracks.setdefault(kind, _Track(GUESS * _guess(kind)))
        fade = min(1.0, MEMORY / (track.evaluated + 1))
        track.accepted = (track.accepted + accepted) * fade
        track.evaluated = (track.evaluated + 1) * fade


class Acceptance:
    """The chances of one drafter in one sequence.

    Args:
        shared: the drafter's chances over all sequences.
    """

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self._accepted = self._rejected = 0.0  # lately
        self._hoped = self._feared = 0.0  # the same, as the shared chances had it
        self.silent = 0  # rounds without an outcome

    def agreeing(self, evidence: int, length: int) -> list[float]:
        """The chances of each token of a draft, given that those before it are accepted.

        Args:
            evidence: tokens that have agreed with the text so far.
            length: tokens of the draft.
        """
        kinds = [_evidence(evidence + place) for place in range(length)]
        known = {kind: self._chance((-2, kind)) for kind in set(kinds)}
        return [known[kind] for kind in kinds]

    def row(self, place: int, top: int) -> float:
        """The chance of a token drawn from a row, given its place in the draft and its class."""
        return self._chance((min(place, LATE), top))

    def unseen(self) -> float:
        """The chance of a token whose row is not known yet."""
        return self._chance(UNSEEN)

    def settle_agreeing(self, evidence: int, outcomes: Sequence[bool]) -> None:
        """Count the tokens of a draft up to the first that did not agree."""
        for place, accepted in enumerate(outcomes):
            self._count((-2, _evidence(evidence + place)), accepted)

    def settle_rows(self, tops: Sequence[int], accepted: int, evaluated: int) -> None:
        """Count a draft's tokens, drawn from rows of these classes; none is as good as a refusal.

        Args:
            tops: classes of the rows.
            accepted: how many leading tokens were accepted.
            evaluated: how many were judged.
        """
        for place, top in enumerate(tops[:evaluated]):
            self.shared.add(UNSEEN, place < accepted)
            self._count((min(place, LATE), top), place < accepted)

    def settle_unseen(self, accepted: int, evaluated: int) -> None:
        """Count the tokens of a draft nothing is known about."""
        for place in range(evaluated):
            self._count(UNSEEN, place < accepted)

    def _chance(self, kind: Class) -> float:
        chance, odds = self.shared.chance(kind), self._odds
        return chance * odds / (chance * odds + 1 - chance)

    def _count(self, kind: Class, accepted: bool) -> None:
        self.shared.add(kind, accepted)  # first, or both would learn all of a surprise
        chance = self.shared.chance(kind)
        self._fade(1 - 1 / RECENT)
        self.silent = 0
        self._accepted += accepted
        self._rejected += not accepted
        self._hoped += chance
        self._feared += 1 - chance

    def forget(self) -> None:
        """A round went by without an outcome: what set the sequence apart may be over."""
        self.silent += 1
        self._fade(1 - 1 / SILENT)

    def _fade(self, part: float) -> None:
        self._accepted *= part
        self._rejected *= part
        self._hoped *= part
        self._feared *= part

    @property
    def _odds(self) -> float:
        """Of this sequence, over the shared ones."""
        better = (self._accepted + CAUTION) / (self._hoped + CAUTION)
        return better * (self._feared + CAUTION) / (self._rejected + CAUTION)


def _evidence(tokens: int) -> int:
    return min(tokens.bit_length(), EVIDENCE)


def _guess(kind: Class) -> float:
    knowledge, value = kind
    if kind == UNSEEN:
        return NEXT
    if knowledge == -2:
        agreed = (1 << value) >> 1
        return (agreed + 1) / (agreed + 3)
    return LEVELS[value]
