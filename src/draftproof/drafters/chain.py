"""The drafters of an engine, one or several: in each round and for each sequence the best speaks.

The controller (``control/``) decides which, and how far; here the drafters are asked. One whose
drafts are a function of the text (``FreeDrafter``) is asked in every round, and its draft is
compared with the text even where another spoke or it was cut, so it comes back at once where it
pays again. A draft model is asked only when it is to speak, as a draft that was drawn must never
be dropped for what it says; what it has not read meanwhile goes into the first pass of its next
one. So a decision knows the past alone, and the text is the target's whatever is decided.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from draftproof.control import Controller
from draftproof.control.decision import Decision
from draftproof.control.latency import Latency
from draftproof.control.turn import Ask, Kind, Outcome, Turn
from draftproof.drafters import Drafter, DraftRequest, FreeDrafter, GuidedDrafter
from draftproof.models import Model
from draftproof.types import Draft, Step


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
        self.control = Controller([_kind(drafter) for drafter in drafters], clock)
        self.drafters = tuple(drafters)
        # Told apart once: looking into a protocol takes as long as a decision.
        self._free = [(n, d) for n, d in enumerate(drafters) if isinstance(d, FreeDrafter)]
        self._drawn = [(n, d) for n, d in enumerate(drafters) if not isinstance(d, FreeDrafter)]
        guided = [(n, d) for n, d in self._drawn if isinstance(d, GuidedDrafter)]
        self._reading = [(n, d) for n, d in guided if d.reads]

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """See ``Drafter.propose``."""
        return self.draft(requests, len(requests), 0)

    def draft(self, requests: Sequence[DraftRequest], sequences: int, others: int) -> list[Draft]:
        """As ``propose``, in a target pass with others.

        Args:
            requests: those that want a draft.
            sequences: all sequences of the pass.
            others: drafts in it that come from elsewhere.
        """
        made = _Made(requests)
        for place, free in self._free if requests else ():
            made.offer(place, free)
        if not (made.offered or others) and self._rests(requests, sequences):
            plain = Draft(forecast=self.control.forecast)
            return [plain if request.auto and request.length else Draft() for request in requests]
        decision = self.control.open([_ask(request) for request in requests], sequences, others)
        made.hand_in(decision)
        for place, guided in self._reading:
            made.look(place, guided, decision)
        decision.decide()
        for place, drafter in self._drawn:
            made.draw(place, drafter, decision, len(self.drafters) == 1)
        return [
            replace(made.final(turn), forecast=decision.forecast(turn)) for turn in decision.turns
        ]

    def _rests(self, requests: Sequence[DraftRequest], sequences: int) -> bool:
        """Whether there is nothing to decide; draft models may have to read, or have no choice."""
        if self._drawn and not all(request.auto and request.length for request in requests):
            return False
        owners = tuple(request.owner for request in requests)
        return self.control.rests(owners, sequences, lambda: [*map(_ask, requests)])

    def learn(self, steps: Sequence[tuple[int, Step]], prefill: bool) -> None:
        """What became of the last round.

        Args:
            steps: by sequence number.
            prefill: whether its target pass read more than one token of any sequence.
        """
        if self.control.rested(prefill):
            return
        seconds = steps[0][1].seconds
        outcomes = [
            Outcome(seq, step.accepted, step.evaluated, step.tokens)
            for seq, step in steps
            if step.tokens
        ]
        self.control.learn(outcomes, seconds.verify, seconds.other, prefill)

    def tables(self, target: Model) -> list[tuple[Model, Latency]]:
        """The models that read the text themselves, and what is known of their passes."""
        known = self.control.estimates
        return [(target, known.target), *((d.model, known.passes[n]) for n, d in self._reading)]

    def close(self) -> None:
        """See ``Drafter.close``."""
        for drafter in self.drafters:
            drafter.close()


class _Made:
    """The drafts of one round.

    Args:
        requests: what is asked for.

    Attributes:
        offered: drafts that are known beforehand and the evidence for them, by sequence and place.
    """

    def __init__(self, requests: Sequence[DraftRequest]) -> None:
        self._requests = requests
        self._by_seq: dict[int, DraftRequest] = {}
        self._drafts: dict[tuple[int, int], Draft] = {}
        self.offered: dict[tuple[int, int], tuple[Sequence[int], int]] = {}

    def offer(self, place: int, drafter: FreeDrafter) -> None:
        """Ask a drafter whose drafts are known beforehand."""
        for request, draft in zip(self._requests, drafter.propose(self._requests), strict=True):
            if draft.tokens:
                self._drafts[request.seq, place] = draft
                self.offered[request.seq, place] = (draft.tokens, drafter.evidence(request))

    def hand_in(self, decision: Decision) -> None:
        """Tell what is offered."""
        self._by_seq = {request.seq: request for request in self._requests}
        turns = {turn.ask.seq: turn for turn in decision.turns}
        for (seq, place), offer in self.offered.items():
            turns[seq].offers[place] = offer

    def look(self, place: int, drafter: GuidedDrafter, decision: Decision) -> None:
        """What a draft model has read of an earlier text need not be read again."""
        for turn in decision.turns:
            if place not in turn.stream.read:
                turn.stream.read[place] = drafter.known(self._by_seq[turn.ask.seq])

    def draw(self, place: int, drafter: Drafter, decision: Decision, alone: bool) -> None:
        """Let a drafter speak where it was chosen.

        It is guided, unless there is nothing to decide: one that is alone, at a fixed length.
        """
        turns = decision.asked(place)
        if not turns:
            return
        fixed = alone and all(turn.ask.fixed for turn in turns)
        guided = decision.kinds[place] is not Kind.WHOLE and not fixed
        guide = partial(decision.further, place) if guided else None
        requests = [
            self._by_seq[turn.ask.seq]._replace(length=turn.length, guide=guide) for turn in turns
        ]
        decision.begin(place, turns)
        drafts = drafter.propose(requests)
        for turn, request, draft in zip(turns, requests, drafts, strict=True):
            self._drafts[request.seq, place] = draft
            turn.heard |= fixed
        decision.ended(
            place, [(r.seq, len(d.tokens)) for r, d in zip(requests, drafts, strict=True)]
        )

    def final(self, turn: Turn) -> Draft:
        """The draft of the one that was chosen; of any other where a fixed length is wanted."""
        places = [] if turn.speaker is None else [turn.speaker]
        for place in (*places, *(turn.offers if turn.ask.fixed else ())):
            draft = self._drafts[turn.ask.seq, place]
            if draft.tokens:
                turn.speaker, turn.length = place, turn.length or len(draft.tokens)
                return Draft(draft.tokens[: turn.length], draft.rows)
        return Draft()


def _kind(drafter: Drafter) -> Kind:
    if isinstance(drafter, FreeDrafter):
        return Kind.FREE
    if isinstance(drafter, GuidedDrafter):
        return Kind.GUIDED if drafter.reads else Kind.SHARING
    return Kind.WHOLE


def _ask(request: DraftRequest) -> Ask:
    return Ask(
        seq=request.seq,
        owner=request.owner,
        written=len(request.tokens),
        room=request.length,
        fixed=not request.auto,
        sampled=not request.params.greedy,
        reading=not request.length,
        left=request.left,
    )
