from __future__ import annotations

import gc
from contextlib import nullcontext

import numpy as np
import pytest

from draftproof import (
    ClosedError,
    DraftproofError,
    Engine,
    ModelError,
    ModelOptions,
    ParameterError,
    SamplingParams,
    Speculation,
    Step,
)
from draftproof.drafters.model import ModelDrafter
from draftproof.models.table import load as load_table
from toy_drafters import DRAFTERS, Script, lookup, other
from toys import (
    PLAIN,
    SEEDED,
    NoRollback,
    Toy,
    check,
    drain,
    eight_requests,
    oracle,
    table,
    text_of,
    tokens_of,
)


@pytest.mark.parametrize("when", range(12))
@pytest.mark.parametrize("victim", [0, 3, 7])
def test_a_cancelled_request_leaves_no_trace(when: int, victim: int) -> None:
    target = Toy(1, sequences=3)
    engine = Engine(target, other(target), prefill_chunk=4)
    requests = {engine.submit(*request): request[:2] for request in eight_requests()}
    steps = [step for _ in range(when) for step in engine.step()]
    engine.cancel(victim)
    engine.cancel(victim)  # nothing happens
    later = drain(engine)
    assert all(step.request != victim for step in later)
    for request, (prompt, params) in requests.items():
        if request != victim:
            check(engine, request, target, prompt, params)
    done = engine.completion(victim)
    assert done.token_ids == tokens_of([s for s in steps if s.request == victim])
    prompt, params = requests[victim]
    assert oracle(target, prompt, params)[0][: len(done.token_ids)] == done.token_ids
    if done.finish_reason != "cancelled":
        assert (done.token_ids, done.finish_reason, done.text) == oracle(target, prompt, params)
    again = engine.generate(prompt, params)
    assert again.token_ids == oracle(target, prompt, params)[0]


def test_a_request_whose_logits_turn_nan_ends_alone() -> None:
    rows = {**table(1), (3, 3, 3): [float("nan")] * 5}
    target = Toy(sequences=3, table=rows)
    engine = Engine(target, lookup(target))
    for params in (PLAIN, SEEDED, SamplingParams(max_tokens=8, temperature=1)):
        good = [engine.submit([i, 1], SEEDED) for i in (0, 2)]
        bad = engine.submit([3, 3, 3], params)
        last = [step for step in drain(engine) if step.request == bad][-1]
        assert last.finish_reason == "error"
        assert isinstance(last.error, ModelError)
        with pytest.raises(ModelError, match="not finite"):
            engine.completion(bad)
        for request, first in zip(good, (0, 2), strict=True):
            check(engine, request, target, [first, 1], SEEDED)
        with pytest.raises(ModelError, match="not finite"):
            list(engine.stream([3, 3, 3], params))
        with pytest.raises(ModelError, match="not finite"):
            engine.generate_many([[3, 3, 3], [0, 1]], params)
    assert not engine._finished


ERRORS = [ModelError("broken"), KeyboardInterrupt()]


@pytest.mark.parametrize("error", ERRORS, ids=["ModelError", "KeyboardInterrupt"])
@pytest.mark.parametrize("when", ["before", "half", "after"])
@pytest.mark.parametrize("number", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    ("where", "kind"), [("target", Toy), ("drafter", Toy), ("target", NoRollback)]
)
def test_a_round_that_fails_leaves_all_as_it_was(
    error: BaseException, when: str, where: str, number: int, kind: type[Toy]
) -> None:
    target = kind(1, sequences=3)
    drafter = other(target) if kind is Toy else None
    failing = target if where == "target" else drafter.model
    failing.failures[number] = (error, when)
    engine = Engine(target, drafter, prefill_chunk=5)
    requests = {engine.submit(*request): request[:2] for request in eight_requests()}
    # A draft model's own failure costs its drafts; everything else ends the round.
    spared = where == "drafter" and isinstance(error, ModelError)
    with nullcontext() if spared else pytest.raises(type(error)):
        drain(engine)
    drain(engine)
    for request, (prompt, params) in requests.items():
        check(engine, request, target, prompt, params)


def test_an_interrupt_while_judging_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Toy(1, sequences=3)
    engine = Engine(target, other(target))
    requests = {engine.submit(*request): request[:2] for request in eight_requests()}
    engine.step()
    judge = engine._rounds._judge

    def interrupted(*args: object) -> None:
        monkeypatch.setattr(engine._rounds, "_judge", judge)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._rounds, "_judge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    drain(engine)
    for request, (prompt, params) in requests.items():
        check(engine, request, target, prompt, params)


@pytest.mark.parametrize("ask", ["generate", "generate_many", "stream"])
@pytest.mark.parametrize("error", ERRORS, ids=["ModelError", "KeyboardInterrupt"])
def test_asking_fails_with_the_model_and_leaves_nothing_behind(
    ask: str, error: BaseException
) -> None:
    target = Toy(1, sequences=2)
    target.failures[3] = (error, "after")
    engine = Engine(target)
    calls = {
        "generate": lambda: engine.generate([1], SEEDED),
        "generate_many": lambda: engine.generate_many([[1], [2], [3]], SEEDED),
        "stream": lambda: list(engine.stream([1], SEEDED)),
    }
    with pytest.raises(type(error)):
        calls[ask]()
    assert engine.step() == []
    for request in range(3):
        with pytest.raises(ParameterError):
            engine.completion(request)
    assert engine.generate([1], SEEDED).token_ids == oracle(target, [1], SEEDED)[0]


class Forgetful(Toy):
    """As a sliding window that has moved on: it cannot always go back."""

    def truncate(self, seq: int, length: int) -> None:
        if 0 < length <= self.length(seq) - 2:
            raise ModelError("its window has moved on")
        super().truncate(seq, length)


def test_a_model_that_cannot_go_back_after_all_reads_again() -> None:
    target = Forgetful(1, sequences=3)
    engine = Engine(target, DRAFTERS["scattered"](target))
    for _ in range(2):
        requests = {engine.submit(*request): request[:2] for request in eight_requests()}
        drain(engine)
        for request, (prompt, params) in requests.items():
            check(engine, request, target, prompt, params)


def test_two_streams_interleaved_lose_nothing() -> None:
    target = Toy(1, sequences=2)
    engine = Engine(target, other(target))
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    one, two = engine.stream([1], params), engine.stream([2, 3], params)
    steps: dict[int, list[Step]] = {0: [], 1: []}
    for turn in (0, 0, 0, 1, 0, 1, 1, 1, 1, 0):
        steps[turn].append(next((one, two)[turn]))
    steps[0] += one
    steps[1] += two
    for number, prompt in enumerate(([1], [2, 3])):
        tokens, _, text = oracle(target, prompt, params)
        assert tokens_of(steps[number]) == tokens
        assert text_of(steps[number]) == text


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_an_abandoned_stream_is_cancelled(rounds: int) -> None:
    target = Toy(1)
    engine = Engine(target, other(target))
    steps = engine.stream([1], SamplingParams(max_tokens=40, ignore_eos=True))
    for _ in range(rounds):
        next(steps)
    del steps
    gc.collect()
    assert engine.step() == []
    assert not engine._finished
    assert not engine._inbox
    assert engine.generate([1], PLAIN).token_ids == oracle(target, [1], PLAIN)[0]


def test_a_follower_sees_the_rest_and_a_cancel_ends_it() -> None:
    target = Toy(1, sequences=2)
    engine = Engine(target)
    request = engine.submit([1], SamplingParams(max_tokens=30, ignore_eos=True))
    first = engine.step()
    steps = engine.follow(request)
    seen = [next(steps), next(steps)]
    engine.cancel(request)
    assert list(steps) == []
    done = engine.completion(request)
    assert done.finish_reason == "cancelled"
    assert done.token_ids == tokens_of(first + seen)
    assert list(engine.follow(request)) == []


def test_the_engine_closes_only_what_it_loaded() -> None:
    target = Toy(1)
    drafter = Script(lambda request: [])
    engine = Engine(target, drafter)
    engine.close()
    engine.close()
    assert not target.closed
    assert not drafter.closed
    loaded = Engine("table:markov", "table:markov-draft")
    loaded.close()
    with pytest.raises(ClosedError):
        loaded.target.length(0)
    with pytest.raises(ClosedError):
        loaded.drafter.model.length(0)


def test_a_target_is_closed_when_its_drafter_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = load_table("markov", ModelOptions())
    monkeypatch.setattr("draftproof.pair.load_model", lambda *_: target)
    with pytest.raises(DraftproofError):
        Engine("table:markov", "table:nowhere")
    with pytest.raises(ClosedError):
        target.length(0)


@pytest.mark.parametrize(
    "use",
    [
        lambda e: e.submit([1]),
        lambda e: e.generate([1]),
        lambda e: e.generate_many([[1]]),
        lambda e: e.stream([1]),
        lambda e: e.step(),
    ],
)
def test_a_closed_engine_says_so(use: object) -> None:
    engine = Engine("table:markov")
    engine.close()
    with pytest.raises(ClosedError):
        use(engine)


def test_a_stream_ends_with_its_engine() -> None:
    engine = Engine("table:markov")
    steps = engine.stream([1], SamplingParams(max_tokens=40, ignore_eos=True))
    next(steps)
    engine.close()
    with pytest.raises(ClosedError):
        next(steps)


@pytest.mark.parametrize("rule", ["match", "token", "block"])
@pytest.mark.parametrize("kind", ["greedy", "seed", "sampled"])
def test_a_row_behind_a_refused_draft_may_be_anything(kind: str, rule: str) -> None:
    """Plain decoding would never see it: nothing ends, and the coins fall as they would."""
    params = SamplingParams(
        temperature=0 if kind == "greedy" else 1.0,
        seed=5 if kind == "seed" else None,
        max_tokens=8,
        ignore_eos=True,
    )
    rows = {(): (0.5, 0.5, 0.0, 0.0, 0.0), (2,): [float("nan")] * 5}  # nothing leads to 2
    target, draft = Toy(table=rows), Toy(table={(): (0.2,) * 2 + (0.6, 0, 0)})
    speculation = Speculation(draft_length=3, rule=None if kind == "seed" else rule)
    engine = Engine(target, ModelDrafter(draft, target), speculation=speculation)
    for _ in range(20):
        done = engine.generate([0], params)
        assert len(done.token_ids) == 8
        assert 2 not in done.token_ids
    assert any(2 in call[0].tokens for call in target.calls)  # it was seen, and more than once


def test_what_was_accepted_before_a_row_that_is_reached_still_counts() -> None:
    rows = {(): np.eye(5)[1], (1, 1): np.eye(5)[2], (2,): [float("nan")] * 5}
    target = Toy(table=rows)
    draft = Toy(table={(): np.eye(5)[1], (1, 1): np.eye(5)[2], (2,): np.eye(5)[1]})
    engine = Engine(target, ModelDrafter(draft, target), speculation=Speculation(draft_length=4))
    request = engine.submit([0], SamplingParams(max_tokens=9))
    steps = drain(engine)
    assert tokens_of(steps) == (1, 1, 2)
    with pytest.raises(ModelError, match="not finite"):
        engine.completion(request)
