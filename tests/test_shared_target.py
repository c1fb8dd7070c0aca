from __future__ import annotations

import gc

import pytest

from draftproof import (
    Engine,
    PairError,
    SamplingParams,
    Step,
)
from draftproof.drafters.model import ModelDrafter
from toy_drafters import lookup
from toys import (
    SEEDED,
    NoRollback,
    Toy,
    check,
    drain,
    oracle,
    tokens_of,
)

SCORED = [1, 2, 3, 1, 0, 2, 2]


@pytest.mark.parametrize("kind", [Toy, NoRollback])
def test_engines_may_share_a_target_even_in_turns(kind: type[Toy]) -> None:
    target = kind(1, sequences=2)
    engines = [Engine(target), Engine(target, lookup(target) if kind is Toy else None)]
    params = SamplingParams(max_tokens=14, ignore_eos=True, temperature=1, seed=3)
    prompts = [[1, 2, 3], [3, 2, 1, 0]]
    for _ in range(3):  # turns of two conversations
        streams = [e.stream(p, params) for e, p in zip(engines, prompts, strict=True)]
        steps: list[list[Step]] = [[], []]
        for turn in (0, 1, 1, 0, 0, 1, 0, 1):
            steps[turn] += [step for step in [next(streams[turn], None)] if step]
        steps[1] += streams[1]
        steps[0] += streams[0]
        for number, prompt in enumerate(prompts):
            assert tokens_of(steps[number]) == oracle(target, prompt, params)[0]
            prompts[number] = [*prompt, *tokens_of(steps[number])]


def test_a_cancel_in_one_engine_does_not_cut_into_another() -> None:
    target = Toy(1, sequences=2)
    one, two = Engine(target), Engine(target)
    leaving = one.submit([1, 2, 3], SEEDED)
    one.step()
    staying = two.submit([3, 2, 1, 0, 3, 2], SEEDED)
    two.step()
    one.cancel(leaving)
    drain(two)
    check(two, staying, target, [3, 2, 1, 0, 3, 2], SEEDED)


def test_a_model_cannot_draft_for_itself() -> None:
    target = Toy(1)
    with pytest.raises(PairError, match="toy 1 cannot draft for itself"):
        ModelDrafter(target, target)


def test_what_one_engine_has_read_the_next_need_not_read_again() -> None:
    target = Toy(1, sequences=2)
    prompt, params = [1, 2, 3, 1, 0], SamplingParams(max_tokens=4, ignore_eos=True)
    reader = Engine(target)
    first = reader.generate(prompt, params)
    for engine in (Engine(target), Engine(target, lookup(target))):
        again = engine.generate(prompt, params)
        assert again.token_ids == first.token_ids
        assert again.stats.cached_tokens == len(prompt) - 1


def test_an_engine_that_is_gone_in_mid_answer_leaves_no_wrong_entries() -> None:
    """Its slot began with another text's entries and went on with its own."""
    target = Toy(1)
    params = SamplingParams(max_tokens=6, ignore_eos=True, temperature=1, seed=3)
    longer = [1, 2, 3, 1, 0, 2, 2]
    engine, leaving = Engine(target), Engine(target)
    engine.generate(longer, params)
    leaving.submit([1, 2, 0, 0, 0, 3, 3, 3], params)
    leaving.step()
    del leaving
    gc.collect()
    number = engine.submit(longer, params)
    drain(engine)
    check(engine, number, target, longer, params)


@pytest.mark.parametrize(("rounds", "other"), [(2, [3, 3, 3]), (1, SCORED)])
def test_prompt_log_probabilities_come_once(rounds: int, other: list[int]) -> None:
    """Where another engine has emptied the cache meanwhile, or read the same prompt to its end."""
    target = Toy(1)
    params = SamplingParams(max_tokens=2, ignore_eos=True, prompt_logprobs=1)
    alone = Engine(target).generate(SCORED, params)
    one, two = Engine(target, prefill_chunk=2), Engine(target)
    number = one.submit(SCORED, params)
    for _ in range(rounds):
        one.step()
    two.generate(other, SEEDED)
    drain(one)
    assert one.completion(number).prompt_logprobs == alone.prompt_logprobs


def test_entries_read_again_are_written_down() -> None:
    """Two engines in turns in one slot; one of them is gone without a word."""
    target = Toy(1)
    params = SamplingParams(max_tokens=8, ignore_eos=True, temperature=1, seed=3)
    staying, leaving = Engine(target), Engine(target)
    number = staying.submit([1, 2, 3, 1, 0, 2], params)
    leaving.submit([1, 2, 0, 3, 3, 3, 1, 1, 2], params)
    for engine in (staying, leaving, staying, leaving):
        engine.step()
    del engine, leaving
    gc.collect()
    staying.step()
    text = staying._rounds.running[0].tokens
    assert target._cache[0] == text[:-1]
    drain(staying)
    check(staying, number, target, [1, 2, 3, 1, 0, 2], params)
