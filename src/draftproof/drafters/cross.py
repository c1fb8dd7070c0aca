"""Drafts from a model of another tokenizer, by two methods.

- *tokens*: the draft model's distribution, restricted to the tokens that both vocabularies have.
  Drafts carry rows over the target's vocabulary, so that every rule judges them, and seeded ones
  are drawn with the noise of the target's own token ids. The sampling options act on the
  restricted distribution, as they act on the target's: q is what is drawn from.
- *text*: the draft model's most probable continuation of the text, written in the target's tokens.
  These drafts are deterministic. Whatever the draft model's tokens, the target's own appear.

Both are in Timor et al., "Accelerating LLM inference with lossless speculative decoding algorithms
for heterogeneous vocabularies", ICML 2025 (TLI and SLEM).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from draftproof.drafters import DraftRequest, Record
from draftproof.drafters.cross_bytes import Retelling, Vocabulary
from draftproof.drafters.cross_tokens import Intersection
from draftproof.drafters.model import DraftModel, Run, check_tokenizers
from draftproof.errors import PairError, ParameterError
from draftproof.models import Model
from draftproof.types import CROSS_VOCABULARY, Array, Draft

logger = logging.getLogger("draftproof")

TOKENS, TEXT = "tokens", "text"
TRIES = 8  # rounds each method gets before one is preferred
PROBE = 32  # every so many rounds the other one is tried again
MEMORY = 32  # rounds a mean looks back


class CrossVocabularyDrafter(DraftModel):
    """A draft model of any tokenizer.

    Args:
        model: the draft model; the drafter closes it.
        target: the model to draft for.
        method: "tokens", "text", or "auto": both are tried, then the one that has earned more
            accepted drafts per round is kept; greedy, seeded and other requests count apart.

    Raises:
        PairError: fewer sequences than the target, or a cache that cannot be rolled back.
        ParameterError: no such method.
    """

    def __init__(self, model: Model, target: Model, method: str = "auto") -> None:
        if method not in CROSS_VOCABULARY:
            raise ParameterError(
                f"cross_vocabulary must be one of {', '.join(CROSS_VOCABULARY)}, not {method!r}"
            )
        super().__init__(model, target)
        self._method = method
        self._target, self._draft = Vocabulary(target), Vocabulary(model)
        self._shared = Intersection(self._target, self._draft)
        self._retellings: dict[int, Retelling] = {}
        self._choices: dict[tuple[bool, bool], Choice] = {}
        self._last: dict[int, _Try] = {}
        self._say_what_is_shared(model, target)

    def _say_what_is_shared(self, model: Model, target: Model) -> None:
        logger.info(
            "%s shares %d of its %d tokens with %s",
            *(self.name, len(self._shared), len(self._draft.pieces), target.name),
        )
        mine, theirs = (set(b"".join(v.pieces)) for v in (self._draft, self._target))
        if (self._method == TOKENS and not self._shared) or not mine & theirs:
            logger.warning(
                "%s and %s have no token in common: nothing will be drafted, leave --draft out",
                *(self.name, target.name),
            )
        if _same(model, target):
            logger.warning(
                "%s has the tokenizer of %s: without --cross-vocabulary it drafts as well, "
                "with less work",
                *(self.name, target.name),
            )

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """See ``Drafter.propose``. A sequence that outgrew the draft model's context gets none."""
        for request in requests:
            self._learn(request)
        drafts = super().propose(requests)
        for request, draft in zip(requests, drafts, strict=True):
            if request.seq in self._last:
                last = self._last[request.seq]
                self._last[request.seq] = last._replace(drafted=draft.tokens)
        return drafts

    def _learn(self, request: DraftRequest) -> None:
        """Count what became of the last draft, by the tokens that have been committed since."""
        last = self._last.pop(request.seq, None)
        if last and last.owner == request.owner:
            pairs = zip(last.drafted, request.tokens[last.start :], strict=False)
            agree = [a == b for a, b in pairs]
            last.choice.learn(last.method, [*agree, False].index(False))

    def _read(self, request: DraftRequest, record: Record) -> Sequence[int]:
        new = Retelling(self._target, self._draft)
        retelling = self._retellings.setdefault(request.seq, new)
        kept = retelling.update(request)
        if kept < len(record.tokens):
            record.cut(kept)  # new tokens merged with the last ones
        return retelling.tokens

    def _run(
        self, request: DraftRequest, record: Record, pending: Sequence[int], length: int
    ) -> Run:
        if not length:
            return Run(request, record, pending, length, self._shared)
        method = self._method if self._method != "auto" else self._choose(request)
        if method == TOKENS:
            return Run(request, record, pending, length, self._shared)
        return TextRun(request, record, pending, length, self._shared, self._target, self._draft)

    def _choose(self, request: DraftRequest) -> str:
        params = request.params
        choice = self._choices.setdefault((params.greedy, params.seed is None), Choice())
        method = choice.next()
        self._last[request.seq] = _Try(request.owner, len(request.tokens), choice, method)
        return method

    def close(self) -> None:
        """See ``Drafter.close``."""
        for choice in self._choices.values():
            logger.info("accepted drafts per round of %s: %s", self.name, choice)
        self._choices.clear()
        super().close()


class TextRun(Run):
    """A draft in text: the most probable tokens, whatever the sampling options.

    Any proposal is exact; the most probable one is what a draw of the target most likely equals.
    """

    def __init__(
        self,
        request: DraftRequest,
        record: Record,
        pending: Sequence[int],
        length: int,
        shared: Intersection,
        target: Vocabulary,
        draft: Vocabulary,
    ) -> None:
        super().__init__(request, record, pending, length, shared)
        self._ends = shared.ends
        self._target, self._draft = target, draft
        self._drafted: list[int] = []
        self._greedy = True

    def _look(self, logits: Array) -> Array:
        return logits

    def _next(self) -> int | None:
        """Take the most probable token; a control token ends the draft."""
        token = self._best
        self._drafted.append(token)
        goes_on = len(self._drafted) < self._length and self._draft.pieces[token]
        return token if goes_on else None

    def draft(self) -> Draft:
        """The text in the target's tokens, and the end token where it ends."""
        data = self._draft.join(self._drafted)
        tokens = self._target.go_on(self.request.tokens, data) if data else []
        end = self._ends.get(self._drafted[-1]) if self._drafted else None
        if end is not None and self._target.join(tokens) == data:
            tokens.append(end)
        return Draft(tuple(tokens[: self.request.length]))


class Choice:
    """Which method earns more accepted drafts per round."""

    def __init__(self) -> None:
        self._rounds = 0
        self._counts = {TOKENS: 0, TEXT: 0}
        self._means = {TOKENS: 0.0, TEXT: 0.0}

    def next(self) -> str:
        """The method of the next round. It knows the past alone, so it may decide."""
        self._rounds += 1
        rarer, _ = sorted(self._counts, key=lambda method: self._counts[method])
        if self._counts[rarer] < TRIES:
            return rarer
        worse, better = sorted(self._means, key=lambda method: self._means[method])
        return worse if self._rounds % PROBE == 0 else better

    def learn(self, method: str, accepted: int) -> None:
        """Count a round."""
        self._counts[method] += 1
        share = min(self._counts[method], MEMORY)
        self._means[method] += (accepted - self._means[method]) / share

    def __str__(self) -> str:
        return ", ".join(
            f"{method} {self._means[method]:.2f} ({self._counts[method]} rounds)"
            for method in self._means
        )


class _Try(NamedTuple):
    """A draft whose outcome is not known yet."""

    owner: int
    start: int
    choice: Choice
    method: str
    drafted: tuple[int, ...] = ()


def _same(model: Model, target: Model) -> bool:
    try:
        check_tokenizers(model, target)
    except PairError:
        return False
    return True
