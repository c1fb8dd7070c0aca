"""How many tokens to draft: the choice that is worth most, and what may be spent on finding out.

In the long run tokens per second are most where each round makes *tokens - rate * seconds* most,
``rate`` being the tokens per second of the long run itself (renewal reward; Dinkelbach, 1967). The
seconds of a pass have steps, so the first token that does not pay may be followed by one that does:
all lengths are compared.

Not here: chances (``acceptance.py``) and seconds (``latency.py``).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import NamedTuple

MEMORY = 32  # rounds the rate looks back
UNLIKELY = 0.02  # what survives with less than this chance is not looked at
EARNED = 0.005  # of the time, for probes
LENT = 0.005  # of the time, for drafts that turn out to lose
START, MOST = 3.0, 12.0  # plain rounds that may be lost: at the beginning, and ever


class Way(NamedTuple):
    """A draft that one sequence may have.

    Attributes:
        survival: for each token the chance that it and all before it are accepted.
        first: passes of a draft model up to its first token.
        each: passes for each further one.
    """

    survival: Sequence[float]
    first: int = 0
    each: int = 0


class Choice(NamedTuple):
    """Lengths, and what they promise.

    Attributes:
        value: accepted tokens expected - rate * seconds.
        lengths: tokens of each way.
        seconds: of drafting and verifying.
    """

    value: float
    lengths: list[int]
    seconds: float


def choose(
    ways: Sequence[Way],
    verify: Sequence[float],
    passes: Sequence[float],
    rate: float,
    least: int = 0,
) -> Choice | None:
    """The most valuable lengths of the drafts of one round.

    A target pass has one cost, whoever's tokens it reads: so they go to the best chances first.
    As survival never rises, that takes leading tokens of each way.

    Args:
        ways: one for each sequence.
        verify: seconds of the target's pass by drafted tokens, from none on.
        passes: seconds of drafting by passes of draft models, from none on.
        rate: tokens per second of the long run.
        least: fewest tokens to draft in all.

    Returns:
        None where there are fewer than ``least``.
    """
    if len(ways) == 1:
        return _choose_one(ways[0], verify, passes, rate, least)
    depths = _by_passes(ways, len(passes))
    pool: list[float] = []  # survivals, negative, ascending
    sums = [0.0]
    prices = [rate * seconds for seconds in verify]
    best: tuple[float, int, int] | None = None if least else (-rate * verify[0], 0, 0)
    for depth, fresh in enumerate(depths):
        if not fresh:
            continue
        new = bisect_left(pool, -max(fresh))  # without any of them more passes are worth nothing
        for chance in fresh:
            insort(pool, -chance)
        sums[new:] = accumulate(pool[new:], initial=sums[new])
        start = max(new + 1, least)
        losses = list(map(add, sums[start:], prices[start:]))
        if losses:
            loss = min(losses)
            value = -loss - rate * passes[depth]
            if best is None or value > best[0]:
                best = (value, depth, start + losses.index(loss))
    if best is None:
        return None
    value, depth, count = best
    return Choice(value, _lengths(ways, depth, count), verify[count] + passes[depth])


def _choose_one(
    way: Way, verify: Sequence[float], passes: Sequence[float], rate: float, least: int
) -> Choice | None:
    """The same for a sequence alone, which is simpler, and quicker."""
    best = None if least else (-rate * verify[0], 0, verify[0])
    tokens, depth = 0.0, way.first
    for count, chance in enumerate(way.survival, 1):
        if depth >= len(passes) or (count > 1 and chance < UNLIKELY):
            break
        tokens += chance
        seconds = verify[count] + passes[depth]
        value = tokens - rate * seconds
        if count >= least and (best is None or value > best[0]):
            best = (value, count, seconds)
        depth += way.each
    return best and Choice(best[0], [best[1]], best[2])


def _by_passes(ways: Sequence[Way], limit: int) -> list[list[float]]:
    """Survivals worth a look, by the passes they need; fewer than ``limit``."""
    depths: list[list[float]] = [[] for _ in range(limit)]
    for survival, first, each in ways:
        for index, chance in enumerate(survival):
            depth = first + index * each
            if depth >= limit or (index and chance < UNLIKELY):
                break
            depths[depth].append(chance)
    return depths


def _lengths(ways: Sequence[Way], depth: int, count: int) -> list[int]:
    """How many of the ``count`` best tokens within ``depth`` passes are each way's."""
    ranked = sorted(
        (-chance, place)
        for place, (survival, first, each) in enumerate(ways)
        for index, chance in enumerate(survival)
        if first + index * each <= depth
    )
    lengths = [0] * len(ways)
    for _, place in ranked[:count]:
        lengths[place] += 1
    return lengths


@dataclass(slots=True)
class Rate:
    """Tokens per second over the last rounds, as they were expected."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float, rounds: int = 1) -> None:
        """Count rounds that are all the same."""
        fade = (1 - 1 / MEMORY) ** rounds
        weight = (1 - fade) * MEMORY  # of the rounds together, the earlier ones faded
        self.tokens = self.tokens * fade + tokens * weight
        self.seconds = self.seconds * fade + seconds * weight

    def value(self, plain: float) -> float:
        """Never below that of plain rounds: those can always be had."""
        return max(plain, self.tokens / self.seconds) if self.seconds else plain


@dataclass(slots=True)
class Budget:
    """What may be lost, in plain rounds. Both accounts earn a part of all time.

    Attributes:
        probes: for rounds that promise nothing and are there to find out.
        margin: for rounds that promised to gain; what they lose is taken from it and what they
            gain is added, so that wrong promises cannot cost more than this.
    """

    probes: float = 2.0
    margin: float = START
    wanted: float = 0.0

    def earn(self, rounds: float) -> None:
        """Count time that passed; nothing is saved up beyond what is of use."""
        self.margin = min(MOST, self.margin + LENT * rounds)
        self.probes = min(max(START, self.wanted), self.probes + EARNED * rounds)

    def settle(self, gained: float, probe: bool) -> None:
        """Count what a round with drafts gained over plain ones."""
        if probe:
            self.probes += min(0.0, gained)
        else:
            self.margin = min(MOST, self.margin + gained)

    def affords(self, loss: float) -> bool:
        """Whether a probe can be paid for."""
        self.wanted = loss
        return loss <= self.probes

    @property
    def waits(self) -> float:
        """Plain rounds until the probe that was wanted last can be paid for."""
        return (self.wanted - self.probes) / EARNED
