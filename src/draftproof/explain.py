"""The numbers of the figures that explain the mathematics, ready for JSON.

They are made by the code that generates: probabilities by the plans of ``rules.py``, accepted
lengths by its rules, speedups by the formula of ``plan.py``. The figures that show rounds are in
``explain_rounds.py``. Not here: how they are drawn (``server/page/``) and served
(``server/explain.py``).
"""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import product
from math import prod

import numpy as np

from draftproof.checks import is_int, is_number, require
from draftproof.explain_rounds import TARGET, Json, check_costs
from draftproof.noise import At
from draftproof.plan import speedup, tokens_per_round
from draftproof.rules import RULES, Plan, block_plan, token_plan
from draftproof.types import Array, Draft

LONGEST = 12  # draft length of the curve
DRAFTS = 4  # longest draft whose every token and coin is enumerated
PAIR = ((1 / 3, 2 / 3), "ab")  # the target of the two-token world of Sun et al., and its names


@cache
def correction() -> Json:
    """Figure 4: what accepting and correcting add up to, for each mass the draft gives a token.

    The draft's other tokens share what is left as the target's do, so that the draft equals the
    target where the mass does. Token rule, one position.
    """
    names = list(TARGET["fox"])
    p = np.array(list(TARGET["fox"].values()))
    return {
        "tokens": names,
        "equal": float(p[0]),
        "steps": [_corrected(p, step / 100) for step in range(101)],
    }


def _corrected(p: Array, mass: float) -> Json:
    q = p * (1 - mass) / (1 - p[0])
    q[0] = mass
    plans = {x: token_plan([p, p], Draft((x,), [q])) for x in np.flatnonzero(q).tolist()}
    accepted = np.zeros_like(p)
    for x, plan in plans.items():
        accepted[x] = q[x] * _chances(plan)[0]
    rest = next(iter(plans.values())).weights(0)
    corrections = (1 - accepted.sum()) * rest / rest.sum()
    return {
        "mass": mass,
        "p": p.tolist(),
        "q": q.tolist(),
        "accepted": accepted.tolist(),
        "correction": corrections.tolist(),
        "output": (accepted + corrections).tolist(),
        "rate": float(accepted.sum()),
        "gap": float(abs(accepted + corrections - p).max()),
    }


def _chances(plan: Plan) -> list[float]:
    """The probability that each coin succeeds."""
    return [min(1.0, a / b) for a, b in zip(plan.numerators, plan.denominators, strict=True)]


def curve(alpha: float, draft_length: int, draft_cost: float, verify_cost: float) -> Json:
    """Figure 5: the speedup model, at one draft length and for all up to twelve.

    Args:
        alpha: acceptance rate, 0 to 1.
        draft_length: 1 to 12.
        draft_cost: of one drafted token, in plain steps, 0 to 1.
        verify_cost: of the pass over a draft, in plain steps, 0.1 to 4.

    Raises:
        ParameterError: out of range.
    """
    check_costs(draft_length, LONGEST, draft_cost, verify_cost)
    points = [
        {
            "k": k,
            "tokens": tokens_per_round(alpha, k),
            "speedup": speedup(alpha, k, draft_cost, verify_cost),
        }
        for k in range(1, LONGEST + 1)
    ]
    best = max(points, key=lambda point: point["speedup"])
    return {"points": points, "chosen": points[draft_length - 1], "best": best["k"]}


@lru_cache(maxsize=256)
def verification(mass: float, draft_length: int) -> Json:
    """Figure 6: token and block verification of every draft in a world of two tokens.

    Args:
        mass: what the draft gives the first token at every position, 0.01 to 0.99; the target
            gives it a third, which at two thirds is the example of Sun et al.
        draft_length: 1 to 4.

    Raises:
        ParameterError: out of range.
    """
    good = is_number(mass) and 0.01 <= mass <= 0.99
    require(good, f"the mass must lie from 0.01 to 0.99, not {mass!r}")
    good = is_int(draft_length) and 1 <= draft_length <= DRAFTS
    require(good, f"the draft length must be 1 to {DRAFTS}, not {draft_length!r}")
    p, q = np.array(PAIR[0]), np.array([mass, 1 - mass])
    drafts = [_judged(p, q, tokens) for tokens in product((0, 1), repeat=draft_length)]
    return {
        "p": p.tolist(),
        "q": q.tolist(),
        "drafts": drafts,
        "mean": {rule: _mean(drafts, rule) for rule in ("token", "block")},
    }


def _judged(p: Array, q: Array, tokens: tuple[int, ...]) -> Json:
    draft = Draft(tokens, [q] * len(tokens))
    rows = [p] * (len(tokens) + 1)
    plan = block_plan(rows, draft)
    return {
        "draft": "".join(PAIR[1][token] for token in tokens),
        "chance": prod(float(q[token]) for token in tokens),
        "kept": [float(kept) for kept in (*plan.scales[1:], plan.numerators[-1])],
        "token": _lengths("token", rows, draft, _chances(token_plan(rows, draft))),
        "block": _lengths("block", rows, draft, _chances(plan)),
    }


class _Coins:
    """A noise whose coins have fallen already."""

    def __init__(self, fallen: tuple[bool, ...]) -> None:
        self._fallen = fallen

    def below(self, numerator: float, denominator: float, at: At) -> bool:
        """See ``Noise.below``."""
        return self._fallen[at.position]

    def draw(self, weights: Array, at: At) -> int:
        """Which token is added does not matter here."""
        return 0


def _lengths(rule: str, p: list[Array], draft: Draft, coins: list[float]) -> Json:
    """How many drafts a rule accepts: the probability of each length, over all coins."""
    lengths = [0.0] * len(p)
    for fallen in product((True, False), repeat=len(coins)):
        chance = prod(c if up else 1 - c for c, up in zip(coins, fallen, strict=True))
        lengths[RULES[rule](p, draft, _Coins(fallen), 0).accepted] += chance
    mean = sum(length * chance for length, chance in enumerate(lengths))
    return {"coins": coins, "lengths": lengths, "mean": mean}


def _mean(drafts: list[Json], rule: str) -> float:
    return float(sum(draft["chance"] * draft[rule]["mean"] for draft in drafts))
