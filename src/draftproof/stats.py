"""Counts of what rounds did, one definition each, added up from ``Step`` records.

Over one sequence, with stops taken into account token by token:

- drafted: tokens a drafter proposed;
- evaluated: drafts that were judged, that is accepted + rejected;
- accepted: drafts that were emitted; rejected: drafts a rule refused (each brings a correction);
- discarded: drafts never judged, behind a rejection or a stop; drafted = evaluated + discarded;
- correction, bonus, plain: the token a target pass adds after a rejection, after a full
  acceptance, and in a round without a draft;
- forced: emitted tokens that a grammar had offered as a draft; predicted: that a predicted text
  had; these are not counted as drafted or accepted;
- emitted (completion tokens): accepted + correction + bonus + plain + forced + predicted, the end
  token included;
- rounds: target passes that emitted something; passes over the prompt alone are not rounds;
- acceptance rate: accepted / evaluated; acceptance length: emitted / rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from draftproof.types import FinishReason, Origin, Step, TokenLogprob


@dataclass(slots=True)
class Stats:
    """Statistics of one answer.

    Attributes:
        prompt_tokens: tokens of the prompt.
        cached_tokens: how many of them were still in the cache and not computed again.
        accepted_at_position: how often the draft at this place of its draft was accepted.
        evaluated_at_position: how often it was judged.
        prediction_rejected: tokens a predicted text proposed and that were not emitted.
        first: tokens emitted by the first round.
        load: seconds the models took to load.
        prefill: seconds of target passes that held prompt tokens.
        draft: seconds in the drafter.
        verify: seconds of the other target passes.
        total: seconds from the request's start to its end, without loading.
        ttft: seconds from the request's start to its first token.
        regret: part of the best fixed draft length's speed that was not reached, as seen from the
            end (``hindsight.py`` says how); below 0 where none would have been as fast, None where
            the draft length was fixed.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    evaluated: int = 0
    accepted: int = 0
    correction: int = 0
    bonus: int = 0
    plain: int = 0
    forced: int = 0
    predicted: int = 0
    prediction_rejected: int = 0
    accepted_at_position: list[int] = field(default_factory=list)
    evaluated_at_position: list[int] = field(default_factory=list)
    first: int = 0
    load: float = 0.0
    prefill: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    total: float = 0.0
    ttft: float = 0.0
    regret: float | None = None

    def add(self, step: Step, elapsed: float) -> None:
        """Count one step.

        Args:
            step: what the round did to this sequence.
            elapsed: seconds since the request's start.
        """
        self.drafted += len(step.drafted)
        self.evaluated += step.evaluated
        self.accepted += step.accepted
        _count_positions(self.accepted_at_position, step.accepted, len(step.drafted))
        _count_positions(self.evaluated_at_position, step.evaluated, len(step.drafted))
        predicted = step.origins.count(Origin.PREDICTED)
        self.forced += step.origins.count(Origin.FORCED)
        self.predicted += predicted
        self.prediction_rejected += step.predicted - predicted
        if step.tokens:
            self._count_added(step.origins[-1])
            if not self.rounds:
                self.first, self.ttft = len(step.tokens), elapsed
            self.rounds += 1
        self.draft += step.seconds.draft
        if step.prefilled:
            self.prefill += step.seconds.verify
        else:
            self.verify += step.seconds.verify
        self.total = elapsed

    def _count_added(self, origin: Origin) -> None:
        self.correction += origin is Origin.CORRECTION
        self.bonus += origin is Origin.BONUS
        self.plain += origin is Origin.PLAIN

    @property
    def rejected(self) -> int:
        """Drafts a rule refused."""
        return self.evaluated - self.accepted

    @property
    def discarded(self) -> int:
        """Drafts that were never judged."""
        return self.drafted - self.evaluated

    @property
    def completion_tokens(self) -> int:
        """Emitted tokens."""
        free = self.forced + self.predicted
        return self.accepted + self.correction + self.bonus + self.plain + free

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / evaluated; None where nothing was evaluated."""
        return self.accepted / self.evaluated if self.evaluated else None

    @property
    def acceptance_length(self) -> float | None:
        """Emitted tokens per round; None where there was no round."""
        return self.completion_tokens / self.rounds if self.rounds else None

    @property
    def mean_draft_length(self) -> float | None:
        """Drafted tokens per round; None where there was no round."""
        return self.drafted / self.rounds if self.rounds else None

    @property
    def plain_share(self) -> float | None:
        """The part of the rounds that a plain token ended; None where there was no round."""
        return self.plain / self.rounds if self.rounds else None

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed: the tokens after the first round, over the seconds after it.

        Where one round was all there was: its tokens over all of its seconds.
        """
        tokens, seconds = self.completion_tokens - self.first, self.total - self.ttft
        if tokens == 0:
            tokens, seconds = self.completion_tokens, self.total
        return tokens / seconds if seconds > 0 else 0.0

    @property
    def other(self) -> float:
        """Seconds that were neither in the drafter nor in the target."""
        return max(0.0, self.total - self.prefill - self.draft - self.verify)

    def to_json(self) -> dict[str, Any]:
        """The counts and times as the command line prints them."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "rounds": self.rounds,
            "drafted": self.drafted,
            "evaluated": self.evaluated,
            "accepted": self.accepted,
            "rejected": self.rejected,
            "discarded": self.discarded,
            "correction": self.correction,
            "bonus": self.bonus,
            "plain": self.plain,
            "forced": self.forced,
            "predicted": self.predicted,
            "prediction_rejected": self.prediction_rejected,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_length": self.acceptance_length,
            "mean_draft_length": self.mean_draft_length,
            "plain_share": self.plain_share,
            "regret": self.regret,
            "accepted_at_position": self.accepted_at_position,
            "evaluated_at_position": self.evaluated_at_position,
            "seconds": {
                "load": self.load,
                "prefill": self.prefill,
                "draft": self.draft,
                "verify": self.verify,
                "other": self.other,
                "total": self.total,
            },
            "tokens_per_second": self.tokens_per_second,
            "ttft": self.ttft,
        }


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer.

    Attributes:
        text: the text, without the end token and without a stop string.
        token_ids: the emitted tokens, the one that ended the answer included.
        finish_reason: "stop" (end token or stop string), "length" or "cancelled".
        stats: what it took.
        logprobs: one per emitted token, or None where they were not asked for.
        prompt_logprobs: one per prompt token but the first, or None.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """The document ``draftproof generate --json`` prints."""
        scores = {
            name: [each.to_json() for each in getattr(self, name)]
            for name in ("logprobs", "prompt_logprobs")
            if getattr(self, name) is not None
        }
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            **scores,
            "stats": self.stats.to_json(),
        }


def _count_positions(counts: list[int], first: int, length: int) -> None:
    """Add 1 to the first ``first`` counts; there are at least ``length`` of them."""
    counts.extend([0] * (length - len(counts)))
    for position in range(first):
        counts[position] += 1
