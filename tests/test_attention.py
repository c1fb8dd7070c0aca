"""What a context adds to a pass, learned beside a machine that slows down and a noisy clock."""

from __future__ import annotations

import random

import pytest

from draftproof.control.attention import Attention
from draftproof.control.latency import Latency, Scale, Table
from machines import F16, cost

ALONE = cost(F16)


def taken(tokens: int, context: float, each: float, shared: float) -> float:
    """Seconds of a pass of one sequence."""
    return ALONE(tokens) + (each * tokens + shared) * context


def conversations(latency: Latency, each: float, shared: float, noise: float = 0.0) -> None:
    """Answers behind prompts of many lengths, on a machine that slows down and speeds up."""
    coin, slow = random.Random(5), 1.0
    for _ in range(40):
        context, end = coin.randrange(20, 3000), coin.randrange(20, 80)
        slow = slow if coin.random() < 0.7 else coin.choice([1.0, 1.3, 2.0])
        for _ in range(end):
            tokens = coin.choice([1, 1, 1, 2, 4, 6, 9])
            seconds = slow * taken(tokens, context, each, shared) * coin.lognormvariate(0, noise)
            latency.observe(tokens, 1, seconds, context)
            context += tokens


@pytest.mark.parametrize("adopted", [True, False])
@pytest.mark.parametrize(("each", "shared"), [(3e-6, 0.0), (0.0, 4e-6), (1e-6, 4e-6), (0.0, 0.0)])
def test_a_pass_is_foretold_at_any_context(each: float, shared: float, adopted: bool) -> None:
    scale = Scale()
    latency = Latency(scale)
    if adopted:  # by a machine on which attention cost something else
        latency.adopt(Table({n: ALONE(n) for n in (1, 2, 4, 6, 9)}, 2e-6, 0.0))
    conversations(latency, each, shared, 0.05)
    plain = {c: latency.seconds(1, 1, c) for c in (100, 2000)}
    for tokens in (2, 4, 9):
        for context, one in plain.items():
            wanted = taken(tokens, context, each, shared) / taken(1, context, each, shared)
            assert latency.seconds(tokens, 1, context) / one == pytest.approx(
                wanted, rel=0.15 if adopted else 0.25
            )


def test_nothing_is_made_of_a_context_that_grows_evenly() -> None:
    """A machine that slowly slows down meanwhile is no sign of anything."""
    latency = Latency(Scale())
    for n in range(400):
        latency.observe(1, 1, 0.01 * (1 + n / 4000), float(n))
    assert latency.attention.seconds(1, 1, 400.0) < 0.002


def test_a_pass_that_is_held_up_is_left_out() -> None:
    latency = Latency(Scale())
    for n in range(50):
        latency.observe(1, 1, 0.01, 10.0 + n)
    latency.observe(1, 1, 5.0, 4000.0)
    assert latency.attention.seconds(1, 1, 1000.0) == pytest.approx(0, abs=1e-9)


def test_what_was_adopted_is_what_is_given_out() -> None:
    attention = Attention()
    attention.adopt(3e-6, 1e-6)
    assert attention.seconds(1, 1, 1000) == pytest.approx(4e-3, rel=0.1)
    assert attention.seconds(9, 1, 1000) == pytest.approx(28e-3, rel=0.1)
    attention.adopt(0.0, 0.0)
    assert attention.seconds(9, 1, 1000) == pytest.approx(28e-3, rel=0.1)


def test_the_context_of_several_sequences_is_that_of_each() -> None:
    attention = Attention()
    attention.adopt(3e-6, 1e-6)
    assert attention.seconds(16, 8, 500) == pytest.approx(16 * 500 * 3e-6 + 8 * 500 * 1e-6, rel=0.1)
