from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from draftproof import (
    Engine,
    PairError,
    SamplingParams,
    Speculation,
)
from toy_drafters import DRAFTERS, other, right
from toys import (
    PLAIN,
    PROMPTS,
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


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("params", [PLAIN, SEEDED], ids=["greedy", "seeded"])
def test_any_drafter_leaves_the_text_as_it_is(name: str, params: SamplingParams) -> None:
    target = Toy(1)
    with Engine(target, DRAFTERS[name](target)) as engine:
        for length in range(1, 9):
            for budget in range(1, 11):
                seed = None if params.greedy else budget
                wanted = replace(params, max_tokens=budget, seed=seed)
                prompt = PROMPTS[(length + budget) % len(PROMPTS)]
                done = engine.generate(prompt, wanted, Speculation(draft_length=length))
                got = (done.token_ids, done.finish_reason, done.text)
                assert got == oracle(target, prompt, wanted), (length, budget)


@pytest.mark.parametrize("rule", ["block", "token", "match"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_target_that_is_certain_is_never_talked_out_of_it(name: str, rule: str) -> None:
    rows = {e: np.eye(5)[np.argmax(row)].tolist() for e, row in table(2).items()}
    target = Toy(table=rows)
    params = SamplingParams(max_tokens=10, temperature=1.0)
    with Engine(target, DRAFTERS[name](target)) as engine:
        for length in range(1, 9):
            for prompt in PROMPTS:
                speculation = Speculation(draft_length=length, rule=rule)
                done = engine.generate(prompt, params, speculation)
                assert done.token_ids == oracle(target, prompt, PLAIN)[0]


@pytest.mark.parametrize("sequences", [1, 3, 8])
@pytest.mark.parametrize("name", ["lookup", "other", "scattered"])
@pytest.mark.parametrize("chunk", [1, 3, 256])
def test_a_batch_of_eight_equals_the_eight_alone(sequences: int, name: str, chunk: int) -> None:
    target = Toy(1, sequences=sequences)
    engine = Engine(target, DRAFTERS[name](target), prefill_chunk=chunk)
    requests = {}
    for number, (prompt, params, speculation) in enumerate(eight_requests()):
        requests[engine.submit(prompt, params, speculation)] = (prompt, params)
        for _ in range(number % 3):  # so that they join between rounds
            engine.step()
    drain(engine)
    for request, (prompt, params) in requests.items():
        check(engine, request, target, prompt, params)


def test_a_draft_length_of_0_keeps_the_drafter_out_of_it() -> None:
    target = Toy(1, sequences=2)
    drafter = right(target)
    engine = Engine(target, drafter)
    plain = engine.submit([1], PLAIN, Speculation(draft_length=0))
    engine.submit([1], PLAIN)
    drain(engine)
    assert len({request.owner for request in drafter.requests}) == 1
    done = engine.completion(plain)
    assert done.stats.drafted == 0
    assert done.stats.plain == len(done.token_ids)


@pytest.mark.parametrize("params", [PLAIN, SEEDED, replace(PLAIN, stop=("dd", "c"))])
def test_every_way_to_ask_gives_the_same(params: SamplingParams) -> None:
    target = Toy(3, sequences=2)
    engine = Engine(target, other(target))
    tokens, reason, text = oracle(target, [1, 2], params)
    steps = list(engine.stream([1, 2], params))
    assert (tokens_of(steps), steps[-1].finish_reason, text_of(steps)) == (tokens, reason, text)
    assert [step.finish_reason for step in steps[:-1]] == [None] * (len(steps) - 1)
    for done in (engine.generate("bc", params), *engine.generate_many([[1, 2]] * 3, params)):
        assert (done.token_ids, done.finish_reason, done.text) == (tokens, reason, text)
    request = engine.submit([1, 2], params)
    steps = drain(engine)
    assert tokens_of(steps) == tokens
    assert text_of(steps) == text
    check(engine, request, target, [1, 2], params)


def test_generate_many_takes_one_params_each() -> None:
    target = Toy(1, sequences=2)
    engine = Engine(target)
    each = [replace(SEEDED, seed=i) for i in range(4)]
    for i, done in enumerate(engine.generate_many([[i] for i in range(4)], each)):
        assert done.token_ids == oracle(target, [i], each[i])[0]
    assert engine.generate_many([]) == []


def test_one_pass_a_round_holds_everything_and_the_running_go_on() -> None:
    target = Toy(1, context=128, sequences=4)
    engine = Engine(target, right(target), prefill_chunk=10)
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    engine.submit([1], params, Speculation(draft_length=3))
    engine.step()
    long = [engine.submit([i] * n, params) for i, n in ((2, 25), (3, 4), (0, 30))]
    read: dict[int, list[int]] = {request: [] for request in long}
    while not all(sum(read[r]) == n for r, n in zip(long, (25, 4, 30), strict=True)):
        before = len(target.calls)
        steps = {step.request: step for step in engine.step()}
        assert len(target.calls) == before + 1
        assert len(steps[0].tokens) == 4  # the running one is never held up
        assert sum(step.prefilled for step in steps.values()) <= 10
        for request in long:
            if request in steps and steps[request].prefilled:
                read[request].append(steps[request].prefilled)
        (call,) = target.calls[before:]
        assert len({chunk.seq for chunk in call}) == len(call) == len(steps)
        for chunk in call:
            assert chunk.logits in (0, len(chunk.tokens)) or chunk.logits <= 1 + 4
    # First come, first served; what one leaves of the budget goes to the next.
    assert list(read.values()) == [[10, 10, 5], [4], [1, 10, 10, 9]]


def test_a_prompt_that_is_not_read_through_asks_for_no_logits_and_no_draft() -> None:
    target = Toy(1)
    drafter = right(target)
    engine = Engine(target, drafter, prefill_chunk=4)
    steps = list(engine.stream([0, 1, 2, 3, 0, 1, 2, 3, 1], PLAIN))
    assert [len(call[0].tokens) - max(0, call[0].logits - 1) for call in target.calls[:3]] == [
        4,
        4,
        1,
    ]
    assert [call[0].logits for call in target.calls[:3]] == [0, 0, 5]
    assert [(r.length, len(r.tokens)) for r in drafter.requests[:3]] == [(0, 4), (0, 8), (4, 9)]
    assert [step.tokens for step in steps[:2]] == [(), ()]
    assert sum(step.prefilled for step in steps) == 9


@pytest.mark.parametrize("kind", [Toy, NoRollback])
def test_a_model_without_rollback_runs_plain(kind: type[Toy]) -> None:
    target = kind(1)
    with Engine(target) as engine:
        first = engine.generate([1, 2], SEEDED)
        assert first.token_ids == oracle(target, [1, 2], SEEDED)[0]
        turn = [1, 2, *first.token_ids, 3]
        second = engine.generate(turn, SEEDED)
        assert second.token_ids == oracle(target, turn, SEEDED)[0]
        assert second.stats.cached_tokens == len(turn) - 2
        changed = [1, 3, *turn]
        third = engine.generate(changed, SEEDED)
        assert third.token_ids == oracle(target, changed, SEEDED)[0]
        assert third.stats.cached_tokens == (1 if kind is Toy else 0)


def test_a_model_without_rollback_is_not_speculated_on() -> None:
    with pytest.raises(PairError, match="its state is recurrent") as caught:
        Engine(NoRollback(1), "lookup")
    assert "\n" not in str(caught.value)


def test_a_prompt_takes_the_slot_that_holds_most_of_it() -> None:
    target = Toy(1, context=64, sequences=3)
    engine = Engine(target)
    talks = [[0] * 9, [1] * 9, [2] * 9]
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    answers = [done.token_ids for done in engine.generate_many(talks, params)]
    for i in (2, 0, 1):
        turn = [*talks[i], *answers[i], 3]
        done = engine.generate(turn, params)
        assert done.stats.cached_tokens == len(turn) - 2
        assert done.token_ids == oracle(target, turn, params)[0]


def test_an_unrelated_prompt_takes_an_empty_slot_first() -> None:
    engine = Engine(Toy(1, sequences=2))
    first = engine.generate([1, 2, 3], PLAIN)
    engine.generate([0, 0], PLAIN)
    turn = [1, 2, 3, *first.token_ids, 0]
    assert engine.generate(turn, PLAIN).stats.cached_tokens == len(turn) - 2


def test_a_prompt_read_before_is_computed_again_at_its_last_token_only() -> None:
    engine = Engine(Toy(1))
    first, again = (engine.generate([1, 2, 3, 1, 2], PLAIN) for _ in range(2))
    assert again.stats.cached_tokens == 4
    assert again.token_ids == first.token_ids
