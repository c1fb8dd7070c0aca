"""The proof for draft models of another tokenizer: the law stays, q is what is drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from byte_tokens import DRAFT, TARGET, crossing
from draftproof.types import CROSS_VOCABULARY, RULES
from exact import Case, Weights, asks, drawn_from
from laws import accepted, dishonest_rows, expected_accepted, law, mean, prove
from tables import BINARY, QUATERNARY, TERNARY, TERNARY_DRAFT

COINED = ("token", "block")

# Over DRAFT: ba, c, a, abc, b. Of order 2, so that another tokenization of the text shows.
STRANGER: Weights = {
    (): (1, 1, 1, 1, 1),
    (0,): (1, 3, 2, 0, 2),
    (1,): (2, 1, 1, 1, 3),
    (2,): (0, 2, 1, 1, 4),
    (3,): (1, 1, 5, 0, 1),
    (2, 4): (3, 1, 1, 1, 1),
    (0, 1): (1, 1, 1, 4, 1),
}


def case(method: str, rule: str, length: int, **named: Any) -> Case:
    tokens = 4 if length < 3 and rule != "match" else 3
    named = {"requests": asks((0, 1), tokens), **named}
    return Case(
        target=QUATERNARY,
        drafter=crossing(STRANGER, method),
        rule=rule,
        draft_length=length,
        **named,
    )


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", CROSS_VOCABULARY)
def test_the_law_is_the_targets_own(method: str, rule: str, length: int) -> None:
    found = prove(case(method, rule, length))
    assert accepted(found) > 0
    assert max(leaf.rounds for leaf in found) > 1


@pytest.mark.parametrize("options", [{"top_k": 2}, {"top_p": 0.75}, {"temperature": 0.5}])
@pytest.mark.parametrize("rule", COINED)
def test_sampling_options_act_on_what_both_share(rule: str, options: dict[str, Any]) -> None:
    one = case("tokens", rule, 2, requests=asks((0, 1), 3, **options))
    assert accepted(prove(one)) > 0
    assert not dishonest_rows(one)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_rows_are_what_was_drawn_from(length: int) -> None:
    assert not dishonest_rows(case("tokens", "block", length, requests=asks((0, 1), 4)))


@pytest.mark.parametrize("rule", RULES)
def test_acceptance_is_what_the_restricted_row_says(rule: str) -> None:
    """One draft behind "ab": the draft model read (a, b) and not the target's token ab."""
    one = case("tokens", rule, 1, requests=asks((2,), 3))
    row = STRANGER[(2, 4)]
    restricted = (row[2], row[4], 0, row[1])  # a, b, c in the target's order
    assert accepted(prove(one)) == expected_accepted(one, {(): restricted})


@pytest.mark.parametrize("method", CROSS_VOCABULARY)
@pytest.mark.parametrize("rule", RULES)
def test_end_tokens_are_drafted_and_end(method: str, rule: str) -> None:
    pieces = ((b"a", b"b", b"</s>"), (b"<end>", b"b", b"a", b"ab"))
    target: Weights = {(): (2, 1, 1), (0,): (1, 2, 1), (1,): (1, 1, 2)}
    draft: Weights = {(): (1, 1, 1, 1), (3,): (4, 1, 2, 1), (1,): (3, 1, 1, 1), (2,): (2, 1, 1, 0)}
    one = Case(
        target=target,
        drafter=crossing(draft, method, pieces, (2, 0)),
        rule=rule,
        draft_length=2,
        requests=asks((0, 1), 3),
        end=2,
    )
    found = prove(one)
    assert any(2 in step.drafted[: step.accepted] for leaf in found for step in leaf.steps)
    if method == "tokens":
        assert not dishonest_rows(one)


@pytest.mark.parametrize("rule", COINED)
def test_the_draft_stops_where_nothing_shared_is_possible(rule: str) -> None:
    """Before the draw, so that it is allowed: behind c all mass is on the draft model's own."""
    draft = {**STRANGER, (1,): (1, 0, 0, 1, 0)}
    one = replace(case("tokens", rule, 3), drafter=crossing(draft, "tokens"))
    found = prove(one)
    lengths = {len(step.drafted) for leaf in found for step in leaf.steps}
    assert lengths >= {0, 1, 2}
    assert not dishonest_rows(one)


@pytest.mark.parametrize("rule", COINED)
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("pair", [(BINARY, BINARY), (TERNARY, TERNARY_DRAFT)])
def test_the_same_vocabulary_accepts_as_much_as_without(
    rule: str, length: int, pair: tuple[Weights, Weights]
) -> None:
    target, draft = pair
    pieces = ((b"a", b"b", b"c")[: len(target[()])],) * 2
    plain = Case(
        target=target,
        drafter=drawn_from(draft),
        rule=rule,
        draft_length=length,
        requests=asks((0,), 4 if length == 1 else 3),
    )
    cross = replace(plain, drafter=crossing(draft, "tokens", pieces))
    ways = [law(prove(one), drafted_and_accepted) for one in (plain, cross)]
    assert ways[0] == ways[1]


def drafted_and_accepted(leaf: Any) -> tuple[Any, ...]:
    return tuple((step.drafted, step.accepted) for step in leaf.steps)


@pytest.mark.parametrize("method", CROSS_VOCABULARY)
@pytest.mark.parametrize("draft_pieces", [DRAFT, (b"x", b"y", b"xy", b"z", b"zz")])
@pytest.mark.parametrize("next_prompt", [lambda text: (*text, 0), lambda text: (0, 3, 2)])
def test_the_next_turn(method: str, draft_pieces: Sequence[bytes], next_prompt: Any) -> None:
    one = Case(
        target=QUATERNARY,
        drafter=crossing(STRANGER, method, (TARGET, draft_pieces)),
        requests=asks((0, 1), 2),
        draft_length=1,
        next_prompt=next_prompt,
    )
    found = prove(one)
    drafted = mean(found, lambda leaf: sum(len(step.drafted) for step in leaf.steps))
    assert (drafted == Fraction(0)) == (draft_pieces != DRAFT)


def test_two_at_once_and_prompts_in_parts() -> None:
    requests = (*asks((0, 1), 2), *asks((2, 0, 3), 2))
    prove(replace(case("auto", "block", 1), requests=requests, prefill_chunk=2))


@pytest.mark.parametrize("method", CROSS_VOCABULARY)
def test_a_draft_model_that_runs_out_of_context(method: str) -> None:
    drafter = crossing(STRANGER, method, context_length=4)
    found = prove(replace(case(method, "block", 2), drafter=drafter))
    assert any(step.drafted for leaf in found for step in leaf.steps)
    assert any(not step.drafted for leaf in found for step in leaf.steps)
