"""The same proof for every kind of drafter: the law stays, whatever proposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from draftproof import (
    Draft,
    Drafter,
    DraftRequest,
    Engine,
    SamplingParams,
    Speculation,
)
from draftproof.drafters.lookup import LookupDrafter
from draftproof.drafters.model import ModelDrafter
from draftproof.models.table import TableModel
from draftproof.types import RULES
from exact import (
    Case,
    ChainDrafter,
    Weights,
    asks,
    drawn_from,
    leaves,
    normalised,
)
from laws import (
    accepted,
    dishonest_rows,
    expected_accepted,
    mean,
    prove,
)
from tables import (
    BINARY,
    BINARY_DRAFT,
    BINARY_RUN,
    OUTSIDE_RUN,
    QUATERNARY,
    QUATERNARY_DRAFT,
    TERNARY,
    TERNARY_DRAFT,
)

COINED = ("token", "block")


PADDED: Weights = {key: (*row, 3) for key, row in TERNARY_DRAFT.items()}


@pytest.mark.parametrize("rule", COINED)
@pytest.mark.parametrize(
    ("table", "same_as"),
    [(BINARY_DRAFT, {k: (*row, 0) for k, row in BINARY_DRAFT.items()}), (PADDED, TERNARY_DRAFT)],
    ids=["smaller", "larger"],
)
def test_padded_vocabulary(rule: str, table: Weights, same_as: Weights) -> None:
    """Ids that one model lacks are never proposed; the others keep their proportions."""
    case = Case(target=TERNARY, drafter=drawn_from(table), rule=rule, requests=asks((0,), 3))
    assert accepted(prove(case)) == expected_accepted(case, same_as)
    assert not dishonest_rows(case)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "stop",
    [
        lambda drafted, row: drafted[-1:] == [0],
        lambda drafted, row: max(row) < Fraction(1, 2),
        lambda drafted, row: sum(drafted) + 2 * row[0] > 2,
    ],
    ids=["kept token", "next distribution", "both"],
)
def test_drafter_that_stops_early(
    rule: str, stop: Callable[[list[int], tuple[Fraction, ...]], bool]
) -> None:
    """A stopping time: it looks at tokens it keeps, and at the distribution before the draw."""
    case = Case(
        target=TERNARY,
        drafter=lambda target: ChainDrafter(TERNARY_DRAFT, stop),
        rule=rule,
        draft_length=3,
        requests=asks((1,), 3 if rule == "match" else 4),
    )
    found = prove(case)
    lengths = {len(step.drafted) for leaf in found for step in leaf.steps}
    assert len(lengths) > 2, "it has to stop at different lengths to test anything"
    assert not dishonest_rows(case)


@pytest.mark.parametrize("rule", COINED)
def test_draft_model_that_runs_out_of_context(rule: str) -> None:
    """It proposes less near its end and nothing behind it; the target goes on by itself."""
    case = Case(
        target=BINARY,
        drafter=drawn_from(BINARY_DRAFT, context_length=4),
        rule=rule,
        requests=asks((0, 1), 5),
    )
    found = prove(case)
    for leaf in found:
        length = 2
        for step in leaf.steps:
            assert len(step.drafted) <= max(0, 4 + 1 - length)
            length += len(step.tokens)
    assert accepted(found) == expected_accepted(case, BINARY_DRAFT)


@pytest.mark.parametrize("rule", RULES)
def test_lookup(rule: str) -> None:
    """Copied drafts carry no rows: whatever the rule, they are judged by match."""
    case = Case(
        target=BINARY,
        drafter=lambda target: LookupDrafter(min_match=1),
        rule=rule,
        draft_length=3,
        requests=asks((0, 1, 1, 0, 1), 5),
    )
    found = prove(case)
    assert mean(found, lambda leaf: sum(step.accepted for step in leaf.steps)) > 1


@pytest.mark.parametrize("rule", RULES)
def test_disjoint_supports_accept_nothing(rule: str) -> None:
    case = Case(
        target=BINARY_RUN, drafter=drawn_from(OUTSIDE_RUN), rule=rule, requests=asks((0,), 3)
    )
    for leaf in prove(case):
        assert not any(step.accepted for step in leaf.steps)
        assert any(step.drafted for step in leaf.steps)


@pytest.mark.parametrize("rule", COINED)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_draft_equal_to_target_accepts_everything(rule: str, length: int) -> None:
    """Round after round: a stale cache of the draft model would show in the second."""
    case = Case(
        target=BINARY,
        drafter=drawn_from(BINARY),
        rule=rule,
        draft_length=length,
        requests=asks((0,), 2 * length + 3),
    )
    for leaf in prove(case):
        assert all(step.accepted == len(step.drafted) for step in leaf.steps)
        assert leaf.rounds == 3


@pytest.mark.parametrize("next_prompt", [lambda text: (*text, 0), lambda text: (1, 0, 1, 1)])
def test_and_in_the_next_conversation(next_prompt: Callable[..., Any]) -> None:
    """What the draft model holds of the first is right for the second only where they agree."""
    case = Case(
        target=BINARY,
        drafter=drawn_from(BINARY),
        draft_length=1,
        requests=asks((0,), 4),
        next_prompt=next_prompt,
    )
    for leaf in prove(case):
        assert all(step.accepted == len(step.drafted) for step in leaf.steps)


@pytest.mark.parametrize("pair", [(TERNARY, TERNARY_DRAFT), (QUATERNARY, QUATERNARY_DRAFT)])
def test_block_accepts_more_than_token(pair: tuple[Weights, Weights]) -> None:
    target, draft = pair
    case = Case(target=target, drafter=drawn_from(draft), requests=asks((0,), 3))
    block, token = (accepted(leaves(replace(case, rule=rule))) for rule in ("block", "token"))
    assert block > token


class Liar:
    """Proposes what it is told, without rows."""

    name = "liar"

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tuple(tokens)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft(self._tokens[: request.length]) for request in requests]

    def close(self) -> None: ...


def logits_of(table: Weights) -> dict[tuple[int, ...], list[float]]:
    return {key: [float(p) for p in normalised(row)] for key, row in table.items()}


@pytest.mark.parametrize(
    "make",
    [
        lambda target: ModelDrafter(TableModel(logits_of(TERNARY_DRAFT)), target),
        lambda target: ModelDrafter(TableModel(logits_of(TERNARY)), target),
        lambda target: LookupDrafter(min_match=1),
        lambda target: Liar((0, 0, 0)),
        lambda target: Liar((2, 1, 0)),
    ],
    ids=["model", "itself", "lookup", "zeros", "falling"],
)
@pytest.mark.parametrize("length", [1, 3])
def test_seeded_text_is_plain_text(make: Callable[[TableModel], Drafter], length: int) -> None:
    """Real noise, real floats: whatever drafts, and however many."""
    for seed in range(-5, 20):
        params = SamplingParams(temperature=0.75, top_p=0.875, seed=seed, max_tokens=12)
        plain = Engine(TableModel(logits_of(TERNARY))).generate((0, 1), params)
        target = TableModel(logits_of(TERNARY))
        speculation = Speculation(draft_length=length)
        fast = Engine(target, make(target), speculation=speculation).generate((0, 1), params)
        assert fast.token_ids == plain.token_ids


def test_seeded_drafts_of_the_target_itself_are_all_accepted() -> None:
    """Target and drafter draw with the same noise."""
    target = TableModel(logits_of(TERNARY))
    engine = Engine(target, ModelDrafter(TableModel(logits_of(TERNARY)), target))
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=40)
    stats = engine.generate((0,), params).stats
    assert stats.rejected == 0
    assert stats.accepted >= 30
