"""One running request: its tokens, its text, its budget, and how a verdict is committed to it.

Not here: models and caches; ``rounds.py`` moves them along.
"""

from __future__ import annotations

import itertools
import time
from typing import NamedTuple

from draftproof.models import Capabilities
from draftproof.noise import noise_for
from draftproof.stats import Completion, Stats
from draftproof.text import TextStream, Tokenizer
from draftproof.types import (
    Draft,
    FinishReason,
    Origin,
    Piece,
    SamplingParams,
    Seconds,
    Speculation,
    Step,
    Verdict,
)

_owners = itertools.count()


class Change(NamedTuple):
    """What a round did to a sequence: the origins of the emitted tokens, and the text let out."""

    origins: list[Origin]
    pieces: list[Piece]


class Sequence:
    """A request from ``Engine.submit`` to its end.

    Args:
        request: its id.
        prompt: token ids, at least one, fewer than the context.
        params: sampling options.
        speculation: how it is speculated on.
        tokenizer: the target's.
        capabilities: the target's.

    Raises:
        ParameterError: a seed together with a rule that would let the drafter change the text.
    """

    def __init__(
        self,
        request: int,
        prompt: list[int],
        params: SamplingParams,
        speculation: Speculation,
        tokenizer: Tokenizer,
        capabilities: Capabilities,
    ) -> None:
        self.request = request
        self.owner = next(_owners)  # for drafters, which may serve one engine after another
        self.tokens = prompt
        self.params = params
        self.rule = speculation.rule_for(params)
        self.noise = noise_for(params.seed)
        self.draft_length = speculation.draft_length
        self.end_tokens = frozenset() if params.ignore_eos else tokenizer.end_tokens
        self.slot = -1  # its number in the models, once it runs
        self.cached = 0  # leading tokens whose entries the target holds
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None
        self.stats = Stats(prompt_tokens=len(prompt))
        self._prompt_length = len(prompt)
        self._started = time.perf_counter()
        self._limit = capabilities.context_length
        if params.max_tokens is not None:
            self._limit = min(self._limit, len(prompt) + params.max_tokens)
        self._stream = TextStream(tokenizer, params.stop)
        self._text: list[str] = []

    @property
    def pending(self) -> int:
        """Tokens the target has not read: 1 between rounds, more while the prompt is read."""
        return len(self.tokens) - self.cached

    @property
    def room(self) -> int:
        """Most drafts worth proposing: the round adds one token of its own to them."""
        return max(0, min(self.draft_length, self._limit - len(self.tokens) - 1))

    def prompt_part(self, feed: int) -> int:
        """How many of the next ``feed`` tokens to be read belong to the prompt."""
        return max(0, min(feed, self._prompt_length - self.cached))

    def commit(self, draft: Draft, verdict: Verdict) -> Change:
        """Append what the verdict leaves of the draft, token by token, up to a stop."""
        accepted = draft.tokens[: verdict.accepted]
        pieces: list[Piece] = []
        origins: list[Origin] = []
        for token in (*accepted, verdict.token):
            origin = Origin.ACCEPTED if len(origins) < len(accepted) else _added(draft, verdict)
            origins.append(origin)
            pieces += self._append(token, origin)
            if self.finish_reason:
                pieces += self._stream.finish()
                break
        return self._change(origins, pieces)

    def unchanged(self) -> Change:
        """A round that read a part of the prompt."""
        return Change([], [])

    def end(self, reason: FinishReason, error: Exception | None = None) -> Change:
        """End it from outside; text that was held back comes out."""
        self.finish_reason, self.error = reason, error
        self.stats.total = self.elapsed
        return self._change([], self._stream.finish())

    def _change(self, origins: list[Origin], pieces: list[Piece]) -> Change:
        self._text += [piece.text for piece in pieces]
        return Change(origins, pieces)

    def _append(self, token: int, origin: Origin) -> list[Piece]:
        self.tokens.append(token)
        if token in self.end_tokens:
            self.finish_reason = "stop"
            return []
        pieces = self._stream.push(token, origin)
        if self._stream.stopped:
            self.finish_reason = "stop"
        elif len(self.tokens) >= self._limit:
            self.finish_reason = "length"
        return pieces

    @property
    def elapsed(self) -> float:
        """Seconds since it was submitted."""
        return time.perf_counter() - self._started

    def step(
        self,
        number: int,
        seconds: Seconds,
        prefilled: int,
        draft: Draft,
        change: Change,
    ) -> Step:
        """The record of a round, counted in the statistics.

        Args:
            number: the round.
            seconds: what it took.
            prefilled: prompt tokens the target read in it.
            draft: what was proposed.
            change: what became of it.
        """
        origins = change.origins
        emitted = len(origins)
        accepted = origins.count(Origin.ACCEPTED)
        rejected = emitted > accepted and origins[-1] is Origin.CORRECTION
        step = Step(
            request=self.request,
            round=number,
            prefilled=prefilled,
            drafted=draft.tokens,
            accepted=accepted,
            evaluated=accepted + rejected,
            tokens=tuple(self.tokens[len(self.tokens) - emitted :]),
            origins=tuple(origins),
            pieces=tuple(change.pieces),
            seconds=seconds,
            finish_reason=self.finish_reason,
            error=self.error,
        )
        self.stats.add(step, self.elapsed)
        return step

    def completion(self) -> Completion:
        """What has been emitted.

        Raises:
            Exception: the error that ended it.
        """
        if self.error is not None:
            raise self.error
        assert self.finish_reason is not None
        tokens = tuple(self.tokens[self._prompt_length :])
        return Completion("".join(self._text), tokens, self.finish_reason, self.stats)


def _added(draft: Draft, verdict: Verdict) -> Origin:
    """What the token is that the target adds."""
    if verdict.accepted < len(draft.tokens):
        return Origin.CORRECTION
    return Origin.BONUS if draft.tokens else Origin.PLAIN
