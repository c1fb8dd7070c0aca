"""The rules in floats: their identities, the array libraries, the traps of rounding.

That the rules are exact is proved in test_exact.py, by running the engine over fractions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from draftproof import noise as noise_module
from draftproof.noise import At, FreshNoise, Purpose
from draftproof.rules import RULES, Plan, block, block_plan, match, match_picks, token, token_plan
from draftproof.types import Draft, Verdict

ARRAYS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "numpy float64": (lambda rows: np.asarray(rows, dtype=np.float64), 1e-12),
    "numpy float32": (lambda rows: np.asarray(rows, dtype=np.float32), 2e-6),
    "torch float64": (lambda rows: torch.asarray(rows, dtype=torch.float64), 1e-12),
    "torch float32": (lambda rows: torch.asarray(rows, dtype=torch.float32), 2e-6),
}
arrays = pytest.mark.parametrize(("asarray", "tolerance"), ARRAYS.values(), ids=ARRAYS.keys())
PLANS = {"token": token_plan, "block": block_plan}


class Coins:
    """Noise with given uniform numbers; draws take the heaviest token and remember the weights."""

    def __init__(self, *numbers: float) -> None:
        self._numbers = iter(numbers)
        self.drawn_from: list[float] = []
        self.asked: list[At] = []

    def below(self, numerator: float, denominator: float, at: At) -> bool:
        self.asked.append(at)
        return next(self._numbers) * denominator < numerator

    def draw(self, weights: Any, at: At) -> int:
        self.asked.append(at)
        self.drawn_from = weights.tolist()
        return int(np.argmax(self.drawn_from))


def random_rows(seed: int, count: int, size: int) -> np.ndarray:
    """Peaked and flat rows, with zeros."""
    coin = np.random.default_rng(seed)
    rows = coin.dirichlet([0.4] * size, count) * (coin.random((count, size)) > 0.2)
    rows[:, 0] += 0.01
    return rows / rows.sum(axis=1, keepdims=True)


def chances(plan: Plan) -> list[float]:
    """What each coin succeeds with."""
    pairs = zip(plan.numerators, plan.denominators, strict=True)
    return [min(1.0, numerator / denominator) for numerator, denominator in pairs]


def correction(plan: Plan, accepted: int) -> np.ndarray:
    weights = np.asarray(plan.weights(accepted), dtype=np.float64)
    return weights / weights.sum()


def drafts(q: np.ndarray) -> Iterator[tuple[int, ...]]:
    """All drafts that rows q [k, V] can give."""
    return itertools.product(*[np.flatnonzero(row).tolist() for row in q])


# Identities.


@arrays
@pytest.mark.parametrize("seed", range(20))
def test_token_identity(asarray: Callable[[Any], Any], tolerance: float, seed: int) -> None:
    """Accepted mass + rejected mass * correction = p, at every position by itself."""
    p, q = random_rows(seed, 3, 6), random_rows(seed + 100, 2, 6)
    for position in range(2):
        law = np.zeros(6)
        for x in np.flatnonzero(q[position]):
            plan = token_plan(asarray(p), Draft((int(x),) * 2, asarray(q)))
            chance = min(1.0, plan.numerators[position] / q[position, x])
            law[x] += q[position, x] * chance
            law += q[position, x] * (1 - chance) * correction(plan, position)
        assert np.abs(law - p[position]).max() < tolerance


@arrays
@pytest.mark.parametrize("rule", PLANS)
@pytest.mark.parametrize("seed", range(6))
def test_joint_identity(
    asarray: Callable[[Any], Any], tolerance: float, rule: str, seed: int
) -> None:
    """The law of whole blocks of 3 tokens, over all drafts of 2 with rows that depend on them."""
    p, q = random_trees(seed, 4, 3), random_trees(seed + 50, 4, 2)
    law: dict[tuple[int, ...], float] = dict.fromkeys(itertools.product(range(4), repeat=3), 0)
    for draft in itertools.product(range(4), repeat=2):
        heads = [draft[:i] for i in range(3)]
        rows = np.stack([q[head] for head in heads[:2]])
        weight = np.prod([rows[i, x] for i, x in enumerate(draft)])
        if not weight:
            continue
        targets = asarray(np.stack([p[head] for head in heads]))
        plan = PLANS[rule](targets, Draft(draft, asarray(rows)))
        for accepted, chance in enumerate(acceptance(rule, chances(plan))):
            row = correction(plan, accepted)
            for x in np.flatnonzero(row):
                spread(law, p, (*draft[:accepted], int(x)), weight * chance * row[x])
    for y, chance in law.items():
        assert abs(chance - np.prod([p[y[:i]][x] for i, x in enumerate(y)])) < tolerance


def random_trees(seed: int, size: int, depth: int) -> dict[tuple[int, ...], np.ndarray]:
    """A row for every beginning shorter than depth."""
    heads = [h for n in range(depth) for h in itertools.product(range(size), repeat=n)]
    return dict(zip(heads, random_rows(seed, len(heads), size), strict=True))


def acceptance(rule: str, heads: Sequence[float]) -> list[float]:
    """The chance of 0, ..., k accepted drafts, from the chance of each coin."""
    k = len(heads)
    if rule == "token":  # the first failure
        return [np.prod(heads[:i]) * (1 - heads[i] if i < k else 1) for i in range(k + 1)]
    last = [np.prod([1 - h for h in heads[i:]]) for i in range(k + 1)]  # the last success
    return [(heads[i - 1] if i else 1) * last[i] for i in range(k + 1)]


def spread(
    law: dict[tuple[int, ...], float],
    p: dict[tuple[int, ...], np.ndarray],
    answer: tuple[int, ...],
    chance: float,
) -> None:
    """Go on with the target to three tokens."""
    if len(answer) == 3:
        law[answer] += chance
        return
    for x in np.flatnonzero(p[answer]):
        spread(law, p, (*answer, int(x)), chance * p[answer][x])


@pytest.mark.parametrize("seed", range(10))
def test_block_accepts_at_least_what_token_does(seed: int) -> None:
    p, q = random_rows(seed, 4, 4), random_rows(seed + 30, 3, 4)
    mean = dict.fromkeys(PLANS, 0.0)
    for x in drafts(q):
        weight = np.prod([q[i, t] for i, t in enumerate(x)])
        for rule, plan in PLANS.items():
            heads = acceptance(rule, chances(plan(p, Draft(x, q))))
            mean[rule] += weight * np.dot(heads, range(4))
    assert mean["block"] >= mean["token"] - 1e-12


# One code, all kinds of arrays.


@pytest.mark.parametrize("rule", RULES)
def test_same_coins_same_verdict_on_every_array(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 64ths, which float32 holds exactly."""
    coin = np.random.default_rng(1)
    accepted = set()
    for seed in range(60):
        monkeypatch.setattr(noise_module.secrets, "randbits", lambda bits, seed=seed: seed)
        p, q = coin.multinomial(64, [0.3, 0.3, 0.2, 0.2], 5) / 64, np.full((4, 4), 0.25)
        tokens = tuple(coin.integers(0, 4, 4).tolist())
        verdicts = {
            RULES[rule](asarray(p), Draft(tokens, asarray(q)), FreshNoise(), 7)
            for asarray, _ in ARRAYS.values()
        }
        assert len(verdicts) == 1
        accepted.add(verdicts.pop().accepted)
    assert accepted == {0, 1, 2, 3, 4} if rule != "match" else accepted >= {0, 1}


P = np.asarray([[0.2, 0.8, 0.0], [0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])
Q = np.asarray([[0.8, 0.2, 0.0], [0.5, 0.25, 0.25]])


def test_token_keeps_up_to_the_first_failure() -> None:
    """x = (0, 0): 0.25 for the first, 1 for the second."""
    assert token(P, Draft((0, 0), Q), Coins(0.24, 0.99), 4) == Verdict(2, 2)
    coins = Coins(0.26)
    assert token(P, Draft((0, 0), Q), coins, 4) == Verdict(0, 1)
    assert coins.drawn_from == pytest.approx([0, 0.6, 0])
    assert coins.asked == [At(4, 4, Purpose.ACCEPT), At(4, 4, Purpose.TARGET)]


def test_block_keeps_up_to_the_last_success() -> None:
    """P_1 = P_2 = 0.25, so the last coin alone can keep both."""
    coins = Coins(0.24)
    assert block(P, Draft((0, 0), Q), coins, 4) == Verdict(2, 2)
    assert coins.asked == [At(4, 5, Purpose.ACCEPT), At(4, 6, Purpose.TARGET)]
    assert block(P, Draft((0, 0), Q), Coins(0.26, 0.0), 4) == Verdict(0, 1)  # Z_1 = 0


def test_block_of_one_is_token() -> None:
    for seed in range(20):
        p, q = random_rows(seed, 2, 5), random_rows(seed + 9, 1, 5)
        for x in drafts(q):
            one, other = token_plan(p, Draft(x, q)), block_plan(p, Draft(x, q))
            assert chances(one) == pytest.approx(chances(other))
            assert one.weights(0).tolist() == other.weights(0).tolist()


def test_match_keeps_while_equal() -> None:
    assert match(P, Draft((1, 0)), Coins(), 4) == Verdict(2, 2)
    assert match(P, Draft((0, 0)), Coins(), 4) == Verdict(0, 1)
    coins = Coins()
    assert match(P, Draft((1, 1)), coins, 4) == Verdict(1, 0)
    assert coins.asked == [At(4, 4, Purpose.TARGET), At(4, 5, Purpose.TARGET)]


@pytest.mark.parametrize(
    ("draft", "verdict"),
    [
        ((), Verdict(0, 5)),
        ((5, 6), Verdict(2, 7)),
        ((5, 7), Verdict(1, 6)),
        ((0, 6), Verdict(0, 5)),
    ],
)
def test_match_picks(draft: tuple[int, ...], verdict: Verdict) -> None:
    assert match_picks(iter([5, 6, 7]), Draft(draft)) == verdict


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_plain_round(rule: Callable[..., Verdict]) -> None:
    """No draft: one draw from p."""
    coins = Coins()
    draft = Draft((), P[:0]) if rule is not match else Draft()
    assert rule(P[:1], draft, coins, 4) == Verdict(0, 1)
    assert coins.drawn_from == P[0].tolist()


# Traps.


@arrays
@pytest.mark.parametrize("rule", [token, block])
def test_p_of_zero_is_rejected_even_by_a_coin_of_zero(
    asarray: Callable[[Any], Any], tolerance: float, rule: Callable[..., Verdict]
) -> None:
    p, q = asarray([[0.0, 1.0], [0.5, 0.5]]), asarray([[1.0, 0.0]])
    assert rule(p, Draft((0,), q), Coins(0.0), 4) == Verdict(0, 1)


@arrays
@pytest.mark.parametrize("rule", [token, block])
def test_p_equal_to_q_is_always_accepted(
    asarray: Callable[[Any], Any], tolerance: float, rule: Callable[..., Verdict]
) -> None:
    """To the last bit, for any coin below 1."""
    rows = random_rows(3, 4, 6)
    for x in itertools.islice(drafts(rows[:3]), 100):
        draft = Draft(x, asarray(rows[:3]))
        assert rule(asarray(rows), draft, Coins(*[1 - 2.0**-53] * 3), 4).accepted == 3


@arrays
@pytest.mark.parametrize("plan", [token_plan, block_plan])
def test_a_residual_of_zero_leaves_p(
    asarray: Callable[[Any], Any], tolerance: float, plan: Callable[..., Plan]
) -> None:
    """Only rounding can reject where p = q, and then any draw but one from p is wrong."""
    rows = asarray([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]])
    weights = plan(rows, Draft((0,), rows[:1])).weights(0)
    assert weights.tolist() == [0.5, 0.25, 0.25]


@arrays
@pytest.mark.parametrize("rule", [token, block])
def test_tiny_chances(
    asarray: Callable[[Any], Any], tolerance: float, rule: Callable[..., Verdict]
) -> None:
    """p / q runs over, or under; neither is an error, nor a number that is not one."""
    tiny = 1e-44  # below the normal numbers of float32
    rows = asarray([[1.0, tiny, 0.0]] * 3)
    half = asarray([[0.5, 0.5, 0.0]] * 3)
    top = 1 - 2.0**-53
    assert rule(half, Draft((1, 1), rows[:2]), Coins(top, top), 4).accepted == 2
    assert rule(rows, Draft((1, 1), half[:2]), Coins(1e-9, 1e-9), 4) == Verdict(0, 0)


@pytest.mark.parametrize("rule", [token, block])
def test_smallest_chance_there_is(rule: Callable[..., Verdict]) -> None:
    """p / q is infinite in float64."""
    p, q = np.full((2, 2), 0.5), np.asarray([[1.0, 5e-324]])
    assert rule(p, Draft((1,), q), Coins(1 - 2.0**-53), 4).accepted == 1


@arrays
def test_block_where_p_leads_by_far(asarray: Callable[[Any], Any], tolerance: float) -> None:
    """A kept mass of 1 with no excess left: the denominator is 0 and the coin always succeeds."""
    p, q = asarray([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]]), asarray([[0.5, 0.5]] * 2)
    plan = block_plan(p, Draft((0, 0), q))
    assert (chances(plan), plan.scales) == ([1.0, 1.0], [1, 1])


def test_drafting_what_the_row_excludes_is_noticed() -> None:
    """Such a drafter lies about its rows; going on would bias the text."""
    p = np.asarray([[0.5, 0.5], [0.5, 0.5]])
    draft = Draft((0,), np.asarray([[0.0, 1.0]]))
    with pytest.raises(AssertionError, match="excludes"):
        block_plan(p, draft)
