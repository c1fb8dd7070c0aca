"""From logits to the distribution that is sampled: the only place where sampling options live.

Target and drafter go through the same function, so that p and q mean the same thing. Order: what
depends on the tokens before (``processors.py``), temperature, top-k, top-p, min-p, typical-p. Every
filter is a cut-off: tokens at least as good as it stay. Equal tokens therefore stay or go together,
and renaming the tokens renames the result.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import accumulate
from math import isfinite, log
from typing import Any

from array_api_compat import array_namespace, is_numpy_array

from draftproof.checks import is_int, require
from draftproof.errors import ModelError
from draftproof.noise import choice_seed
from draftproof.params import SamplingParams
from draftproof.types import Array, TokenLogprob

LOWEST = -1e30
"""Lower logits, -inf and the smallest numbers models mask with, would overflow when divided."""


def choices(params: SamplingParams, count: int) -> list[SamplingParams]:
    """The options of several answers to one prompt; each has a seed of its own, if there is one.

    The first is the answer that would be given alone.

    Raises:
        ParameterError: not one answer or more.
    """
    require(is_int(count) and count >= 1, f"n must be a whole number of 1 or more, not {count!r}")
    return [replace(params, seed=choice_seed(params.seed, choice)) for choice in range(count)]


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


def finite(logits: Array) -> Array:
    """A copy of logits [n, V] up to the first row that is not finite, which becomes 0."""
    bad = (i for i, row in enumerate(logits) if not isfinite(row[row.argmax()]))
    count = next(bad, logits.shape[0])
    rows = array_namespace(logits).asarray(logits[: count + 1], copy=True)
    rows[count:] = 0
    return rows


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
    return weights if params.typical_p == 1 else _typical(xp, weights, params.typical_p)


def _typical(xp: Array, row: Array, mass: float) -> Array:
    """Keep the tokens of [V] whose surprise is nearest to the entropy, up to this mass.

    Meister et al., "Locally typical sampling", TACL 2023; as in transformers the token that
    reaches the mass stays.
    """
    (ids,) = xp.nonzero(row)
    chances = xp.take(row, ids, axis=0)
    surprise = -xp.log(chances)
    distance = abs(surprise - xp.sum(chances * surprise))
    order = xp.argsort(distance)
    reached = list(accumulate(xp.take(chances, order, axis=0).tolist()))
    last = min(bisect_left(reached, mass * reached[-1]), len(reached) - 1)
    kept = ids[distance <= distance[order[last]]]
    weights = xp.zeros_like(row)
    weights[kept] = row[kept]
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


def logprob(logits: Array, token: int, count: int) -> TokenLogprob:
    """What the target gave a token, by its own logits [V], and its ``count`` best alternatives."""
    xp = array_namespace(logits)
    if logits.dtype != xp.float64:
        logits = xp.astype(logits, xp.float32, copy=False)
    peak = logits[logits.argmax()]
    scale = float(peak) + log(float(xp.sum(xp.exp(logits - peak))))
    best = _largest(logits, min(count, logits.shape[0]))
    top = tuple((each, float(logits[each]) - scale) for each in best)
    return TokenLogprob(token, float(logits[token]) - scale, top)


def _largest(logits: Any, count: int) -> list[int]:
    """The ids of the largest logits of [V], best first, the lowest id first among equals."""
    if not count:
        return []
    xp = array_namespace(logits)
    if is_numpy_array(logits):
        edge = xp.partition(logits, -count)[-count]  # a whole sort takes ten times longer
    else:
        edge = xp.sort(logits)[-count]
    (ids,) = xp.nonzero(logits >= edge)
    return sorted(ids.tolist(), key=lambda each: (-float(logits[each]), each))[:count]
