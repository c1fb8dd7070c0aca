"""Tokens and seconds to speeds over one another, with intervals, and to goals. Measures nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from draftproof.intervals import LEVEL, RESAMPLES, Interval

MARKS = REACHED, OPEN, MISSED = "reached", "open", "MISSED"


class Spent(NamedTuple):
    """What one arm gave and took for one prompt in one repeat.

    Attributes:
        arm: its name.
        category: the kind of text.
        prompt: the prompt's number, or that of a group of prompts.
        repeat: the repeat's number.
        tokens: emitted.
        seconds: for these tokens.
    """

    arm: str
    category: str
    prompt: int
    repeat: int
    tokens: int
    seconds: float


Strata = Sequence[np.ndarray]
"""For each category tokens and seconds of its prompts, [prompts, 2]."""


def whole(every: Iterable[Spent], arms: Collection[str]) -> list[Spent]:
    """Those of the turns that all arms have finished, with tokens to show for it."""
    key = _turn
    turns = [list(turn) for _, turn in groupby(sorted(every, key=key), key=key)]
    return [
        one
        for turn in turns
        if {one.arm for one in turn if one.tokens} == set(arms)
        for one in turn
    ]


def _turn(one: Spent) -> tuple[int, int]:
    return one.prompt, one.repeat


def tally(every: Iterable[Spent], arms: Collection[str]) -> dict[str, dict[str, np.ndarray]]:
    """By arm and category the prompts' sums over repeats, [prompts, 2]; whole turns alone."""
    sums: dict[str, dict[str, dict[int, np.ndarray]]] = {arm: {} for arm in arms}
    for one in whole(every, arms):
        prompts = sums[one.arm].setdefault(one.category, {})
        prompts[one.prompt] = prompts.get(one.prompt, 0) + np.array([one.tokens, one.seconds])
    return {
        arm: {name: np.array(list(prompts.values())) for name, prompts in categories.items()}
        for arm, categories in sums.items()
    }


def speedup(over: Strata, under: Strata) -> float:
    """The speed of an arm over another's on the same prompts; sums first, then ratios."""
    return float(_speedup(sum(one.sum(0) for one in _both(over, under))))


def interval(over: Strata, under: Strata) -> Interval:
    """``speedup`` with a percentile bootstrap over prompts.

    They are drawn anew within their category, for both arms the same. There is no interval where
    no category has two prompts.
    """
    both, value = _both(over, under), speedup(over, under)
    if max(map(len, both)) < 2:
        return Interval(value)
    coin = np.random.default_rng(0)
    drawn = (one[coin.integers(len(one), size=(RESAMPLES, len(one)))].sum(1) for one in both)
    tails = (1 - LEVEL) / 2, (1 + LEVEL) / 2
    low, high = np.quantile(_speedup(sum(drawn)), tails)
    return Interval(value, float(low), float(high))


def _both(over: Strata, under: Strata) -> list[np.ndarray]:
    """The two beside each other, [prompts, 4] each."""
    return [np.hstack(pair) for pair in zip(over, under, strict=True)]


def _speedup(sums: Any) -> np.ndarray:
    """From tokens, seconds, the other's tokens and its seconds, [..., 4]."""
    return sums[..., 0] / sums[..., 1] * sums[..., 3] / sums[..., 2]


class Goal(NamedTuple):
    """Something aimed at: a ratio that should be no less than the aim."""

    what: str
    aim: float
    found: Interval

    @property
    def mark(self) -> str:
        """Reached, missed, or open: found below the aim, and the interval cannot exclude it."""
        if self.found.value >= self.aim:
            return REACHED
        return OPEN if self.found.high is None or self.found.high >= self.aim else MISSED

    def __str__(self) -> str:
        low, high = self.found.low, self.found.high
        bounds = "[one prompt]" if low is None else f"[{low:.3f}, {high:.3f}]"
        return f"{self.mark:8s}{self.found.value:6.3f} {bounds:15s} aim {self.aim:.3f}  {self.what}"

    def to_json(self) -> dict[str, Any]:
        """The fields, and the mark."""
        found = self.found.to_json()
        return {"what": self.what, "aim": self.aim, **found, "mark": self.mark}
