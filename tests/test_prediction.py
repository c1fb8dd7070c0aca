"""A predicted text as a free draft: the same text, fewer rounds, counted apart."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof import Engine, Origin, PromptError, SamplingParams, Speculation
from draftproof.drafters.prediction import ANCHOR, LONGEST, SHORTEST, Prediction
from toy_drafters import other, zeros
from toys import SIZE, Toy, drain

TEXT = list(range(100, 180))


def test_it_follows_the_text_and_dares_more_the_longer_it_agrees() -> None:
    prediction = Prediction(TEXT)
    assert prediction.propose([], 99) == tuple(TEXT[:SHORTEST])
    assert prediction.propose(TEXT[:10], 99) == tuple(TEXT[10:20])
    assert prediction.propose(TEXT[:40], 99) == tuple(TEXT[40 : 40 + LONGEST])
    assert prediction.propose(TEXT[:41], 3) == tuple(TEXT[41:44])
    assert prediction.propose(TEXT, 9) == ()


def test_a_text_that_went_another_way_is_found_again() -> None:
    prediction = Prediction(TEXT)
    answer = [*TEXT[:10], 1, 2]
    assert prediction.propose(answer, 9) == ()
    answer += TEXT[20 : 20 + ANCHOR - 1]
    assert prediction.propose(answer, 9) == ()
    answer.append(TEXT[20 + ANCHOR - 1])
    assert prediction.propose(answer, 2) == tuple(TEXT[20 + ANCHOR : 22 + ANCHOR])
    answer += [7, *TEXT[:ANCHOR]]  # also backwards
    assert prediction.propose(answer, 1) == (TEXT[ANCHOR],)


def test_of_several_places_the_next_one_counts() -> None:
    part = [1, 2, 3]
    prediction = Prediction([*part, 4, 9, *part, 5, 9, *part, 6])
    assert prediction.propose([1, 2, 3, 4, 8], 1) == ()
    assert prediction.propose([1, 2, 3, 4, 8, *part], 1) == (5,)


@pytest.mark.parametrize("drafter", [None, other, zeros])
@pytest.mark.parametrize("seed", [None, 3])
def test_the_text_stays_and_the_counts_are_apart(drafter: object, seed: int | None) -> None:
    params = SamplingParams(temperature=0 if seed is None else 1.0, seed=seed, max_tokens=40)
    params = SamplingParams(
        temperature=params.temperature, seed=seed, max_tokens=40, ignore_eos=True
    )
    plain = Engine(Toy(2)).generate([1, 2], params)
    right = list(plain.token_ids)
    half = [*right[:12], *[(t + 1) % SIZE for t in right[12:20]], *right[20:]]
    for predicted in (right, half, [0] * 30, []):
        target = Toy(2)
        engine = Engine(target, drafter and drafter(target))
        request = engine.submit([1, 2], params, prediction=predicted)
        steps = drain(engine)
        done = engine.completion(request)
        stats = done.stats
        assert done.token_ids == plain.token_ids
        assert stats.completion_tokens == 40
        assert stats.predicted == sum(step.origins.count(Origin.PREDICTED) for step in steps)
        assert stats.predicted + stats.prediction_rejected == sum(s.predicted for s in steps)
        assert stats.accepted == sum(step.origins.count(Origin.ACCEPTED) for step in steps)
        if predicted is right:
            assert stats.prediction_rejected == 0
            assert stats.rounds <= 7  # 5 + 5 + 11 + ... tokens
        if not predicted or drafter is None:
            assert stats.drafted == 0 or drafter is not None


def test_without_speculation_there_is_no_prediction() -> None:
    engine = Engine(Toy(2))
    request = engine.submit([1], None, Speculation(draft_length=0), prediction="abc")
    drain(engine)
    assert engine.completion(request).stats.predicted == 0


def test_a_prediction_is_text_or_tokens() -> None:
    with pytest.raises(PromptError, match="prediction"):
        Engine(Toy(2)).submit([1], prediction=[SIZE])
    with pytest.raises(PromptError, match="prediction"):
        Engine(Toy(2)).submit([1], prediction=[np.float64(1)])


@pytest.mark.parametrize("ask", ["generate", "stream"])
def test_every_way_to_ask_for_one_answer_takes_a_prediction(ask: str) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    right = Engine(Toy(2)).generate([1, 2], params).token_ids
    engine = Engine(Toy(2))
    if ask == "generate":
        done = engine.generate([1, 2], params, prediction=right)
        tokens, predicted = done.token_ids, done.stats.predicted
    else:
        steps = list(engine.stream([1, 2], params, prediction=right))
        tokens = tuple(token for step in steps for token in step.tokens)
        predicted = sum(step.origins.count(Origin.PREDICTED) for step in steps)
    assert tokens == right
    assert predicted > 30
    assert not engine._finished


def test_a_prompt_that_is_refused_leaves_none_of_its_neighbours_behind() -> None:
    engine = Engine(Toy(2))
    with pytest.raises(PromptError):
        engine.generate_many([[1], [2], []])
    assert not engine._finished
    assert engine.step() == []
