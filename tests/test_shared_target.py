from __future__ import annotations

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
