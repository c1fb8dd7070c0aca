"""The draft length that follows the measurements, in the real engine: exact, and out of the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import count

import pytest

from draftproof import Drafter, Engine, ModelError, ParameterError, SamplingParams, Speculation
from draftproof.control.latency import Table
from draftproof.control.turn import LONGEST
from draftproof.drafters.chain import ChainDrafter
from draftproof.drafters.lookup import LookupDrafter
from draftproof.drafters.model import ModelDrafter
from draftproof.models import Chunk
from draftproof.models.table import TableModel
from draftproof.types import RULES
from exact import Case, Leaf, Weights, asks, drawn_from
from laws import dishonest_rows, prove
from tables import BINARY, BINARY_DRAFT, TERNARY, TERNARY_DRAFT
from toy_drafters import DRAFTERS, Script, other, right, same, wrong
from toys import PLAIN, SEEDED, Toy, agrees, check, cycle, drain, eight_requests

AUTO = Speculation(draft_length=None)
LONG = SamplingParams(max_tokens=400, ignore_eos=True)


def clock(*seconds: float) -> Callable[[], float]:
    """Every look at it takes the next of these seconds, over and over: each run is the same."""
    looks, now = count(), [0.0]

    def look() -> float:
        now[0] += seconds[next(looks) % len(seconds)]
        return now[0]

    return look


def guided(draft: Weights, more: float, lookup: bool = False) -> Callable[[TableModel], Drafter]:
    """A draft model, with lookup before it or alone.

    Its controller knows from the start that a drafted token makes a pass ``more`` longer than one
    over a single token; every look at the clock takes a thousandth of that.
    """

    def make(target: TableModel) -> Drafter:
        drafters: list[Drafter] = [LookupDrafter(1)] if lookup else []
        chain = ChainDrafter([*drafters, drawn_from(draft)(target)], clock(1e-3))
        chain.control.estimates.target.adopt(Table({1: 1.0, 17: 1 + 16 * more}))
        return chain

    return make


def lengths(found: Sequence[Leaf]) -> set[int]:
    """How many tokens were drafted in a round."""
    return {len(step.drafted) for leaf in found for step in leaf.steps}


# Exact, proved by enumeration


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("more", [0.3, 0.4, 0.5])
def test_the_law_stays_when_the_length_is_decided_while_drafting(rule: str, more: float) -> None:
    """Some rows are surer than others: whether it goes on depends on what it has drawn."""
    case = Case(
        target=BINARY,
        drafter=guided(BINARY_DRAFT, more),
        rule=rule,
        draft_length=None,
        requests=asks((0, 1), 4),
    )
    prove(case)
    assert not dishonest_rows(case)


def test_the_enumeration_has_drafts_of_many_lengths() -> None:
    """In the first round, where nothing but the rows differs, too."""
    every: set[int] = set()
    for more in (0.3, 0.4, 0.5):
        case = Case(
            target=BINARY,
            drafter=guided(BINARY_DRAFT, more),
            draft_length=None,
            requests=asks((0, 1), 4),
        )
        found = prove(case)
        every |= lengths(found)
        if more == 0.4:
            assert {len(leaf.steps[0].drafted) for leaf in found} == {2, 3}
    assert every == {0, 1, 2, 3}


@pytest.mark.parametrize("rule", RULES)
def test_the_law_stays_on_three_tokens_with_lookup(rule: str) -> None:
    prove(
        Case(
            target=TERNARY,
            drafter=guided(TERNARY_DRAFT, 0.3, lookup=True),
            rule=rule,
            draft_length=None,
            requests=asks((0, 1, 0), 3),
        )
    )


def test_the_law_stays_for_two_at_once_and_in_the_next_conversation() -> None:
    for extra in (
        {"requests": (*asks((0, 1, 0), 2), *asks((1, 1), 3))},
        {"requests": asks((0, 1), 3), "next_prompt": lambda text: (*text, 0)},
    ):
        prove(Case(target=BINARY, drafter=guided(BINARY_DRAFT, 0.3), draft_length=None, **extra))


# The text stays


@pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS)
def test_eight_requests_that_differ_in_everything(make: Callable[[Toy], Drafter]) -> None:
    target = Toy(1, sequences=3)
    chain = ChainDrafter([make(target)], clock(0.3, 1.0, 0.1))
    engine = Engine(target, chain, prefill_chunk=5)
    requests = [(prompt, params) for prompt, params, _ in eight_requests()]
    ids = [engine.submit(*request, AUTO) for request in requests]
    drain(engine)
    for number, (prompt, params) in zip(ids, requests, strict=True):
        check(engine, number, target, prompt, params)


@pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS)
def test_a_seed_gives_the_same_text(make: Callable[[Toy], Drafter]) -> None:
    target = Toy(1)
    engine = Engine(target, make(target), speculation=AUTO)
    for temperature in (0.3, 1.0):
        params = replace(SEEDED, temperature=temperature, max_tokens=40, ignore_eos=True)
        assert agrees(engine.generate([1, 2], params), target, [1, 2], params)


def test_beside_requests_of_fixed_lengths() -> None:
    target = Toy(1, sequences=4)
    engine = Engine(target, ChainDrafter([LookupDrafter(1), other(target)], clock(1.0)))
    params = replace(SEEDED, max_tokens=40, ignore_eos=True)
    kinds = [AUTO, Speculation(draft_length=0), Speculation(draft_length=3), AUTO]
    ids = [engine.submit([1, n, 2], params, kind) for n, kind in enumerate(kinds)]
    steps = drain(engine)
    for n, number in enumerate(ids):
        check(engine, number, target, [1, n, 2], params)
    assert not any(step.drafted for step in steps if step.request == ids[1])
    assert max(len(step.drafted) for step in steps if step.request == ids[2]) == 3


# What it does


class Timed(Toy):
    """A pass takes so many seconds of a clock that stands still otherwise."""

    def __init__(self, now: list[float], seconds: float, **named: object) -> None:
        super().__init__(0, 2000, table=cycle(), **named)
        self._now, self._seconds = now, seconds

    def forward(self, chunks: Sequence[Chunk]) -> list:
        self._now[0] += self._seconds
        return super().forward(chunks)


def timed(draft: float, table: object = None) -> tuple[Engine, Timed]:
    """A target that counts abcd at a second a pass, and a draft model at its own pace."""
    now = [0.0]
    target, model = Timed(now, 1.0), Timed(now, draft)
    if table:
        model = Timed(now, draft)
        model._logits = {e: model._row(row) for e, row in table.items()}
    chain = ChainDrafter([ModelDrafter(model, target)], lambda: now[0])
    return Engine(target, chain, speculation=AUTO), model


def test_a_plain_round_does_not_call_the_draft_model() -> None:
    """And what it has not read meanwhile goes into its next pass."""
    engine, model = timed(3.0)
    engine.submit([0, 1, 2, 3], LONG)
    plain = calls = 0
    while steps := engine.step():
        silent = len(model.calls) == calls
        calls = len(model.calls)
        plain += silent
        assert silent or steps[0].drafted or steps[0].prefilled
        assert not (silent and steps[0].drafted)
    assert plain > 350
    for before, after in zip(model.calls, model.calls[1:], strict=False):
        assert after[0].tokens
        assert before[0].seq == after[0].seq


def test_a_cheap_and_good_draft_model_drafts_much() -> None:
    engine, _ = timed(0.01)
    done = engine.generate([0, 1, 2, 3], LONG)
    assert done.token_ids == tuple(i % 4 for i in range(400))
    assert done.stats.mean_draft_length > 8
    assert done.stats.plain_share < 0.2
    assert max(len(step.drafted) for step in engine.stream([0, 1], LONG)) == LONGEST


def test_an_unread_prompt_is_read_when_the_drafter_speaks() -> None:
    """A draft model that does not pay reads no prompt either."""
    wrong_rows = {e: [row[-1], *row[:-1]] for e, row in cycle().items()}
    engine, model = timed(1.0, wrong_rows)
    engine.generate([0, 1, 2, 3], LONG)
    calls = len(model.calls)
    engine.generate([2] * 200, SamplingParams(max_tokens=5, ignore_eos=True))
    assert len(model.calls) == calls


def test_each_round_says_what_was_expected_of_it() -> None:
    engine, _ = timed(0.1)
    steps = [step for step in engine.stream([0, 1, 2, 3], LONG) if step.tokens]
    assert steps[0].forecast is None, "nothing is known in the first round"
    late = [step for step in steps[-40:] if len(step.drafted) == LONGEST]
    assert len(late) > 10
    for step in late:
        taken = step.seconds.draft + step.seconds.verify + step.seconds.other
        assert step.forecast.seconds == pytest.approx(taken, rel=0.05)
        assert step.forecast.tokens == pytest.approx(len(step.tokens), rel=0.2)


def test_fixed_lengths_are_not_forecast() -> None:
    target = Toy(1)
    steps = list(Engine(target, right(target)).stream([1, 2], PLAIN))
    assert all(step.forecast is None for step in steps)
    assert [len(step.drafted) for step in steps[:1]] == [4]


def test_statistics() -> None:
    engine, _ = timed(0.1)
    stats = engine.generate([0, 1, 2, 3], LONG).stats
    document = stats.to_json()
    assert document["mean_draft_length"] == stats.drafted / stats.rounds
    assert document["plain_share"] == stats.plain / stats.rounds
    assert -1 < document["regret"] < 0.3
    fixed = engine.generate([0, 1], LONG, Speculation(draft_length=3)).stats
    assert fixed.regret is None


def test_a_drafter_that_is_always_wrong_is_hardly_heard() -> None:
    target = Timed(now := [0.0], 1.0)
    drafter = wrong(target)

    def slow(request: object) -> object:
        now[0] += 0.3
        return drafter.function(request)

    chain = ChainDrafter([Script(slow)], lambda: now[0])
    engine = Engine(target, chain, speculation=AUTO)
    engine.generate([0, 1], replace(LONG, max_tokens=1000))
    assert now[0] < 1.02 * 1000


def test_failures_change_nothing() -> None:
    for make in (same, other):
        target = Toy(1)
        drafter = make(target)
        engine = Engine(target, ChainDrafter([drafter], clock(1.0)), speculation=AUTO)
        drafter.model.failures = {n: (ModelError("down"), "half") for n in (2, 5, 6, 9)}
        target.failures = {n: (ModelError("down"), "half") for n in (4, 9)}
        params = replace(SEEDED, max_tokens=40, ignore_eos=True)
        number = engine.submit([1, 2], params)
        failed = 0
        while True:
            try:
                if not engine.step():
                    break
            except ModelError:
                failed += 1
        assert failed == 2
        check(engine, number, target, [1, 2], params)


def test_auto_is_the_default() -> None:
    assert next(f.default for f in fields(Speculation) if f.name == "draft_length") is None
    with pytest.raises(ParameterError, match="or None"):
        Speculation(draft_length=-1)


def test_the_next_turn_of_a_conversation_is_not_read_again() -> None:
    """What the draft model holds of the first turn counts as read."""
    engine, _ = timed(0.1)
    first = engine.generate([0, 1, 2, 3] * 20, SamplingParams(max_tokens=40, ignore_eos=True))
    tokens = [0, 1, 2, 3] * 20 + list(first.token_ids)
    request = engine.submit([*tokens, 0, 1], SamplingParams(max_tokens=40, ignore_eos=True))
    engine.step()
    (stream,) = engine.drafter.control.estimates.streams.values()
    assert stream.read[0] >= len(tokens) - 20
    drain(engine)
    engine.completion(request)
