"""The exact rules that judge a draft. Pure: no model, no tokenizer, no device.

Written over the array API standard: the same code runs on NumPy arrays and on torch tensors.
Each rule is a plan (what would be accepted, and what would be drawn instead: deterministic) and a
draw (coins). Letters as in Leviathan et al.: p is the target's distribution, q the draft's; row i
of either is the distribution of the draft's token i.

========  ===========================================================================  ==========
rule      source                                                                       drafts
========  ===========================================================================  ==========
match     draw from p at each position, keep the draft while it is the same            any
token     Leviathan et al., ICML 2023, algorithm 1; Chen et al., 2023                  with rows
block     Sun et al., "Block verification accelerates speculative decoding", ICLR 2025  with rows
========  ===========================================================================  ==========
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from array_api_compat import array_namespace

from draftproof.noise import At, Noise, Purpose
from draftproof.types import Array, Draft, Verdict


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What a rule will do with one draft of k tokens, before any coin is tossed.

    Attributes:
        p: [k+1, V] target distributions.
        q: [k, V] the distributions the drafts were drawn from.
        numerators, denominators: k each; coin i succeeds where u * denominator < numerator.
        scales: k; after i acceptances the correction is drawn from max(scale_i p_i - q_i, 0).
    """

    p: Array
    q: Array
    numerators: list[float]
    denominators: list[float]
    scales: list[float]

    def weights(self, accepted: int) -> Array:
        """What the added token is drawn from after so many acceptances, [V], not normalised."""
        if accepted == len(self.scales):
            return self.p[accepted]
        rest = _residual(self.p[accepted], self.q[accepted], self.scales[accepted])
        # Where p and q differ by rounding alone a rejection is rounding too: p itself is right.
        return rest if rest.any() else self.p[accepted]


def token_plan(p: Array, draft: Draft) -> Plan:
    """Accept x with probability min(1, p(x) / q(x)), each token by itself."""
    px, qx = _chances(p, draft)
    return Plan(p, draft.rows, px, qx, [1] * len(px))


def block_plan(p: Array, draft: Draft) -> Plan:
    """Accept the longest prefix the whole block supports; never fewer tokens than ``token_plan``.

    With P_i = min(1, P_{i-1} p_i / q_i), P_0 = 1 and Z_i = sum_y max(P_i p_{i+1}(y) - q_{i+1}(y),
    0): coin i succeeds with probability Z_i / (Z_i + 1 - P_i), the last one with P_k.
    """
    xp = array_namespace(p)
    q: Array = draft.rows
    px, qx = _chances(p, draft)
    joint: list[float] = [1]
    for target, proposed in zip(px, qx, strict=True):
        assert proposed > 0, "a token was drafted that its own row excludes"
        joint.append(min(1, joint[-1] * target / proposed))
    numerators: list[float] = []
    denominators: list[float] = []
    for i in range(1, len(px)):
        rest = _residual(p[i], q[i], joint[i])
        (excess,) = xp.sum(rest, keepdims=True).tolist()
        both = excess + 1 - joint[i]
        numerators.append(excess if both > 0 else 1)
        denominators.append(both if both > 0 else 1)
    return Plan(p, q, [*numerators, joint[-1]], [*denominators, 1], joint[:-1])


def token(p: Array, draft: Draft, noise: Noise, start: int) -> Verdict:
    """Judge by ``token_plan``: keep drafts up to the first failure.

    Args:
        p: [k+1, V] target distributions.
        draft: k tokens with their rows.
        noise: the request's coins.
        start: absolute position of the first draft.
    """
    plan = token_plan(p, draft)
    coins = (_coin(plan, i, noise, start) for i in range(len(draft.tokens)))
    return _add(plan, sum(takewhile(bool, coins)), noise, start)


def block(p: Array, draft: Draft, noise: Noise, start: int) -> Verdict:
    """Judge by ``block_plan``: keep drafts up to the last success. Arguments as in ``token``."""
    plan = block_plan(p, draft)
    longest_first = range(len(draft.tokens), 0, -1)
    accepted = next((i for i in longest_first if _coin(plan, i - 1, noise, start)), 0)
    return _add(plan, accepted, noise, start)


def match(p: Array, draft: Draft, noise: Noise, start: int) -> Verdict:
    """Draw from p at each position and keep the draft while it equals what was drawn."""
    return match_picks(_draws(p, noise, start), draft)


def match_picks(picks: Iterator[int], draft: Draft) -> Verdict:
    """``match`` for tokens of the target's choice; at most k+1 are taken. Greedy is this alone."""
    for accepted, (proposed, pick) in enumerate(zip(draft.tokens, picks, strict=False)):
        if pick != proposed:
            return Verdict(accepted, pick)
    return Verdict(len(draft.tokens), next(picks))


RULES: dict[str, Callable[[Array, Draft, Noise, int], Verdict]] = {
    "block": block,
    "token": token,
    "match": match,
}


def _coin(plan: Plan, i: int, noise: Noise, start: int) -> bool:
    at = At(start, start + i, Purpose.ACCEPT)
    return noise.below(plan.numerators[i], plan.denominators[i], at)


def _add(plan: Plan, accepted: int, noise: Noise, start: int) -> Verdict:
    """The correction or the bonus."""
    at = At(start, start + accepted, Purpose.TARGET)
    return Verdict(accepted, noise.draw(plan.weights(accepted), at))


def _draws(p: Array, noise: Noise, start: int) -> Iterator[int]:
    for i in range(p.shape[0]):
        yield noise.draw(p[i], At(start, start + i, Purpose.TARGET))


def _chances(p: Array, draft: Draft) -> tuple[list[float], list[float]]:
    """p(x) and q(x) of each drafted token, k each, in double precision."""
    xp = array_namespace(p)
    ids = xp.asarray(draft.tokens, dtype=xp.int64, device=p.device)
    rows = xp.arange(len(draft.tokens), device=p.device)
    q: Array = draft.rows
    return p[rows, ids].tolist(), q[rows, ids].tolist()


def _residual(p: Array, q: Array, scale: float) -> Array:
    """max(scale p - q, 0), [V]. Row by row and in place: larger arrays would not stay in cache."""
    rest = p - q if scale == 1 else p * scale
    if scale != 1:
        rest -= q
    rest *= rest > 0
    return rest
