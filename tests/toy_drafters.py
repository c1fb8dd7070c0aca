"""Drafters good and bad: a copy, a stranger, liars about length, and an oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from draftproof import (
    Draft,
    DraftRequest,
)
from draftproof.drafters.lookup import LookupDrafter
from draftproof.drafters.model import ModelDrafter
from toys import END, SIZE, Toy, oracle, table


class Script:
    """A drafter that proposes what a function says, and remembers what it was asked."""

    name = "script"

    def __init__(self, function: Callable[[DraftRequest], Iterable[int] | Draft]):
        self.function = function
        self.requests: list[DraftRequest] = []
        self.closed = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.requests += [r._replace(tokens=list(r.tokens)) for r in requests]
        drafts = [self.function(request) for request in requests]
        return [d if isinstance(d, Draft) else Draft(tuple(d)) for d in drafts]

    def close(self) -> None:
        self.closed += 1


def lookup(target: Toy) -> LookupDrafter:
    return LookupDrafter(min_match=1)


def other(target: Toy) -> ModelDrafter:
    """Another table as the draft model."""
    return _draft_model(target, table(99))


def same(target: Toy) -> ModelDrafter:
    """The target as its own draft model."""
    return _draft_model(target, {e: np.exp(row) for e, row in target._logits.items()})


def _draft_model(target: Toy, rows: object) -> ModelDrafter:
    can = target.capabilities
    return ModelDrafter(Toy(0, can.context_length, can.max_sequences, table=rows), target)


def wrong(target: Toy) -> Script:
    """Always another token than the greedy one, at full length."""
    return Script(lambda r: _continue(target, r, lambda t: (t + 1) % SIZE))


def right(target: Toy) -> Script:
    """Always what the target will say."""
    return Script(lambda r: _continue(target, r, lambda t: t))


def _continue(target: Toy, request: DraftRequest, change: Callable[[int], int]) -> list[int]:
    """The target's own continuation, each token changed."""
    if not request.length:
        return []
    params = replace(request.params, stop=(), ignore_eos=True, max_tokens=request.length)
    if not params.greedy and params.seed is None:
        params = replace(params, seed=0)
    tokens, _, _ = oracle(target, request.tokens, params)
    return [change(token) for token in tokens]


def scattered(target: Toy) -> Script:
    """Random tokens, random lengths."""
    rng = np.random.default_rng(3)
    return Script(lambda r: rng.integers(0, SIZE, rng.integers(0, r.length + 1)).tolist())


def ends(target: Toy) -> Script:
    return Script(lambda r: [END] * r.length)


def zeros(target: Toy) -> Script:
    return Script(lambda r: [0] * r.length)


def short(target: Toy) -> Script:
    """Right, but one token only."""
    return Script(lambda r: _continue(target, r, lambda t: t)[:1])


def nothing(target: Toy) -> Script:
    return Script(lambda r: [])


def wild_rows(target: Toy) -> Script:
    """Drawn from random rows that have nothing to do with the target; the rows are honest."""
    rng = np.random.default_rng(4)

    def draw(request: DraftRequest) -> Draft:
        rows = rng.dirichlet([0.3] * SIZE, request.length)
        tokens = tuple(int(rng.choice(SIZE, p=row)) for row in rows)
        return Draft(tokens, rows if tokens else None)

    return Script(draw)


DRAFTERS = {
    f.__name__: f
    for f in (lookup, other, same, wrong, right, scattered, ends, zeros, short, nothing, wild_rows)
}
