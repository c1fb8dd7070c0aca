"""The identity that makes a rule exact, computed from what the rule does.

Let a draft begin with x_1..x_i and let S be the chance that a rule keeps at least these. The next
token must then have the target's distribution:

    sum over y of q(y) [P(keeps y too) at y + P(stops at i) * (its correction)] = S p,   [V]

that is, accepted mass plus rejected mass times correction equals p; here p and q are the rows of
token i+1. For i = 0 and the token rule it is the proof of Leviathan et al. (ICML 2023, appendix);
for the block rule S is P_i of Sun et al. (ICLR 2025). S must be the same whether the draft ends
behind x_i or goes on, and behind a draft that is kept whole the next token must have the target's
distribution as well. Where this holds for every beginning, the joint law of the text is the
target's.

Two readings of it: ``plan_error`` from the plans, over the whole vocabulary; ``rule_error`` from
the rules themselves with every way their coins can fall, over a few tokens of the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from draftproof import rules
from draftproof.noise import At, Purpose
from draftproof.types import Array, Draft, Verdict

Rule = Callable[[Sequence[Array], Draft, Any, int], Verdict]
TAIL = 2e-7  # mass of q whose tokens are not drafted one by one
PLANS = ("token", "block")


class SharedCoinError(Exception):
    """A rule uses a coin twice, or one that the draft was drawn with."""


class Rest(int):
    """A token that is not the drafted one; the chances of all it may be, [V]."""

    chances: Array


class Scripted:
    """The coins of one way through a rule, and the ways that branch off it.

    Args:
        path: outcomes of the first choices.
        draft: the tokens that a draw may hit, by position from 0.
    """

    def __init__(self, path: tuple[int, ...], draft: Sequence[int]) -> None:
        self.probability = 1.0
        self.untaken: list[tuple[int, ...]] = []
        self.shared = False
        self._path, self._draft = path, draft
        self._taken: tuple[int, ...] = ()
        self._asked: set[At] = set()

    def below(self, numerator: float, denominator: float, at: At) -> bool:
        """See ``Noise.below``."""
        self._note(at)
        chance = min(1.0, float(numerator) / float(denominator))
        return self._choose([chance, 1 - chance]) == 0

    def draw(self, weights: Array, at: At) -> int:
        """See ``Noise.draw``: the drafted token, or all the others at once."""
        self._note(at)
        chances = np.array(weights, dtype=np.float64)
        chances /= chances.sum()
        token = self._draft[at.position] if at.position < len(self._draft) else -1
        hit = 0.0 if token < 0 else float(chances[token])
        if self._choose([hit, 1 - hit]) == 0:
            return token
        if token >= 0:
            chances[token] = 0
            chances /= chances.sum()
        rest = Rest(-1)
        rest.chances = chances
        return rest

    def _note(self, at: At) -> None:
        """A coin serves once, and those of the draft are used up."""
        self.shared |= at in self._asked or at.purpose is Purpose.DRAFT
        self._asked.add(at)

    def _choose(self, chances: Sequence[float]) -> int:
        depth = len(self._taken)
        possible = [i for i, chance in enumerate(chances) if chance > 1e-15]
        if depth < len(self._path):
            outcome = self._path[depth]
        else:
            outcome = possible[0]
            self.untaken += [(*self._taken, other) for other in possible[1:]]
        self._taken = (*self._taken, outcome)
        self.probability *= chances[outcome]
        return outcome


def outcomes(rule: Rule, p: Sequence[Array], draft: Draft) -> Iterator[tuple[float, Verdict]]:
    """Every way the coins of a rule can fall, with its probability; coins must not be shared."""
    paths: list[tuple[int, ...]] = [()]
    while paths:
        coins = Scripted(paths.pop(), draft.tokens)
        verdict = rule(p, draft, coins, 0)
        if coins.shared:
            raise SharedCoinError
        yield coins.probability, verdict
        paths += coins.untaken


def rule_error(rule: Rule, p: Sequence[Array], q: Sequence[Array] | None, draft: Draft) -> float:
    """How far a rule is from the identity behind all beginnings of a draft.

    Args:
        rule: as in ``rules.RULES``.
        p: target distributions, k+1 rows of [V].
        q: k rows of [V]; None for a deterministic draft.
        draft: k tokens.

    Returns:
        The largest difference of a probability.

    Raises:
        SharedCoinError: its coins are not independent, so that no chance of it means anything.
    """
    errors = []
    for i in range(len(draft.tokens) + 1):
        kept, row = _behind(rule, p, q, draft.tokens[:i], ())
        errors += [_largest(row - kept * p[i])]
        if i < len(draft.tokens):
            survived, row = 0.0, np.zeros_like(row)
            proposals = _proposals(q, i, draft.tokens[i], len(row))
            for y in np.nonzero(proposals)[0].tolist():
                there, after = _behind(rule, p, q, draft.tokens[:i], (y,))
                survived += proposals[y] * there
                row += proposals[y] * after
            errors += [abs(survived - kept), _largest(row - survived * p[i])]
    return max(errors)


def _behind(
    rule: Rule,
    p: Sequence[Array],
    q: Sequence[Array] | None,
    beginning: tuple[int, ...],
    more: tuple[int, ...],
) -> tuple[float, Array]:
    """Chance that a beginning is kept, and the mass [V] of the token behind it."""
    i, tokens = len(beginning), (*beginning, *more)
    draft = Draft(tokens, None if q is None else q[: len(tokens)])
    kept, row = 0.0, np.zeros(len(p[0]))
    for chance, verdict in outcomes(rule, p[: len(tokens) + 1], draft):
        if verdict.accepted < i:
            continue
        kept += chance
        if verdict.accepted > i:
            row[tokens[i]] += chance
        elif isinstance(verdict.token, Rest):
            row += chance * verdict.token.chances
        else:
            row[verdict.token] += chance
    return kept, row


def _proposals(q: Sequence[Array] | None, i: int, token: int, width: int) -> Array:
    """What a draft's token i is drawn from, [V]."""
    if q is not None:
        return q[i]
    certain = np.zeros(width)
    certain[token] = 1
    return certain


def plan_error(name: str, p: Sequence[Array], q: Sequence[Array], draft: Draft, i: int) -> float:
    """How far a plan is from the identity behind i drafts, over the whole vocabulary.

    Every token that the draft model may propose there is planned for by itself, down to a tail of
    mass ``TAIL``.

    Args:
        name: "token" or "block".
        p: target distributions, k+1 rows of [V].
        q: k rows of [V].
        draft: k tokens.
        i: how many are kept, from 0 to k-1.

    Returns:
        The largest difference of a probability.
    """
    make = getattr(rules, f"{name}_plan")
    row = np.zeros(len(p[i]))
    stopped = 0.0
    for y in _worth_drafting(q[i]):
        plan = make(p[: i + 2], Draft((*draft.tokens[:i], y), q[: i + 1]))
        keeps, stops = _chances(name, plan, i)
        row[y] += float(q[i][y]) * keeps
        stopped += float(q[i][y]) * stops
    survived = float(row.sum()) + stopped
    correction = np.asarray(plan.weights(i), dtype=np.float64)
    row += stopped * correction / correction.sum()
    return _largest(row - survived * np.asarray(p[i], dtype=np.float64))


def _worth_drafting(row: Array) -> list[int]:
    """The ids of a row [V], the most probable first, all but a tail of mass ``TAIL``."""
    order = np.argsort(-row)
    mass = np.cumsum(row[order], dtype=np.float64)
    count = int(np.searchsorted(mass, mass[-1] - TAIL)) + 1
    return [y for y in order[:count].tolist() if row[y] > 0]


def _chances(name: str, plan: rules.Plan, i: int) -> tuple[float, float]:
    """Chances that a plan for i+1 drafts keeps all of them, and that it keeps all but the last.

    The token rule keeps drafts up to the first coin that fails, the block rule up to the last one
    that succeeds.
    """
    pairs = zip(plan.numerators, plan.denominators, strict=True)
    coins = [min(1.0, float(n) / float(d)) for n, d in pairs]
    last = coins[i]
    if name == "token":
        before = prod(coins[:i])
        return before * last, before * (1 - last)
    return last, (1 - last) * (coins[i - 1] if i else 1.0)


def _largest(row: Array) -> float:
    return float(np.abs(row).max())


def reduced(
    p: Sequence[Array], q: Sequence[Array] | None, draft: Draft, size: int
) -> tuple[list[Array], list[Array] | None, Draft]:
    """The same rows over the most probable tokens, the drafted ones, and one token for the rest."""
    every = [*p, *(q or ())]
    weight = np.max(every, axis=0)
    ids = np.argsort(-weight)[:size].tolist()
    ids = sorted({*ids, *draft.tokens})

    def short(row: Array) -> Array:
        row = np.asarray(row, dtype=np.float64)
        kept = row[ids]
        kept = np.append(kept, max(0.0, row.sum() - kept.sum()))
        return kept / kept.sum()

    tokens = tuple(ids.index(token) for token in draft.tokens)
    rows = None if q is None else [short(row) for row in q]
    return [short(row) for row in p], rows, Draft(tokens, rows)
