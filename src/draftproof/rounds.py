"""The loop: choose, propose, forward, judge, commit; for all running sequences together.

A single stream is a batch of one, and the rest of a prompt travels in the same target pass as the
verification of the others. There is no other loop: whatever reports or serves consumes the
``Step`` records of this one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from draftproof.calibration import Calibration
from draftproof.change import Change
from draftproof.drafters import Drafter, DraftRequest
from draftproof.drafters.chain import ChainDrafter
from draftproof.errors import DraftproofError, ModelError
from draftproof.models import Chunk, Model
from draftproof.rules import RULES, match_picks
from draftproof.sampling import distribution, finite, greedy
from draftproof.sequence import Sequence
from draftproof.slots import slots_of
from draftproof.types import Array, Draft, Seconds, Step, Verdict


@dataclass(slots=True)
class _Work:
    """One sequence's part of a round.

    Attributes:
        feed: committed tokens the target reads, at least one.
        draft: what it verifies behind them.
    """

    sequence: Sequence
    feed: int
    draft: Draft = field(default_factory=Draft)

    @property
    def reading(self) -> bool:
        """Whether the prompt goes on behind this round, so that there is nothing to judge."""
        return self.feed < self.sequence.pending

    @property
    def speculative(self) -> bool:
        """Whether a drafter has to hear of it; it need not where nothing is left to draft."""
        sequence = self.sequence
        useful = self.reading or sequence.room or not sequence.auto
        return bool(sequence.draft_length and useful and not self.draft.tokens)

    def request(self) -> DraftRequest:
        sequence = self.sequence
        tokens = sequence.tokens
        return DraftRequest(
            seq=sequence.slot,
            owner=sequence.owner,
            tokens=tokens[: sequence.cached + self.feed] if self.reading else tokens,
            length=0 if self.reading else sequence.room,
            params=sequence.params,
            noise=sequence.noise,
            end_tokens=sequence.end_tokens,
            processors=sequence.processors,
            auto=sequence.auto,
            left=sequence.left,
        )

    def chunk(self) -> Chunk:
        sequence = self.sequence
        tokens = sequence.tokens[sequence.cached : sequence.cached + self.feed]
        logits = 0 if self.reading else len(self.draft.tokens) + 1
        if sequence.scores_prompt:
            logits = len(tokens) + len(self.draft.tokens)
        return Chunk(sequence.slot, [*tokens, *self.draft.tokens], logits)

    def judged(self, logits: Array) -> Array:
        """The rows of the draft's k tokens and of the one behind them, [k+1, V]."""
        return logits[logits.shape[0] - len(self.draft.tokens) - 1 :]


class Rounds:
    """The running sequences and the target's cache, moved on round by round.

    Args:
        target: the model that decides.
        drafter: what proposes, or None.
        prefill_chunk: most prompt tokens of one target pass, over all sequences.
    """

    def __init__(self, target: Model, drafter: Drafter | None, prefill_chunk: int) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._target = target
        self._chain = _chain(drafter)
        self._clock = self._chain.control.clock if self._chain else time.perf_counter
        tables = self._chain.tables(target) if self._chain else []
        self._calibrations = [Calibration(model, latency) for model, latency in tables]
        self._prefill_chunk = prefill_chunk
        self._slots = slots_of(target)
        self._number = 0

    def find(self, request: int) -> Sequence | None:
        """The unfinished sequence of a request."""
        everyone = (*self.running, *self.waiting)
        return next((sequence for sequence in everyone if sequence.request == request), None)

    def run(self) -> list[tuple[Sequence, Step]]:
        """One round.

        Raises:
            ModelError: a model failed. Sequences and caches are as before the round.
        """
        try:
            self._claim()
            self._calibrate()
            self._admit()
            works = self._choose()
            return self._round(works) if works else []
        finally:
            self._forget(self.running)

    def _round(self, works: list[_Work]) -> list[tuple[Sequence, Step]]:
        begin = self._clock()
        self._propose(works)
        drafted = self._clock()
        logits = self._target.forward([work.chunk() for work in works])
        verified = self._clock()
        verdicts = [self._judge(work, rows) for work, rows in zip(works, logits, strict=True)]
        seconds = Seconds(drafted - begin, verified - drafted, self._clock() - verified)
        self._number += 1
        judged = zip(works, verdicts, logits, strict=True)
        done = [self._commit(*each, seconds) for each in judged]
        if self._chain:
            self._learn(self._chain, done, any(work.feed > 1 for work in works))
        return done

    def remove(self, sequence: Sequence) -> None:
        """Take a finished sequence out; its entries stay for a prompt that begins the same."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            return
        self._claim()
        self.running.remove(sequence)
        self._forget([sequence])
        self._slots.hold(sequence.slot, sequence.tokens[: sequence.cached])

    def park(self) -> None:
        """See ``slots.User.park``."""
        for sequence in self.running:
            self._slots.hold(sequence.slot, sequence.tokens[: sequence.cached])

    def _claim(self) -> None:
        """Go on from what is left in the caches where another engine has used the target since."""
        if self._slots.claim(self):
            for sequence in self.running:
                known = self._slots.known(sequence.slot, sequence.tokens[:-1])
                # What was not scored yet has to be read here.
                sequence.cached = min(known, sequence.cached) if sequence.scores_prompt else known
            self._forget(self.running)
            self.park()

    def _calibrate(self) -> None:
        """Measure the models before the first request whose draft length is to be chosen."""
        if not self.running and any(sequence.auto for sequence in self.waiting):
            for calibration in self._calibrations:
                calibration.begin()

    def _admit(self) -> None:
        """Give waiting requests the free slots, where most of their prompt is cached already."""
        if not self.waiting:
            return
        free = self._slots.free({sequence.slot for sequence in self.running})
        while self.waiting and free:
            sequence = self.waiting.popleft()
            known = [] if sequence.scores_prompt else sequence.tokens[:-1]
            sequence.slot, sequence.cached = self._slots.best(free, known)
            free.remove(sequence.slot)
            self.running.append(sequence)
            self._forget([sequence])
            self._slots.hold(sequence.slot, sequence.tokens[: sequence.cached])
            sequence.stats.cached_tokens = sequence.cached

    def _choose(self) -> list[_Work]:
        """How much of each sequence goes into this round's target pass."""
        works, budget = [], self._prefill_chunk
        for sequence in self.running:
            feed = sequence.pending
            if feed > 1:
                feed = min(feed, budget)
                budget -= feed
            if feed:
                works.append(_Work(sequence, feed))
        return works

    def _propose(self, works: list[_Work]) -> None:
        for work in works:
            if not work.reading:
                work.draft = work.sequence.free_draft()
        if self._chain is None:
            return
        speculative = [work for work in works if work.speculative]
        requests = [work.request() for work in speculative]
        others = sum(len(work.draft.tokens) for work in works)
        drafts = self._chain.draft(requests, len(works), others)
        for work, request, draft in zip(speculative, requests, drafts, strict=True):
            assert len(draft.tokens) <= request.length
            work.draft = draft

    def _judge(self, work: _Work, logits: Array) -> Verdict | DraftproofError | None:
        """The verdict on a draft, from the rows of its pass; an error ends the request."""
        if work.reading:
            return None
        try:
            return _verdict(work.sequence, work.draft, work.judged(logits))
        except DraftproofError as error:
            return error

    def _commit(
        self,
        work: _Work,
        verdict: Verdict | DraftproofError | None,
        logits: Array,
        seconds: Seconds,
    ) -> tuple[Sequence, Step]:
        sequence = work.sequence
        prefilled = sequence.prompt_part(work.feed)
        scores = sequence.read(work.feed, logits)
        if isinstance(verdict, Verdict):
            change = sequence.commit(work.draft, verdict, work.judged(logits))
            sequence.cached = len(sequence.tokens) - 1
        elif verdict is None:
            change = Change()  # a part of the prompt was read
            sequence.cached += work.feed
        else:
            change = sequence.end("error", verdict)
        change = change._replace(prompt_logprobs=scores)
        return sequence, sequence.step(self._number, seconds, prefilled, work.draft, change)

    def _learn(self, chain: ChainDrafter, done: list[tuple[Sequence, Step]], prefill: bool) -> None:
        """Tell the drafters what became of the round."""
        chain.learn([(sequence.slot, step) for sequence, step in done], prefill)
        regret = chain.control.regret
        for sequence, _ in done:
            if sequence.auto and sequence.finish_reason:
                stats, at = sequence.stats, (sequence.slot, sequence.owner)
                context = stats.prompt_tokens + stats.completion_tokens // 2
                stats.regret = regret(*at, len(done), context)
        for calibration in self._calibrations:
            calibration.keep()

    def _forget(self, sequences: Iterable[Sequence]) -> None:
        """Roll the target's cache back to what each sequence has committed."""
        for sequence in sequences:
            try:
                self._target.truncate(sequence.slot, sequence.cached)
            except ModelError:  # it cannot go back that far: it can only begin again
                sequence.cached = 0
                self._target.truncate(sequence.slot, 0)
            # A cache that runs ahead or behind gives wrong text without an error.
            assert self._target.length(sequence.slot) == sequence.cached


def _verdict(sequence: Sequence, draft: Draft, logits: Array) -> Verdict:
    """What the sequence's rule makes of a draft of k tokens, from logits [k+1, V]."""
    dead_end = None
    if sequence.processors is not None:
        logits, dead_end = sequence.processors.apply(logits, draft.tokens)
    try:
        return _ruled(sequence, draft, logits, dead_end)
    except ModelError as error:  # of a row that is not finite; it may be behind a refused draft
        return _ruled(sequence, draft, finite(logits), error)


def _ruled(
    sequence: Sequence, draft: Draft, logits: Array, dead_end: DraftproofError | None
) -> Verdict:
    """The same from n of the rows; where there is a dead end, the last one means nothing."""
    count = logits.shape[0] - 1  # drafts behind these cannot be reached
    if count < len(draft.tokens):
        rows = None if draft.rows is None else draft.rows[:count]
        draft = replace(draft, tokens=draft.tokens[:count], rows=rows)
    if sequence.params.greedy:
        verdict = match_picks(iter(greedy(logits)), draft)
    else:
        p = distribution(logits, sequence.params)
        rule = RULES["match" if draft.rows is None else sequence.rule]
        verdict = rule(p, draft, sequence.noise, len(sequence.tokens))
    # Whether it is reached is seen when the tokens before it are committed: one may end the answer.
    reached = verdict.accepted == count
    return replace(verdict, dead_end=dead_end) if dead_end and reached else verdict


def _chain(drafter: Drafter | None) -> ChainDrafter | None:
    """One drafter is a chain of one."""
    if drafter is None or isinstance(drafter, ChainDrafter):
        return drafter
    return ChainDrafter([drafter])
