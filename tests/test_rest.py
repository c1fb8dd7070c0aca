"""Rounds without a decision: where there is nothing to decide, and counted as what they are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from draftproof import Draft, DraftRequest, Engine, SamplingParams, Speculation
from draftproof.control import Controller
from draftproof.control.choice import Rate
from draftproof.control.rest import REST
from draftproof.control.turn import Ask, Kind, Outcome
from draftproof.drafters.chain import ChainDrafter
from draftproof.drafters.lookup import LookupDrafter
from draftproof.drafters.model import ModelDrafter
from test_auto import AUTO, LONG, Timed
from toys import Toy, cycle, drain


class Silent(LookupDrafter):
    """Never has anything to offer."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft() for _ in requests]


def decisions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of sequences with every decision."""
    made: list[int] = []
    real = Controller.open

    def noted(self: Controller, asks: Sequence[Ask], *rest: int) -> object:
        made.append(len(asks))
        return real(self, asks, *rest)

    monkeypatch.setattr(Controller, "open", noted)
    return made


def test_where_nothing_is_offered_nothing_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    target = Timed(now, 1.0)
    chain = ChainDrafter([Silent()], lambda: now[0])
    made = decisions(monkeypatch)
    engine = Engine(target, chain, speculation=AUTO)
    done = engine.generate([0, 1, 2], LONG)
    assert done.token_ids == tuple((3 + i) % 4 for i in range(400))
    assert not made
    assert done.stats.plain == done.stats.rounds


def test_a_draft_model_that_does_not_pay_is_thought_of_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    target, model = Timed(now, 1.0), Timed(now, 3.0)
    chain = ChainDrafter([ModelDrafter(model, target)], lambda: now[0])
    made = decisions(monkeypatch)
    engine = Engine(target, chain, speculation=AUTO)
    done = engine.generate([0, 1, 2, 3], LONG)
    assert done.stats.plain > 350
    assert 400 / (REST + 1) <= len(made) < 120


def test_another_sequence_is_decided_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    target, model = Timed(now, 1.0, sequences=2), Timed(now, 3.0, sequences=2)
    chain = ChainDrafter([ModelDrafter(model, target)], lambda: now[0])
    engine = Engine(target, chain, speculation=AUTO)
    engine.submit([0, 1, 2, 3], LONG)
    for _ in range(100):
        engine.step()
    made = decisions(monkeypatch)
    engine.submit([0, 1, 2, 3], SamplingParams(max_tokens=3, ignore_eos=True))
    engine.step()
    assert made == [2]
    drain(engine)


def test_a_fixed_length_never_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    target, model = Toy(0, 2000, table=cycle()), Toy(0, 2000, table=cycle())
    chain = ChainDrafter([ModelDrafter(model, target)])
    made = decisions(monkeypatch)
    engine = Engine(target, chain, speculation=Speculation(draft_length=1))
    done = engine.generate([0, 1], LONG)
    assert len(made) == done.stats.rounds


def test_rests_are_counted_as_plain_rounds() -> None:
    """Regret, budgets and the long run see them: two controllers, one is never let to rest."""
    resting, awake = Controller([Kind.FREE], lambda: 0.0), Controller([Kind.FREE], lambda: 0.0)
    for control in (resting, awake):
        control.estimates.target.observe(1, 1, 1.0)
        control.estimates.target.observe(1, 1, 1.0)
        control.budget.margin = control.budget.probes = 0.0
    for written in range(10, 60):
        ask = Ask(0, 5, written, 4)
        assert resting.rests((5,), 1, lambda ask=ask: [ask])
        awake.open([ask], 1).decide()
        assert resting.rested(False)
        assert not awake.rested(False)
        awake.learn([Outcome(0, 0, 0, [1])], 1.0, 0.0, False)
    assert resting.regret(0, 5, 1, 35) == pytest.approx(awake.regret(0, 5, 1, 35), abs=1e-6)
    assert resting.rate(1).value(0.1) == pytest.approx(awake.rate(1).value(0.1))
    assert resting.budget.margin == pytest.approx(awake.budget.margin)
    mine, other = (c.estimates.streams[0].hindsight for c in (resting, awake))
    assert (mine.tokens, mine.seconds) == pytest.approx((other.tokens, other.seconds))


def test_many_rounds_at_once_are_as_many_one_by_one() -> None:
    once, single = Rate(), Rate()
    for rate in (once, single):
        rate.add(5.0, 1.0)
    once.add(2.0, 3.0, 7)
    for _ in range(7):
        single.add(2.0, 3.0)
    assert (once.tokens, once.seconds) == pytest.approx((single.tokens, single.seconds))


def test_a_prompt_read_beside_a_rest_is_no_plain_round() -> None:
    control = Controller([Kind.FREE], lambda: 0.0)
    control.estimates.target.observe(1, 1, 1.0)
    control.estimates.target.observe(1, 1, 1.0)
    assert control.rests((5,), 2, lambda: [Ask(0, 5, 10, 4)])
    assert control.rested(True)
    assert control.estimates.streams[0].hindsight.tokens == 0
    control.regret(0, 5, 1, 10)
    assert control.estimates.streams[0].hindsight.tokens == 0


def test_what_is_expected_is_told_as_in_other_rounds() -> None:
    now = [0.0]
    target, model = Timed(now, 1.0), Timed(now, 3.0)
    chain = ChainDrafter([ModelDrafter(model, target)], lambda: now[0])
    engine = Engine(target, chain, speculation=AUTO)
    steps = list(engine.stream([0, 1, 2, 3], LONG))[100:-1]  # the last has no room for drafts
    for step in (step for step in steps if not step.drafted):
        assert step.forecast is not None
        assert step.forecast.tokens == 1.0
        assert not step.forecast.probe
        assert step.forecast.seconds == pytest.approx(1.0, rel=0.05)


def test_a_rest_that_began_while_a_prompt_was_read_knows_the_context() -> None:
    control = Controller([Kind.FREE], lambda: 0.0)
    assert control.rests((5,), 1, lambda: [Ask(0, 5, 10, 0, reading=True)])
    assert control.rested(True)
    assert control.rests((5,), 1, lambda: [Ask(0, 5, 4000, 4)])
    assert control._rest.context == 4000


def test_a_round_that_failed_is_not_taken_for_the_next() -> None:
    control = Controller([Kind.FREE], lambda: 0.0)
    ask = Ask(0, 5, 10, 4)
    assert control.rests((5,), 1, lambda: [ask])
    decision = control.open([ask], 1)
    decision.turns[0].offers[0] = ([1, 2], 3)
    decision.decide()
    assert not control.rested(False)
    control.learn([Outcome(0, 0, 0, [1])], 1.0, 0.0, False)
    assert control.estimates.streams[0].hindsight.tokens == 1
    assert control.estimates.streams[0].hindsight.drafters[0].known == [1]
