"""The engine emits the target's own law, exactly: all drafts, all coins, as fractions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftproof import (
    SamplingParams,
)
from draftproof.sampling import distribution as real_distribution
from draftproof.types import RULES
from exact import (
    Case,
    asks,
    distribution,
    drawn_from,
    leaves,
    normalised,
)
from laws import (
    accepted,
    dishonest_rows,
    expected_accepted,
    expected_law,
    law,
    prove,
)
from tables import (
    BINARY,
    BINARY_DRAFT,
    QUATERNARY,
    QUATERNARY_DRAFT,
    TERNARY,
    TERNARY_DRAFT,
    random_table,
)

COINED = ("token", "block")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_every_draft_length(rule: str, length: int) -> None:
    """k + 2 tokens, so at least two rounds."""
    case = Case(
        target=BINARY,
        drafter=drawn_from(BINARY_DRAFT),
        rule=rule,
        draft_length=length,
        requests=asks((1,), length + 2),
    )
    found = prove(case)
    assert min(leaf.rounds for leaf in found) >= 2
    assert accepted(found) == expected_accepted(case, BINARY_DRAFT)
    assert not dishonest_rows(case)


@pytest.mark.parametrize(("rule", "tokens"), [("match", 3), ("token", 4), ("block", 4)])
def test_three_tokens(rule: str, tokens: int) -> None:
    case = Case(
        target=TERNARY,
        drafter=drawn_from(TERNARY_DRAFT),
        rule=rule,
        requests=asks((0,), tokens),
    )
    found = prove(case)
    assert max(leaf.rounds for leaf in found) == tokens
    assert accepted(found) == expected_accepted(case, TERNARY_DRAFT)


@pytest.mark.parametrize("rule", COINED)
def test_three_drafts_of_three_tokens(rule: str) -> None:
    case = Case(
        target=TERNARY,
        drafter=drawn_from(TERNARY_DRAFT),
        rule=rule,
        draft_length=3,
        requests=asks((0,), 4),
    )
    assert accepted(prove(case)) == expected_accepted(case, TERNARY_DRAFT)


@pytest.mark.parametrize("rule", RULES)
def test_four_tokens(rule: str) -> None:
    case = Case(
        target=QUATERNARY,
        drafter=drawn_from(QUATERNARY_DRAFT),
        rule=rule,
        draft_length=1,
        requests=asks((0,), 3 if rule != "match" else 2),
    )
    assert accepted(prove(case)) == expected_accepted(case, QUATERNARY_DRAFT)


@pytest.mark.parametrize("rule", COINED)
@pytest.mark.parametrize("seed", range(6))
def test_random_tables(rule: str, seed: int) -> None:
    target, draft = random_table(seed, 3), random_table(seed + 100, 3)
    case = Case(target=target, drafter=drawn_from(draft), rule=rule, requests=asks((2,), 3))
    assert accepted(prove(case)) == expected_accepted(case, draft)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4])
def test_every_budget(rule: str, max_tokens: int) -> None:
    case = Case(
        target=BINARY,
        drafter=drawn_from(BINARY_DRAFT),
        rule=rule,
        draft_length=2,
        requests=asks((0,), max_tokens),
    )
    found = prove(case)
    assert accepted(found) == expected_accepted(case, BINARY_DRAFT)
    # A round adds one token of its own: more drafts than the rest of the budget are worthless.
    assert max(len(step.drafted) for leaf in found for step in leaf.steps) <= max_tokens - 1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("prompt", [(0,), (2, 1)])
def test_end_token(rule: str, prompt: tuple[int, ...]) -> None:
    """It ends the answer wherever it stands; one in the prompt is a token like others."""
    case = Case(
        target=TERNARY,
        drafter=drawn_from(TERNARY_DRAFT),
        rule=rule,
        end=2,
        requests=asks(prompt, 3 if rule == "match" else 4),
    )
    found = prove(case)
    assert accepted(found) == expected_accepted(case, TERNARY_DRAFT)
    assert not dishonest_rows(case)
    # Nothing is worth proposing behind an end.
    assert not any(2 in step.drafted[:-1] for leaf in found for step in leaf.steps)
    assert any(step.drafted[-1:] == (2,) for leaf in found for step in leaf.steps)


@pytest.mark.parametrize("rule", COINED)
def test_end_token_ignored(rule: str) -> None:
    """Its probability is that of any other token, and the answer goes on behind it."""
    options = SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True)
    case = Case(
        target=TERNARY,
        drafter=drawn_from(TERNARY_DRAFT),
        rule=rule,
        end=2,
        requests=(((0,), options),),
    )
    assert law(leaves(case), lambda leaf: leaf.answers) == expected_law(replace(case, end=None))


@pytest.mark.parametrize("rule", COINED)
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.5},
        {"top_k": 2},
        {"top_k": 1},
        {"top_p": 0.625},
        {"min_p": 0.5},
        {"temperature": 0.5, "top_k": 3, "top_p": 0.875, "min_p": 0.125},
    ],
    ids=str,
)
def test_sampling_options(rule: str, options: dict[str, Any]) -> None:
    case = Case(
        target=QUATERNARY,
        drafter=drawn_from(QUATERNARY_DRAFT),
        rule=rule,
        requests=asks((0,), 3, **options),
    )
    assert accepted(prove(case)) == expected_accepted(case, QUATERNARY_DRAFT)
    assert not dishonest_rows(case)


@pytest.mark.parametrize("length", [0, 2])
def test_greedy(length: int) -> None:
    """One path only, the target's most probable tokens."""
    case = Case(
        target=TERNARY,
        drafter=drawn_from(TERNARY_DRAFT),
        rule=None,
        draft_length=length,
        requests=asks((0,), 6, temperature=0),
    )
    assert len(prove(case)) == 1


@pytest.mark.parametrize("rule", RULES)
def test_prompt_longer_than_a_chunk(rule: str) -> None:
    case = Case(
        target=BINARY,
        drafter=drawn_from(BINARY_DRAFT),
        rule=rule,
        draft_length=1,
        requests=asks((0, 1, 1, 0, 1), 3),
        prefill_chunk=2,
    )
    for leaf in prove(case):
        assert [step.prefilled for step in leaf.steps][:4] == [2, 2, 1, 0]


@pytest.mark.parametrize("rule", RULES)
def test_two_at_once(rule: str) -> None:
    """Two requests in the same passes, with prompts and options of their own, are independent."""
    requests = asks((0, 1), 2) + asks((1,), 2 if rule == "match" else 3, temperature=0.5)
    case = Case(
        target=BINARY,
        drafter=drawn_from(BINARY_DRAFT),
        rule=rule,
        draft_length=1,
        requests=requests,
    )
    for leaf in prove(case):
        assert {step.request for step in leaf.steps if step.round == 1} == {0, 1}


@pytest.mark.parametrize("rule", COINED)
@pytest.mark.parametrize("end", [None, 1])
@pytest.mark.parametrize(
    "next_prompt",
    [lambda text: (*text, 0), lambda text: text[:-1], lambda text: (1, 1, 0)],
    ids=["reply", "all of it cached", "another"],
)
def test_second_turn(rule: str, end: int | None, next_prompt: Callable[..., Any]) -> None:
    """Another prompt on the caches that the first answer left, however its last round ended."""
    case = Case(
        target=BINARY,
        drafter=drawn_from(BINARY_DRAFT),
        rule=rule,
        end=end,
        requests=asks((0,), 2),
        next_prompt=next_prompt,
    )
    prove(case)


@pytest.mark.parametrize("seed", range(20))
def test_the_exact_distribution_is_the_real_one(seed: int) -> None:
    """The fractions the enumeration runs on, against the arithmetic that users get."""
    rows = np.array([normalised(row) for row in random_table(seed, 6).values()], dtype=object)
    with np.errstate(divide="ignore"):
        logits = np.log(rows.astype(np.float64))
    for params in (
        SamplingParams(temperature=0),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5, top_k=3),
        SamplingParams(temperature=1.0, top_p=0.7),
        SamplingParams(temperature=1.0, top_k=4, top_p=0.6, min_p=0.3),
    ):
        exact = distribution(rows, params).astype(np.float64)
        assert np.abs(real_distribution(logits, params) - exact).max() < 1e-12
