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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from array_api_compat import array_namespace, to_device

from draftproof.noise import At, Noise, Purpose
from draftproof.types import Array, Draft, Verdict


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What a rule will do with one draft of k tokens, before any coin is tossed.

    Attributes:
        p: target distributions, k+1 rows of [V].
        q: the distributions the drafts were drawn from, k rows of [V].
        numerators, denominators: k each; coin i succeeds where u * denominator < numerator.
        scales: k; after i acceptances the correction is drawn from max(scale_i p_i - q_i, 0).
    """

    p: Sequence[Array]
    q: Sequence[Array]
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


def token_plan(p: Sequence[Array], draft: Draft) -> Plan:
    """Accept x with probability min(1, p(x) / q(x)), each token by itself."""
    q = _rows(p, draft)
    px, qx = _chances(p, draft), _chances(q, draft)
    return Plan(p, q, px, qx, [1] * len(px))


def block_plan(p: Sequence[Array], draft: Draft) -> Plan:
    """Accept the longest prefix the whole block supports; never fewer tokens than ``token_plan``.

    With P_i = min(1, P_{i-1} p_i / q_i), P_0 = 1 and Z_i = sum_y max(P_i p_{i+1}(y) - q_{i+1}(y),
    0): coin i succeeds with probability Z_i / (Z_i + 1 - P_i), the last one with P_k.
    """
    q = _rows(p, draft)
    joint: list[float] = [1]
    for target, proposed in zip(_chances(p, draft), _chances(q, draft), strict=True):
        assert proposed > 0, "a token was drafted that its own row excludes"
        joint.append(min(1, joint[-1] * target / proposed))
    numerators: list[float] = []
    denominators: list[float] = []
    for row, proposals, kept in zip(p[1:], q[1:], joint[1:-1], strict=False):
        # Certain where P_i = 1, whatever Z_i is.
        excess = 1 if kept == 1 else _total(_residual(row, proposals, kept))
        numerators.append(excess)
        denominators.append(excess + 1 - kept)
    return Plan(p, q, [*numerators, joint[-1]], [*denominators, 1], joint[:-1])


def token(p: Sequence[Array], draft: Draft, noise: Noise, start: int) -> Verdict:
    """Judge by ``token_plan``: keep drafts up to the first failure.

    Args:
        p: target distributions, k+1 rows of [V].
        draft: k tokens with their rows.
        noise: the request's coins.
        start: absolute position of the first draft.
    """
    plan = token_plan(p, draft)
    coins = (_coin(plan, i, noise, start) for i in range(len(draft.tokens)))
    return _add(plan, sum(takewhile(bool, coins)), noise, start)


def block(p: Sequence[Array], draft: Draft, noise: Noise, start: int) -> Verdict:
    """Judge by ``block_plan``: keep drafts up to the last success. Arguments as in ``token``."""
    plan = block_plan(p, draft)
    longest_first = range(len(draft.tokens), 0, -1)
    accepted = next((i for i in longest_first if _coin(plan, i - 1, noise, start)), 0)
    return _add(plan, accepted, noise, start)


def match(p: Sequence[Array], draft: Draft, noise: Noise, start: int) -> Verdict:
    """Draw from p at each position and keep the draft while it equals what was drawn."""
    return match_picks(_draws(p, noise, start), draft)


def match_picks(picks: Iterator[int], draft: Draft) -> Verdict:
    """``match`` for tokens of the target's choice; at most k+1 are taken. Greedy is this alone."""
    for accepted, (proposed, pick) in enumerate(zip(draft.tokens, picks, strict=False)):
        if pick != proposed:
            return Verdict(accepted, pick)
    return Verdict(len(draft.tokens), next(picks))


RULES: dict[str, Callable[[Sequence[Array], Draft, Noise, int], Verdict]] = {
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


def _draws(p: Sequence[Array], noise: Noise, start: int) -> Iterator[int]:
    for i, row in enumerate(p):
        yield noise.draw(row, At(start, start + i, Purpose.TARGET))


def _rows(p: Sequence[Array], draft: Draft) -> Sequence[Array]:
    """q, where p is: the draft model may run in another library, or on another device."""
    assert draft.rows is not None, "only match judges drafts without rows"
    return [_beside(p[0], row) for row in draft.rows]


def _beside(other: Array, row: Array) -> Array:
    """A row in the library and on the device of another one."""
    if type(row) is type(other) and row.device == other.device:
        return row
    xp = array_namespace(other)
    return xp.asarray(to_device(row, "cpu"), device=other.device)


def _chances(rows: Sequence[Array], draft: Draft) -> list[float]:
    """What each row gives the drafted token, in double precision."""
    return [row[x : x + 1].tolist()[0] for row, x in zip(rows, draft.tokens, strict=False)]


def _total(values: Array) -> float:
    """The sum of [V], in double precision from here on."""
    total: list[float] = array_namespace(values).sum(values, keepdims=True).tolist()
    return total[0]


def _residual(p: Array, q: Array, scale: float) -> Array:
    """max(scale p - q, 0), [V]."""
    rest = p - q if scale == 1 else p * scale
    if scale != 1:
        rest -= q
    rest *= rest > 0
    return rest
