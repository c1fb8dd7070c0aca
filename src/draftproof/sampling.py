"""From logits to the distribution that is sampled: the only place where sampling options live.

Target and drafter go through the same function, so that p and q mean the same thing. Order:
temperature, top-k, top-p, min-p. Every filter is a cut-off: tokens at least as probable as the
cut-off stay. Tokens of equal probability therefore stay or go together, and renaming the tokens
renames the result.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from math import isfinite

from array_api_compat import array_namespace

from draftproof.errors import ModelError
from draftproof.types import Array, SamplingParams

LOWEST = -1e30
"""Lower logits, -inf and the smallest numbers models mask with, would overflow when divided."""


def distribution(logits: Array, params: SamplingParams) -> list[Array]:
    """The distributions to sample from, n rows of [V], for logits [n, V].

    Rows stay apart and are worked on in place: what is larger leaves the CPU's cache.

    Arithmetic is in float32, or float64 where the logits are.

    Raises:
        ModelError: a row has no finite maximum.
    """
    xp = array_namespace(logits)
    if logits.dtype != xp.float64:
        logits = xp.astype(logits, xp.float32, copy=False)
    if params.greedy:
        every = xp.arange(logits.shape[-1], device=logits.device)
        return [xp.astype(every == best, logits.dtype) for best in greedy(logits)]
    return [_row(xp, row, params) for row in logits]


def greedy(logits: Array) -> list[int]:
    """The most probable token of each row of [n, V], the lowest id on an exact tie.

    Raises:
        ModelError: a row has no finite maximum.
    """
    # Methods and not the array API's namespace: caches are cold after a pass over the model, and
    # finding the namespace would then cost more than the search itself.
    ids: list[int] = logits.argmax(-1).tolist()
    # NaN counts as the largest number here, so looking at the winner is enough.
    for row, best in enumerate(ids):
        _require_finite(isfinite(logits[row, best]))
    return ids


def _row(xp: Array, logits: Array, params: SamplingParams) -> Array:
    """The distribution of one row [V]."""
    peak = logits[logits.argmax()]  # NaN, if there is one; max() takes longer
    _require_finite(isfinite(peak))
    weights = logits - peak
    if params.temperature < 1 and weights[weights.argmin()] < LOWEST:
        weights = xp.clip(weights, LOWEST)
    if params.temperature != 1:
        weights /= params.temperature
    weights = xp.exp(weights)  # 1 for the most probable token
    if params.top_k or params.top_p < 1 or params.min_p:
        weights *= weights >= _cutoff(xp, weights, params)
    weights /= xp.sum(weights)
    return weights


def _cutoff(xp: Array, weights: Array, params: SamplingParams) -> float:
    """The smallest weight of [V] that stays; the most probable token has weight 1.

    top-p, as in transformers and llama.cpp, counts mass among what top-k has left. A token stays
    while the mass of the strictly more probable ones is below top_p.
    """
    if not params.top_k and params.top_p == 1:
        return params.min_p
    total = float(xp.sum(weights))
    head, cut = _head(xp, weights, params.top_k, params.top_p * total), 0.0
    if params.top_k:
        cut = head[min(params.top_k, len(head)) - 1]
        head = [weight for weight in head if weight >= cut]
        total = sum(head)
    if params.top_p < 1:
        mass = list(accumulate(head))
        cut = head[min(bisect_left(mass, params.top_p * total), len(head) - 1)]
    return max(cut, params.min_p)


def _head(xp: Array, weights: Array, count: int, mass: float) -> list[float]:
    """The largest weights of [V], descending: at least ``count`` of them, or of this ``mass``.

    Sorting a whole vocabulary is the dear part; a few passes that cut off the long tail are not.
    What they leave is short, and there plain lists are faster.
    """
    for exponent in (6, 12, 18):
        head = weights[weights >= 2.0**-exponent]
        if head.shape[0] >= count and (count or float(xp.sum(head)) > mass):
            break
    else:
        head = xp.sort(weights)
    return sorted(head.tolist(), reverse=True)


def _require_finite(ok: bool) -> None:
    if not ok:
        raise ModelError(
            "the model returned logits that are not finite: the file may be damaged, "
            "or its numbers overflow on this device"
        )
