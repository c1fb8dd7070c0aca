"""Traps 1 to 6 of the design, each of which a known engine fell into, on exact toy models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from draftproof import (
    Draft,
    DraftRequest,
    Engine,
    Origin,
    SamplingParams,
    Speculation,
)
from draftproof.drafters.model import ModelDrafter
from draftproof.noise import At, FreshNoise, Purpose, noise_for
from draftproof.sampling import distribution
from toy_drafters import DRAFTERS, Script, other, right, same, wrong
from toys import END, FRESH, PLAIN, SEEDED, SIZE, Toy, agrees, cycle, oracle


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1),
        SamplingParams(temperature=0.5, top_k=3),
        SamplingParams(temperature=2, top_p=0.8),
        SamplingParams(temperature=1, min_p=0.3),
    ],
)
def test_trap_01_q_is_the_distribution_the_draft_was_drawn_from(params: SamplingParams) -> None:
    drafter, counts = other(Toy(1)), np.zeros(SIZE)
    for _ in range(4000):
        request = DraftRequest(0, 0, [1, 2], 1, params, noise_for(None), frozenset())
        (draft,) = drafter.propose([request])
        counts[draft.tokens[0]] += 1
    wanted = distribution(drafter.model._lookup([1, 2])[None], params)
    np.testing.assert_array_equal(draft.rows, wanted)
    assert np.abs(counts / 4000 - wanted[0]).sum() / 2 < 0.04  # 5 standard errors
    for certain in (PLAIN, SEEDED):
        request = DraftRequest(0, 0, [1, 2], 3, certain, noise_for(certain.seed), frozenset())
        assert drafter.propose([request])[0].rows is None


class Watched(FreshNoise):
    """Remembers what the target's tokens were drawn from."""

    def __init__(self, log: list[tuple[At, np.ndarray]]):
        super().__init__()
        self.log = log

    def draw(self, weights: np.ndarray, at: At) -> int:
        if at.purpose is Purpose.TARGET:
            self.log.append((at, weights / weights.sum()))
        return super().draw(weights, at)


@pytest.mark.parametrize("name", ["other", "same", "wild_rows"])
@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_trap_02_correction_and_bonus_come_from_where_they_must(
    name: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[tuple[At, np.ndarray]] = []
    monkeypatch.setattr("draftproof.sequence.noise_for", lambda seed: Watched(log))
    target = Toy(1)
    drafts: list[Draft] = []
    inner = DRAFTERS[name](target)

    def propose(request: DraftRequest) -> Draft:
        drafts.extend(inner.propose([request]))
        return drafts[-1]

    text = [1]
    seen = {Origin.CORRECTION: 0, Origin.BONUS: 0}
    for step in Engine(target, Script(propose)).stream([1], FRESH, Speculation(rule=rule)):
        p = distribution(target._lookup([*text, *step.tokens][:-1][-2:])[None], FRESH)[0]
        at, weights = log[-1]
        assert at.position == len(text) + len(step.tokens) - 1
        origin, place = step.origins[-1], step.accepted
        if origin is Origin.CORRECTION and rule == "token":
            residual = np.maximum(p - drafts[-1].rows[place], 0)
            p = residual / residual.sum()
        if origin is not Origin.CORRECTION or rule != "block":
            np.testing.assert_allclose(weights, p)
        assert p[step.tokens[-1]] > 0
        seen[origin] = seen.get(origin, 0) + 1
        text += step.tokens
    assert seen[Origin.CORRECTION] or seen[Origin.BONUS]


@pytest.mark.parametrize("length", range(1, 9))
@pytest.mark.parametrize("start", range(SIZE - 1))
def test_trap_03_nothing_goes_past_an_end_token_in_mid_block(length: int, start: int) -> None:
    target = Toy(table=cycle(SIZE))
    drafter = Script(lambda r: [(r.tokens[-1] + 1 + i) % SIZE for i in range(r.length)])
    engine = Engine(target, drafter)
    steps = list(engine.stream([start], PLAIN, Speculation(draft_length=length)))
    tokens = tuple(range(start + 1, SIZE))
    assert tuple(t for step in steps for t in step.tokens) == tokens
    assert "".join(step.text for step in steps) == "abcd"[start + 1 :]
    assert steps[-1].finish_reason == "stop"
    assert target.length(0) == len(tokens)  # the prompt's token, and all but the newest one
    stats = engine.generate([start], PLAIN, Speculation(draft_length=length)).stats
    assert stats.completion_tokens == len(tokens)
    assert stats.rejected == 0
    assert stats.drafted == stats.accepted + stats.discarded


@pytest.mark.parametrize("length", range(9))
@pytest.mark.parametrize("start", range(SIZE - 1))
@pytest.mark.parametrize("stop", ["abc", "da", "c", "bcdabc", ("cd", "bc"), ("dab", "cda")])
def test_trap_03_a_stop_string_across_a_block_edge(
    length: int, start: int, stop: str | tuple[str, ...]
) -> None:
    target = Toy(table=cycle())
    engine = Engine(target, right(target))
    params = SamplingParams(max_tokens=30, stop=stop)
    steps = list(engine.stream([start], params, Speculation(draft_length=length)))
    wanted = oracle(target, [start], params)
    text = "".join(step.text for step in steps)
    assert (tuple(t for s in steps for t in s.tokens), "stop", text) == wanted
    assert target.length(0) == len(wanted[0])


ENDINGS = {
    "full": (PLAIN, same, 4),
    "mid-block": (replace(PLAIN, max_tokens=7), same, 4),
    "all wrong": (PLAIN, wrong, 4),
    "stop string": (replace(PLAIN, stop=("db", "ac")), same, 8),
    "end token": (replace(SEEDED, max_tokens=40), same, 8),
    "budget": (replace(SEEDED, max_tokens=3), same, 8),
    "seeded": (SEEDED, other, 5),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("words", [[], [3], [2, 0, 1]])
def test_trap_04_a_second_turn_on_a_kept_cache(ending: str, words: list[int]) -> None:
    params, make, length = ENDINGS[ending]
    for seed in range(6):
        target = Toy(seed, context=128)
        engine = Engine(target, make(target), speculation=Speculation(draft_length=length))
        talk, kept = [1, 2], 0
        for _ in range(4):
            done = engine.generate(talk, params)
            assert agrees(done, target, talk, params)
            assert done.stats.rejected == 0 or make is not same
            # All was cached but the newest token; the last token of a prompt is always read.
            assert done.stats.cached_tokens == min(kept, len(talk) - 1)
            kept = len(talk) + len(done.token_ids) - 1
            talk = [*talk, *done.token_ids, *words]


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("length", [1, 3, 8])
def test_trap_05_small_budgets_and_small_prompts(name: str, length: int) -> None:
    target = Toy(3)
    engine = Engine(target, DRAFTERS[name](target), speculation=Speculation(draft_length=length))
    for budget in range(1, length + 3):
        for base in (PLAIN, SEEDED):
            for prompt in ([0], [END], [1, END, 2], [2, END]):
                params = replace(base, max_tokens=budget)
                assert agrees(engine.generate(prompt, params), target, prompt, params)


@pytest.mark.parametrize("end_tokens", [(), (4,), (0, 2, 4), range(SIZE)])
@pytest.mark.parametrize("name", ["other", "ends", "zeros", "right"])
def test_trap_05_no_end_token_one_or_several(end_tokens: tuple[int, ...], name: str) -> None:
    target = Toy(1)
    target.tokenizer.end_tokens = frozenset(end_tokens)
    engine = Engine(target, DRAFTERS[name](target))
    for seed in range(10):
        params = replace(SEEDED, seed=seed, max_tokens=None if end_tokens else 20)
        assert agrees(engine.generate([1], params), target, [1], params)


def test_trap_06_a_draft_model_with_a_shorter_context(caplog: pytest.LogCaptureFixture) -> None:
    target = Toy(1, context=64, sequences=2)
    engine = Engine(target, ModelDrafter(Toy(2, context=16, sequences=2), target))
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    long, brief = engine.submit([1], params), engine.submit([2], replace(PLAIN, ignore_eos=True))
    drafted: dict[int, list[bool]] = {long: [], brief: []}
    while steps := engine.step():
        for step in steps:
            drafted[step.request].append(bool(step.drafted))
    assert agrees(engine.completion(long), target, [1], params)
    assert drafted[long][0]
    assert not drafted[long][-2]
    assert all(drafted[brief][:-1])
    assert "outgrown" in caplog.text
