"""One running request: its tokens, its text, its budget, and how a verdict is committed to it.

Not here: models and caches; ``rounds.py`` moves them along.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence as Many
from contextlib import suppress

from draftproof.change import Change, origin
from draftproof.control.turn import LONGEST
from draftproof.drafters.prediction import Prediction
from draftproof.errors import DraftproofError
from draftproof.models import Capabilities
from draftproof.noise import noise_for
from draftproof.params import SamplingParams
from draftproof.processors import constraint_for, processors_for
from draftproof.sampling import logprob
from draftproof.stats import Completion, Stats
from draftproof.text import TextStream, Tokenizer
from draftproof.types import (
    Array,
    Draft,
    FinishReason,
    Origin,
    Piece,
    Seconds,
    Source,
    Speculation,
    Step,
    TokenLogprob,
    Verdict,
)

_owners = itertools.count()


class Sequence:
    """A request from ``Engine.submit`` to its end.

    Args:
        request: its id.
        prompt: token ids, at least one, fewer than the context.
        params: sampling options.
        speculation: how it is speculated on.
        tokenizer: the target's.
        capabilities: the target's.
        prediction: tokens the answer is expected to have.

    Raises:
        ParameterError: a seed together with a rule that would let the drafter change the text, a
            token that does not exist, or a grammar that cannot be used.
    """

    def __init__(
        self,
        request: int,
        prompt: list[int],
        params: SamplingParams,
        speculation: Speculation,
        tokenizer: Tokenizer,
        capabilities: Capabilities,
        prediction: Many[int] = (),
    ) -> None:
        self.request = request
        self.owner = next(_owners)  # for drafters, which may serve one engine after another
        self.tokens = prompt
        self.params = params
        self.rule = speculation.rule_for(params)
        self.noise = noise_for(params.seed)
        fixed = speculation.draft_length
        self.draft_length, self.auto = (LONGEST, True) if fixed is None else (fixed, False)
        own_ends = frozenset() if params.ignore_eos else tokenizer.end_tokens
        self.end_tokens = own_ends | set(params.stop_token_ids)
        self._constraint = constraint_for(params, tokenizer, capabilities.vocabulary)
        self.processors = processors_for(
            *(params, prompt, tokenizer, capabilities.vocabulary),
            *(self.end_tokens, self._constraint),
        )
        self._prediction = Prediction(prediction) if prediction else None
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
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: list[TokenLogprob] = []

    @property
    def pending(self) -> int:
        """Tokens the target has not read: 1 between rounds, more while the prompt is read."""
        return len(self.tokens) - self.cached

    @property
    def room(self) -> int:
        """Most drafts worth proposing: the round adds one token of its own to them."""
        return max(0, min(self.draft_length, self.left - 1))

    @property
    def left(self) -> int:
        """Most tokens it may still get."""
        return self._limit - len(self.tokens)

    def free_draft(self) -> Draft:
        """What its grammar forces next, or else its predicted text; empty where neither knows."""
        length = self.left - 1 if self.draft_length else 0
        if length > 0 and self._constraint is not None:
            with suppress(DraftproofError):  # it is told where the row is asked for
                tokens = self._constraint.forced(self.answer)[:length]
                if tokens:
                    return Draft(tokens, source=Source.GRAMMAR)
        if length > 0 and self._prediction is not None:
            tokens = self._prediction.propose(self.answer, length)
            if tokens:
                return Draft(tokens, source=Source.PREDICTION)
        return Draft()

    @property
    def answer(self) -> list[int]:
        """The tokens behind the prompt."""
        return self.tokens[self._prompt_length :]

    def prompt_part(self, feed: int) -> int:
        """How many of the next ``feed`` tokens to be read belong to the prompt."""
        return max(0, min(feed, self._prompt_length - self.cached))

    def commit(self, draft: Draft, verdict: Verdict, logits: Array) -> Change:
        """Append what the verdict leaves of the draft, token by token, up to a stop.

        Args:
            draft: k tokens.
            verdict: what a rule makes of them.
            logits: the target's, [k+1, V].
        """
        accepted = draft.tokens[: verdict.accepted]
        pieces: list[Piece] = []
        origins: list[Origin] = []
        logprobs: list[TokenLogprob] = []
        added = (verdict.token,) if verdict.dead_end is None else ()
        for row, token in enumerate((*accepted, *added)):
            origins.append(origin(draft, verdict, row))
            if self.params.logprobs is not None:
                logprobs.append(logprob(logits[row], token, self.params.logprobs))
            pieces += self._append(token, origins[-1])
            if self.finish_reason:
                break
        if verdict.dead_end and not self.finish_reason:
            self.finish_reason, self.error = "error", verdict.dead_end
        pieces += self._stream.finish() if self.finish_reason else []
        return self._noted(Change(origins, pieces, logprobs))

    def read(self, feed: int, logits: Array) -> list[TokenLogprob]:
        """Take note of the prompt's log-probabilities, where they are wanted.

        Args:
            feed: tokens that were read.
            logits: the target's, row i after the i-th of them.
        """
        count = self.params.prompt_logprobs
        if count is None or not self.scores_prompt:
            return []
        after = self.tokens[self.cached + 1 : min(self.cached + feed + 1, self._prompt_length)]
        again = max(0, len(self._prompt_logprobs) - self.cached)  # where a cache was lost
        found = [logprob(logits[i], token, count) for i, token in enumerate(after) if i >= again]
        self._prompt_logprobs += found
        return found

    @property
    def scores_prompt(self) -> bool:
        """Whether the target's logits are wanted for its prompt."""
        return self.params.prompt_logprobs is not None and self.cached < self._prompt_length

    def end(self, reason: FinishReason, error: Exception | None = None) -> Change:
        """End it from outside; text that was held back comes out."""
        self.finish_reason, self.error = reason, error
        self.stats.total = self.elapsed
        return self._noted(Change(pieces=self._stream.finish()))

    def _noted(self, change: Change) -> Change:
        self._text += [piece.text for piece in change.pieces]
        self._logprobs += change.logprobs
        return change

    def _append(self, token: int, origin: Origin) -> list[Piece]:
        self.tokens.append(token)
        if token in self.end_tokens:
            self.finish_reason = "stop"
            return []
        stops = len(self.tokens) - self._prompt_length >= self.params.min_tokens
        pieces = self._stream.push(token, origin, stops)
        if self._stream.stopped or self._complete():
            self.finish_reason = "stop"
        elif self.error:
            self.finish_reason = "error"
        elif not self.left:
            self.finish_reason = "length"
        return pieces

    def _complete(self) -> bool:
        """Whether its grammar has nothing more to say; notes where it can go no further."""
        try:
            return self._constraint is not None and self._constraint.complete(self.answer)
        except DraftproofError as error:
            self.error = error
            return False

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
        drafted = draft.tokens if draft.source is Source.DRAFTER else ()
        accepted = origins.count(Origin.ACCEPTED)
        rejected = emitted > accepted and origins[-1] is Origin.CORRECTION
        step = Step(
            request=self.request,
            round=number,
            prefilled=prefilled,
            drafted=drafted,
            predicted=len(draft.tokens) if draft.source is Source.PREDICTION else 0,
            accepted=accepted,
            evaluated=accepted + rejected,
            tokens=tuple(self.tokens[len(self.tokens) - emitted :]),
            origins=tuple(origins),
            pieces=tuple(change.pieces),
            logprobs=tuple(change.logprobs),
            prompt_logprobs=tuple(change.prompt_logprobs),
            seconds=seconds,
            forecast=draft.forecast,
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
        return Completion(
            *("".join(self._text), tuple(self.answer), self.finish_reason, self.stats),
            logprobs=_asked(self.params.logprobs, self._logprobs),
            prompt_logprobs=_asked(self.params.prompt_logprobs, self._prompt_logprobs),
        )


def _asked(count: int | None, found: list[TokenLogprob]) -> tuple[TokenLogprob, ...] | None:
    return None if count is None else tuple(found)
