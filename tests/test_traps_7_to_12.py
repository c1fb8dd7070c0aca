"""Traps 7 to 12 of the design, each of which a known engine fell into, on exact toy models.

Trap 12 is measured on the real model too, in ``test_real_model.py``.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftproof import (
    Draft,
    Engine,
    ModelError,
    PairError,
    ParameterError,
    SamplingParams,
    Speculation,
)
from draftproof.noise import At, FreshNoise, Purpose
from draftproof.rules import RULES, token_plan
from toy_drafters import DRAFTERS, other, right, wrong
from toys import FRESH, PLAIN, SEEDED, SIZE, NoRollback, Toy, agrees, cycle, table

PER_TOKEN: list[dict[str, Any]] = [
    {"repetition_penalty": 60.0},
    {"presence_penalty": 5.0},
    {"frequency_penalty": 3.0},
    {"min_tokens": 11},
    {"logit_bias": {3: -100}},
    {"bad_words": ["cd"]},
]


def test_trap_07_one_over_a_limit_does_not_stop_its_neighbours() -> None:
    target = Toy(table={**table(1), (3, 3, 3): [float("nan")] * SIZE}, sequences=4)
    engine = Engine(target, right(Toy(1)))
    params = replace(SEEDED, max_tokens=20, ignore_eos=True)
    # In the order: short of budget, failing, cancelled, and the one that must not notice.
    engine.submit([1], replace(params, max_tokens=1))
    engine.submit([3, 3, 3], params)
    leaving = engine.submit([2], params)
    staying = engine.submit([0, 1], params, Speculation(draft_length=3))
    drafted = []
    while steps := engine.step():
        engine.cancel(leaving)
        drafted += [len(step.drafted) for step in steps if step.request == staying]
    assert agrees(engine.completion(staying), Toy(1), [0, 1], params)
    assert drafted == [3] * 5  # of 20 tokens, 4 a round
    for prompt in ([1], [2], [2, 0]):  # no trace in any slot
        assert agrees(engine.generate(prompt, params), Toy(1), prompt, params)


def test_trap_08_a_draft_that_is_never_used_is_told(caplog: pytest.LogCaptureFixture) -> None:
    target = Toy(1)
    with caplog.at_level(logging.INFO, "draftproof"):
        stats = Engine(target, wrong(target)).generate([1], PLAIN).stats
    assert stats.acceptance_rate == 0
    assert f"drafts: 0 accepted, {stats.rejected} rejected" in caplog.text
    assert stats.plain + stats.correction == stats.completion_tokens


def test_trap_08_an_option_is_exact_or_refused() -> None:
    target = Toy(1)
    for rule in ("token", "block"):
        with pytest.raises(ParameterError, match="the text of a seed"):
            Engine(target, "lookup").submit([1], SEEDED, Speculation(rule=rule))
    with pytest.raises(PairError, match="cannot be speculated on"):
        Engine(NoRollback(1), other(target))
    with pytest.raises(ParameterError, match="no argument"):
        Engine(target, "lookup:5")


@pytest.mark.parametrize("options", PER_TOKEN, ids=lambda options: next(iter(options)))
@pytest.mark.parametrize("length", [1, 3, 5])
def test_trap_09_what_is_counted_is_counted_by_token(options: dict[str, Any], length: int) -> None:
    rows = cycle(SIZE if "min_tokens" in options else SIZE - 1)
    soft = {ending: 0.9 * row + 0.1 / SIZE for ending, row in rows.items()}
    target = Toy(table=soft)
    params = SamplingParams(max_tokens=16, **options)
    plain = Engine(target).generate([0], params)
    assert plain.token_ids != Engine(target).generate([0], SamplingParams(max_tokens=16)).token_ids
    engine = Engine(target, Toy(table=soft), speculation=Speculation(draft_length=length))
    done = engine.generate([0], params)
    assert done.token_ids == plain.token_ids
    assert done.stats.acceptance_rate == 1  # the draft model sees the same prefixes


@pytest.mark.parametrize("length", range(9))
def test_trap_09_limits_are_counted_by_token_and_not_by_round(length: int) -> None:
    target = Toy(table=cycle())
    engine = Engine(target, right(target), speculation=Speculation(draft_length=length))
    for budget in range(1, 20):
        done = engine.generate([0], SamplingParams(max_tokens=budget))
        assert len(done.token_ids) == budget


EDGES = [0.0, 1 - 2.0**-53]


@pytest.mark.parametrize("u", EDGES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_trap_10_coins_at_their_edges(
    u: float, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftproof.noise.uniform", lambda *_: u)
    noise, at = FreshNoise(), At(0, 0, Purpose.ACCEPT)
    assert not noise.below(0.0, 0.5, at)  # p = 0 is not accepted, not for u = 0 either
    assert noise.below(0.5, 0.5, at)  # p = q always is
    assert not noise.below(float("nan"), 1.0, at)
    assert noise.draw(np.array([0, 0.25, 0.5, 0], dtype), at) == (1 if u == 0 else 2)
    long = np.concatenate([np.full(50_000, 1e-5, dtype), np.zeros(9, dtype)])
    assert noise.draw(long, at) == (0 if u == 0 else 49_999)


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("u", EDGES)
def test_trap_10_a_draft_the_target_excludes_is_never_accepted(
    rule: str, u: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftproof.noise.uniform", lambda *_: u)
    p = np.array([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    q = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    verdict = RULES[rule](p, Draft((0, 0), q), FreshNoise(), 5)
    assert verdict.accepted == 0
    assert verdict.token in (1, 2)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_trap_10_a_residual_that_sums_to_nothing(rule: str) -> None:
    p = np.array([[0.5, 0.5], [1.0, 0.0]])
    draft = Draft((1,), p[:1].copy())
    assert RULES[rule](p, draft, FreshNoise(), 0) == RULES["match"](p, Draft((1,)), Same(1, 0), 0)
    np.testing.assert_array_equal(token_plan(p, draft).weights(0), p[0])


class Same(FreshNoise):
    """Draws what it is told."""

    def __init__(self, *tokens: int):
        self.tokens = list(tokens)

    def draw(self, weights: np.ndarray, at: At) -> int:
        return self.tokens[at.position - at.round]


@pytest.mark.parametrize("params", [PLAIN, FRESH])
def test_trap_10_logits_that_are_not_numbers_are_an_error(params: SamplingParams) -> None:
    for bad in ([float("nan")] * SIZE, [0.5, float("nan"), 0.5, 0, 0]):
        with pytest.raises(ModelError, match="not finite"):
            Engine(Toy(table={(): bad})).generate([1], params)


def test_trap_10_token_id_0_is_a_token() -> None:
    target = Toy(table={(): np.eye(SIZE)[0]})
    for name, make in DRAFTERS.items():
        done = Engine(target, make(target)).generate([0], PLAIN)
        assert done.token_ids == (0,) * 10
        assert done.text == "a" * 10
        if name in ("zeros", "right", "same", "lookup"):
            assert done.stats.acceptance_rate == 1


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("stop", [(), ("a", "dc"), ("bd",)])
def test_trap_11_tokens_are_counted_alike_in_both_arms(name: str, stop: tuple[str, ...]) -> None:
    target = Toy(1)
    plain, fast = Engine(target), Engine(target, DRAFTERS[name](target))
    for seed in range(8):
        params = replace(SEEDED, seed=seed, max_tokens=16, stop=stop)
        one, two = (engine.generate([seed % SIZE], params) for engine in (plain, fast))
        for done in (one, two):
            stats = done.stats
            added = stats.correction + stats.bonus + stats.plain
            assert stats.completion_tokens == len(done.token_ids) == stats.accepted + added
            assert stats.drafted == stats.accepted + stats.rejected + stats.discarded
        assert one.token_ids == two.token_ids
        assert one.stats.rounds == one.stats.plain == len(one.token_ids)
        assert one.stats.acceptance_length == 1
        assert two.stats.rounds <= one.stats.rounds


def test_trap_11_seconds_belong_to_rounds_and_not_to_tokens() -> None:
    target = Toy(1, sequences=3)
    engine = Engine(target, right(target))
    for first in range(3):
        engine.submit([first], replace(PLAIN, ignore_eos=True))
    while steps := engine.step():
        assert len({step.round for step in steps}) == 1
        assert len({step.seconds for step in steps}) == 1


@pytest.mark.parametrize("name", DRAFTERS)
def test_trap_12_an_exact_tie_goes_to_the_lowest_id_in_both_arms(name: str) -> None:
    rows = {(): [0, 0.3, 0.1, 0.3, 0.3], (1,): [0.25] * 4 + [0], (0,): [0, 0, 0.5, 0.5, 0]}
    target = Toy(table=rows)
    done = Engine(target, DRAFTERS[name](target)).generate([2], PLAIN)
    assert done.token_ids == (1, 0, 2, 1, 0, 2, 1, 0, 2, 1)
