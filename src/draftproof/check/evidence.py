"""Tests on chance that may be looked at after every draw: e-processes.

The null hypothesis gives every cell a known chance. The evidence is the likelihood of the counts
under a Dirichlet mixture around these chances, over their likelihood under the null. Under the null
its expectation is at most 1 at every moment, so it ever reaches 1 / alpha with a probability of at
most alpha (Ville's inequality; Ramdas, Grünwald, Vovk and Shafer, "Game-theoretic statistics and
safe anytime-valid inference", Statistical Science 2023). One may therefore stop at any time.

Where the chances are known up to rounding alone, the null is every law below an envelope, the
larger of two measured chances for each cell: the evidence divides by the envelope, and the
same inequality holds for all of these laws.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, lgamma, log

import numpy as np

from draftproof.check.findings import ALPHA
from draftproof.types import Array

PRIORS = (8.0, 64.0, 512.0, 4096.0)  # weight of the null: for large to tiny departures
LEAST = 1e-12  # a chance of 0 would make one rounding error infinite evidence
_lgamma = np.vectorize(lgamma, otypes=[float])


class Evidence:
    """Evidence against known chances of C cells.

    Args:
        chances: [C], adding up to 1.
        envelope: most that rounding may make of each chance, [C]; the chances if not given.
    """

    def __init__(self, chances: Array, envelope: Array | None = None) -> None:
        chances = np.maximum(np.asarray(chances, dtype=float), LEAST)
        self.chances = chances / chances.sum()
        above = self.chances if envelope is None else np.maximum(envelope, self.chances)
        self._log_null = np.log(above)
        self.slack = float(above.sum() - 1)  # what rounding adds to the chances
        self.counts = np.zeros(len(self.chances), dtype=int)

    def add(self, cell: int) -> None:
        """Count an outcome."""
        self.counts[cell] += 1

    @property
    def log(self) -> float:
        """Natural logarithm of the evidence so far."""
        return float(self.of(self.counts[None])[0])

    def of(self, counts: Array) -> Array:
        """The same for many counts, [n, C] to [n]."""
        total = counts.sum(axis=1)
        mixed = [
            (lgamma(a) - _lgamma(a + total))
            + (_lgamma(a * self.chances + counts) - _lgamma(a * self.chances)).sum(axis=1)
            for a in PRIORS
        ]
        alternatives = np.logaddexp.reduce(mixed, axis=0) - log(len(PRIORS))
        return np.asarray(alternatives - counts @ self._log_null)


def certain(evidence: Sequence[Evidence]) -> bool:
    """Whether independent pieces of evidence together refute the null at level alpha."""
    return sum(each.log for each in evidence) >= -log(ALPHA)


def power_curve(
    evidence: Sequence[Evidence], seed: int, runs: int = 100
) -> list[tuple[float, float]]:
    """Chance to find a departure of some total variation with as many outcomes as were counted.

    By simulation, looking once, at the end. Each departure moves mass between two halves of the
    cells, drawn anew in every run, in proportion to their chances: no cell stands out.

    Returns:
        Pairs of a total variation and the part of the runs that found it.
    """
    coins = np.random.default_rng(seed)
    curve = []
    for variation in np.geomspace(0.005, 0.5, 14):
        logs = sum(_simulated(each, float(variation), coins, runs) for each in evidence)
        curve.append((float(variation), float(np.mean(logs >= -log(ALPHA)))))
    return curve


def _simulated(
    evidence: Evidence, variation: float, coins: np.random.Generator, runs: int
) -> Array:
    """Evidence [runs] that a departure would have given."""
    total = int(evidence.counts.sum())
    laws = (_departure(evidence.chances, variation, coins) for _ in range(runs))
    return evidence.of(np.stack([coins.multinomial(total, law) for law in laws]))


def _departure(chances: Array, variation: float, coins: np.random.Generator) -> Array:
    """A law at this total variation, .5 at most, from the chances: the heavier half gives it."""
    order = coins.permutation(len(chances))
    count = int(np.searchsorted(np.cumsum(chances[order]), 0.5)) + 1
    half = np.zeros(len(chances), dtype=bool)
    half[order[: min(count, len(chances) - 1)]] = True
    if chances[half].sum() < 0.5:  # one cell holds most, and came last
        half = ~half
    mass = float(chances[half].sum())
    taken = chances * (1 - variation / mass)
    others = max(1 - mass, LEAST)
    given = np.where(half, 0, chances / others * variation)
    law = np.where(half, taken, chances + given)
    return law / law.sum()


def smallest_found(curve: Sequence[tuple[float, float]], power: float = 0.99) -> float:
    """The smallest total variation from which on departures are found with this chance."""
    found = inf
    for variation, chance in reversed(curve):
        if chance < power:
            break
        found = variation
    return found


def said(variation: float) -> str:
    """The smallest total variation that would have been found, for people."""
    if variation == inf:
        return "no total variation up to .5"
    return f"a total variation of {variation:.2g}"


def transformed(row: Array, token: int, coin: float) -> float:
    """A number that is uniform on [0, 1) where ``token`` was drawn from ``row`` [V].

    The randomised probability-integral transform, tokens ordered by falling probability so that
    sharper and flatter draws push it to one side.
    """
    row = np.asarray(row, dtype=float)
    chance = row[token]
    equal = np.nonzero(row == chance)[0]
    above = row[row > chance].sum() + chance * int(np.searchsorted(equal, token))
    return float(min((above + coin * chance) / row.sum(), 1 - 2.0**-53))
