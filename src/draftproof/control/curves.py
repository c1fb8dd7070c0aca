"""Curves through measured seconds of passes, by number of tokens.

Not here: what was measured (``latency.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from draftproof.types import Array

SHRINK = 20.0  # measurements that what the neighbours say is worth
NEAR = 4.0  # tokens over which neighbours count
LIKE = 4.0  # the same for the logarithm of the number of sequences
SLOPE = 0.1  # of one token's seconds: a further token, where nothing else is known


def through(points: Mapping[int, tuple[float, int]], size: int) -> list[float]:
    """A slight slope, stretched to go through what was measured; never falling.

    Args:
        points: seconds by tokens, and how often they were measured.
        size: numbers of tokens, from 0 on.

    Returns:
        Seconds, 0 where there are no points.
    """
    places = np.array([n for n in sorted(points) if n < size], dtype=int)
    if not len(places):
        return [0.0] * size
    slope = 1 + SLOPE * np.arange(-1.0, size - 1.0)
    seconds, counts = np.array([points[n] for n in places]).T
    ratios = np.interp(np.arange(size), places, _rising(seconds, counts) / slope[places])
    return _never_falling(slope * ratios)


def stretched(
    base: Sequence[float], points: Sequence[tuple[int, int, int, float]], sequences: int
) -> list[float]:
    """A curve stretched towards what was measured; never falling.

    What was measured a few times leans on what is near, also with more or fewer sequences: of many
    the lowest is too low by chance, and it would be chosen.

    Args:
        base: seconds by tokens, from 0 on.
        points: tokens, sequences, how often they were measured, and seconds.
        sequences: of the curve.
    """
    curve = np.array(base)
    if not points:
        return _never_falling(curve)
    tokens, others, counts, seconds = np.array(points).T
    places = tokens.astype(int)
    ratios = seconds / curve[places]
    far = abs(np.arange(len(curve))[:, None] - places) / NEAR
    far += LIKE * abs(np.log(others / sequences))
    near = counts * np.exp(far.min(1, keepdims=True) - far)
    stretch = near @ ratios / near.sum(1)
    own = others == sequences
    at, count = places[own], counts[own]
    stretch[at] += (ratios[own] - stretch[at]) * count / (count + SHRINK)
    return _never_falling(curve * stretch)


def _never_falling(curve: Array) -> list[float]:
    rising: list[float] = np.maximum.accumulate(curve).tolist()
    return rising


def _rising(values: Array, weights: Array) -> Array:
    """Values that never fall, nearest to the given ones: pool adjacent violators.

    As SciPy's ``isotonic_regression``; SciPy would be ten times the size of all else needed here.
    """
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        count = 1
        while blocks and blocks[-1][0] > value:
            before, others, pooled = blocks.pop()
            value = (value * weight + before * others) / (weight + others)
            weight, count = weight + others, count + pooled
        blocks.append((value, weight, count))
    return np.repeat([value for value, _, _ in blocks], [count for _, _, count in blocks])
