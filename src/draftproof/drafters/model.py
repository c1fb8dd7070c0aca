"""Drafts drawn from a second, cheaper model of the same tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from array_api_compat import array_namespace

from draftproof.drafters import DraftRequest, Record
from draftproof.errors import ModelError, PairError
from draftproof.models import Chunk, Model
from draftproof.noise import At, Purpose
from draftproof.sampling import distribution, greedy
from draftproof.types import Array, Draft

logger = logging.getLogger("draftproof")


class ModelDrafter:
    """Runs a draft model, all sequences together, one token at a time.

    Args:
        model: the draft model; the drafter closes it.
        target: the model to draft for.

    Raises:
        PairError: another tokenizer, fewer sequences than the target, or a cache that cannot be
            rolled back.
    """

    def __init__(self, model: Model, target: Model) -> None:
        check_pair(model, target)
        self.name = model.name
        self._model = model
        self._vocabulary = target.capabilities.vocabulary
        self._records: dict[int, Record] = {}
        self._told: dict[int, int] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """See ``Drafter.propose``. A sequence that outgrew the draft model's context gets none."""
        runs = [self._begin(request) for request in requests]
        active = [run for run in runs if run.pending]
        while active:
            rows = self._model.forward([run.chunk() for run in active])
            for run, row in zip(active, rows, strict=True):
                run.record.tokens.extend(run.pending)
                run.take(row)
            active = [run for run in active if run.pending]
        return [run.draft() for run in runs]

    def _begin(self, request: DraftRequest) -> _Run:
        """Bring the record and the cache in line with the committed tokens."""
        record = self._records.setdefault(request.seq, Record())
        room = self._model.capabilities.context_length - len(request.tokens) + 1
        if room <= 0:
            self._tell(request)
            return _Run(request, record, [], 0, self._vocabulary)
        length = min(request.length, room)
        # To draft, the newest token must go through the model again if it already did.
        keep = min(record.agree(request), len(request.tokens) - (length > 0))
        keep = self._cut(request.seq, record, keep)
        return _Run(request, record, request.tokens[keep:], length, self._vocabulary)

    def _cut(self, seq: int, record: Record, length: int) -> int:
        """Forget what comes behind ``length`` tokens; what is left may be less."""
        record.cut(length)
        try:
            self._model.truncate(seq, length)
        except ModelError:  # a window that has moved on: it can only begin again
            record.cut(0)
            self._model.truncate(seq, 0)
        return len(record.tokens)

    def _tell(self, request: DraftRequest) -> None:
        if self._told.get(request.seq) != request.owner:
            self._told[request.seq] = request.owner
            logger.warning(
                "a text of %d tokens has outgrown the context of %s (%d tokens): "
                "plain decoding from here",
                len(request.tokens),
                self.name,
                self._model.capabilities.context_length,
            )

    def close(self) -> None:
        """See ``Drafter.close``."""
        self._model.close()


class _Run:
    """One sequence's draft in the making."""

    def __init__(
        self,
        request: DraftRequest,
        record: Record,
        pending: Sequence[int],
        length: int,
        vocabulary: int,
    ) -> None:
        self.request = request
        self.record = record
        self.pending = pending  # tokens the draft model has to read next
        self._length = length
        self._vocabulary = vocabulary
        self._tokens: list[int] = []
        self._rows: list[Array] = []

    def chunk(self) -> Chunk:
        return Chunk(self.request.seq, self.pending, int(self._length > 0))

    def take(self, logits: Array) -> None:
        """Draw the next token from logits [1, V of the draft model], or be done."""
        self.pending = []
        if not self._length:
            return
        try:
            token = self._draw(logits[:, : self._vocabulary])
        except ModelError as error:
            logger.warning("no draft for a text of %d tokens: %s", len(self.record.tokens), error)
            return
        self._tokens.append(token)
        if len(self._tokens) < self._length and token not in self.request.end_tokens:
            self.pending = [token]

    def _draw(self, logits: Array) -> int:
        params = self.request.params
        if params.greedy:
            return greedy(logits)[0]
        row = _widen(distribution(logits, params)[0], self._vocabulary)
        if params.seed is None:
            self._rows.append(row)
        start = len(self.request.tokens)
        at = At(start, start + len(self._tokens), Purpose.DRAFT)
        return self.request.noise.draw(row, at)

    def draft(self) -> Draft:
        """The tokens, with their rows unless greedy or seeded: those are deterministic."""
        return Draft(tuple(self._tokens), self._rows or None)


def _widen(row: Array, vocabulary: int) -> Array:
    """A row [V of the draft model] on the target's vocabulary: it never proposes the rest."""
    missing = vocabulary - row.shape[0]
    if not missing:
        return row
    xp = array_namespace(row)
    return xp.concat([row, xp.zeros(missing, dtype=row.dtype, device=row.device)])


def check_pair(model: Model, target: Model) -> None:
    """Whether ``model`` can draft for ``target``.

    One family pads its vocabularies to different sizes, so the tokens count and not the size: ids
    that only one of them has are never proposed, or cut before the draw.

    Raises:
        PairError: why it cannot.
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
    pairs = zip(model.tokenizer.vocabulary(), target.tokenizer.vocabulary(), strict=False)
    for token, (mine, wanted) in enumerate(pairs):
        if mine != wanted:
            raise PairError(
                f"{model.name} has another tokenizer than {target.name} (token {token} is "
                f"{mine!r} there, {wanted!r} here): take a draft model of the same family"
            )
