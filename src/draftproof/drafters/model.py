"""Drafts drawn from a second, cheaper model of the same tokenizer."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

from draftproof.drafters import DraftRequest, Record
from draftproof.drafters.shared import Padded, Shared
from draftproof.errors import ModelError, PairError
from draftproof.models import Chunk, Model
from draftproof.noise import At, Purpose
from draftproof.params import SamplingParams
from draftproof.sampling import distribution, greedy
from draftproof.types import Array, Draft

logger = logging.getLogger("draftproof")

NATURAL = SamplingParams(temperature=1.0)  # a model's own distribution


class DraftModel(ABC):
    """Runs a draft model, all sequences together, one token at a time.

    It follows a guide (see ``GuidedDrafter``), if its requests have one: before each token it asks
    whether to go on, and then nothing is drawn from the next row yet. What the model reads and how
    its rows become drafts is its subclasses' matter.

    Args:
        model: the draft model; the drafter closes it.
        target: the model to draft for.

    Raises:
        PairError: fewer sequences than the target, or a cache that cannot be rolled back.
    """

    reads = True

    def __init__(self, model: Model, target: Model) -> None:
        check_caches(model, target)
        self.name = model.name
        self.model = model
        self._records: dict[int, Record] = {}
        self._told: dict[int, int] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """See ``Drafter.propose``.

        A sequence that outgrew the draft model's context gets no draft, and what a draft model
        that fails has not drafted yet is left out: its failures never cost the target's text.
        """
        runs = [self._begin(request) for request in requests]
        active = [run for run in runs if run.pending]
        while active:
            self._advance(active)
            active = [run for run in active if run.pending]
        return [run.draft() for run in runs]

    def known(self, request: DraftRequest) -> int:
        """See ``GuidedDrafter.known``."""
        record, tokens = self._text(request)
        return record.agree(request._replace(tokens=tokens))

    def _advance(self, active: Sequence[Run]) -> None:
        """One pass of the draft model: one more token for each."""
        try:
            rows = self.model.forward([run.chunk() for run in active])
        except ModelError as error:
            for run in active:
                run.pending = []
                self._tell(run.request, f"no draft, {error}")
            return
        drawing: list[Run] = []
        for run, row in zip(active, rows, strict=True):
            run.record.tokens.extend(run.pending)
            run.pending = []
            try:
                drawing += [run] if run.see(row) else []
            except ModelError as error:
                self._tell(run.request, f"no draft, {error}")
        for run, more in zip(drawing, _further(drawing), strict=True):
            run.draw(more)

    @abstractmethod
    def _read(self, request: DraftRequest, record: Record) -> Sequence[int]:
        """The committed tokens, as the draft model reads them."""

    @abstractmethod
    def _run(
        self, request: DraftRequest, record: Record, pending: Sequence[int], length: int
    ) -> Run:
        """What drafts for one sequence in one round."""

    def _text(self, request: DraftRequest) -> tuple[Record, Sequence[int]]:
        """What is cached of a sequence, and its committed tokens."""
        record = self._records.setdefault(request.seq, Record())
        record.cut(self.model.length(request.seq))  # whoever measured the model has emptied it
        return record, self._read(request, record)

    def _begin(self, request: DraftRequest) -> Run:
        """Bring the record and the cache in line with the committed tokens."""
        record, tokens = self._text(request)
        room = self.model.capabilities.context_length - len(tokens) + 1
        if room <= 0:
            context = self.model.capabilities.context_length
            self._tell(
                request,
                f"a text of {len(tokens)} tokens has outgrown its context of {context}: "
                "plain decoding from here",
            )
            return self._run(request, record, [], 0)
        length = min(request.length, room) if tokens else 0
        # To draft, the newest token must go through the model again if it already did.
        agreed = record.agree(request._replace(tokens=tokens))
        keep = self._cut(request.seq, record, min(agreed, len(tokens) - (length > 0)))
        return self._run(request, record, tokens[keep:], length)

    def _cut(self, seq: int, record: Record, length: int) -> int:
        """Forget what comes behind ``length`` tokens; what is left may be less."""
        record.cut(length)
        try:
            self.model.truncate(seq, length)
        except ModelError:  # a window that has moved on: it can only begin again
            record.cut(0)
            self.model.truncate(seq, 0)
        return len(record.tokens)

    def _tell(self, request: DraftRequest, message: str) -> None:
        """Once for each request."""
        if self._told.get(request.seq) != request.owner:
            self._told[request.seq] = request.owner
            logger.warning("%s: %s", self.name, message)

    def close(self) -> None:
        """See ``Drafter.close``."""
        self.model.close()


class ModelDrafter(DraftModel):
    """A draft model of the target's own tokenizer.

    Args:
        model: the draft model; the drafter closes it.
        target: the model to draft for.

    Raises:
        PairError: another tokenizer, fewer sequences than the target, or a cache that cannot be
            rolled back.
    """

    def __init__(self, model: Model, target: Model) -> None:
        super().__init__(model, target)
        check_tokenizers(model, target)
        self._shared = Padded(target.capabilities.vocabulary)

    def _read(self, request: DraftRequest, record: Record) -> Sequence[int]:
        return request.tokens

    def _run(
        self, request: DraftRequest, record: Record, pending: Sequence[int], length: int
    ) -> Run:
        return Run(request, record, pending, length, self._shared)


class Run:
    """One sequence's draft in the making.

    Args:
        request: what the target asks for.
        record: what the draft model has read of it.
        pending: tokens the draft model has to read next.
        length: most tokens to draft.
        shared: what may be drafted. It comes before the sampling options and the draw: the rows
            are what was drawn from.
    """

    def __init__(
        self,
        request: DraftRequest,
        record: Record,
        pending: Sequence[int],
        length: int,
        shared: Shared,
    ) -> None:
        self.request = request
        self.record = record
        self.pending = pending
        self._length = length
        self._shared = shared
        self._tokens: list[int] = []
        self._rows: list[Array] = []
        self._greedy = request.params.greedy
        self._seen: Array = None
        self._best = -1

    def chunk(self) -> Chunk:
        """What the draft model reads next."""
        return Chunk(self.request.seq, self.pending, int(self._length > 0))

    def see(self, logits: Array) -> bool:
        """Take in logits [1, V of the draft model]; whether there is a token to draft from them.

        Raises:
            ModelError: they are not finite.
        """
        self._seen = self._look(logits) if self._length else None
        if self._seen is not None and self._greedy:
            (self._best,) = greedy(self._seen)
        return self._seen is not None

    def _look(self, logits: Array) -> Array | None:
        """The row [1, V] to draw from, logits where greedy; None where no token is left."""
        shared, processors = self._shared.share(logits), self.request.processors
        if shared is not None and processors is not None:
            shared, nothing_left = processors.apply(shared, self._tokens)
            if nothing_left:
                return None
        if shared is None or self._greedy:
            return shared
        return distribution(shared, self.request.params)

    @property
    def top(self) -> float:
        """Probability of the likeliest token in what was seen last."""
        row = distribution(self._seen, NATURAL)[0] if self._greedy else self._seen[0]
        return float(row[row.argmax()])

    def draw(self, more: int) -> None:
        """Draft a token from what was seen, unless ``more`` is 0; read it, unless it is 1."""
        token = self._next() if more else None
        if more > 1 and token is not None:
            self.pending = [token]

    def _next(self) -> int | None:
        """Draft a token; what the draft model reads next, if it goes on."""
        token = self._best if self._greedy else self._drawn()
        self._tokens.append(token)
        done = len(self._tokens) == self._length or token in self.request.end_tokens
        return None if done else self._shared.draft(token)

    def _drawn(self) -> int:
        (row,) = self._seen
        if self.request.params.seed is None:
            self._rows.append(row)
        start = len(self.request.tokens)
        at = At(start, start + len(self._tokens), Purpose.DRAFT)
        return self.request.noise.draw(row, at)

    def draft(self) -> Draft:
        """The tokens, with their rows unless greedy or seeded: those are deterministic."""
        return Draft(tuple(self._tokens), self._rows or None)


def _further(runs: Sequence[Run]) -> list[int]:
    """How many more tokens each is to draft, where a guide decides; else as many as it may."""
    guide = runs[0].request.guide if runs else None
    if guide is None:
        return [run.request.length for run in runs]
    return guide([(run.request.seq, run.top) for run in runs])


def check_caches(model: Model, target: Model) -> None:
    """Whether the draft model's caches can follow the target's.

    Raises:
        PairError: why they cannot.
    """
    if model is target:
        raise PairError(f"{model.name} cannot draft for itself: load it a second time")
    ours, theirs = model.capabilities, target.capabilities
    if not ours.rollback:
        raise PairError(f"{model.name} cannot draft: {ours.no_rollback_reason}")
    if ours.max_sequences < theirs.max_sequences:
        raise PairError(
            f"{model.name} holds {ours.max_sequences} sequences and {target.name} "
            f"{theirs.max_sequences}: load the draft model with as many"
        )


def check_tokenizers(model: Model, target: Model) -> None:
    """Whether both have the same tokens.

    One family pads its vocabularies to different sizes, so the tokens count and not the size: ids
    that only one of them has are never proposed, or cut before the draw.

    Raises:
        PairError: the first token that differs.
    """
    pairs = zip(model.tokenizer.vocabulary(), target.tokenizer.vocabulary(), strict=False)
    for token, (mine, wanted) in enumerate(pairs):
        if mine != wanted:
            raise PairError(
                f"{model.name} has another tokenizer than {target.name} (token {token} is "
                f"{mine!r} there, {wanted!r} here): take a draft model of the same family, "
                "or add --cross-vocabulary"
            )
