"""What options do to logits, beside transformers' own definitions; and what plain decoding says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as theirs

from draftproof import DraftproofError, Engine, ParameterError, SamplingParams, Speculation
from draftproof.models.table import LetterTokenizer
from draftproof.processors import Processors, processors_for
from draftproof.sampling import choices, distribution, logprob
from toy_drafters import Script, ends, lookup, other, same, scattered, zeros
from toys import END, SIZE, Toy, cycle, drain

WIDTH = 40
LETTERS = LetterTokenizer(WIDTH)
PER_TOKEN: dict[str, Any] = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
    "logit_bias": {1: 0.6, 3: -0.5},
    "bad_words": ["ab", "cc"],
    "min_tokens": 4,
}


def made(tokens: list[int], **options: Any) -> Processors:
    found = processors_for(SamplingParams(**options), tokens, LETTERS, WIDTH, (39,), None)
    assert found
    return found


def rows(seed: int, count: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (count, WIDTH)).astype(np.float32)


@given(
    seed=st.integers(0, 99),
    penalty=st.floats(0.5, 0.99) | st.floats(1.01, 2),
    as_torch=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_repetition_is_transformers_own(seed: int, penalty: float, as_torch: bool) -> None:
    rng = np.random.default_rng(seed)
    tokens, drafted = rng.integers(0, WIDTH, 9).tolist(), rng.integers(0, WIDTH, 2).tolist()
    logits = rows(seed)
    changed, error = made(tokens, repetition_penalty=penalty).apply(
        torch.tensor(logits) if as_torch else logits, drafted
    )
    assert error is None
    process = theirs.RepetitionPenaltyLogitsProcessor(penalty)
    for i in range(3):
        prefix = torch.tensor([[*tokens, *drafted[:i]]])
        wanted = process(prefix, torch.tensor(logits[i : i + 1]).clone())[0]
        assert np.allclose(np.asarray(changed[i]), wanted.numpy(), atol=1e-5)


@given(seed=st.integers(0, 99), mass=st.floats(0.05, 0.99), temperature=st.floats(0.3, 2))
@settings(max_examples=30, deadline=None)
def test_typical_is_transformers_own(seed: int, mass: float, temperature: float) -> None:
    (row,) = rows(seed, 1)
    params = SamplingParams(temperature=temperature, typical_p=mass)
    scores = torch.tensor(row[None]) / temperature
    wanted = torch.softmax(theirs.TypicalLogitsWarper(mass)(None, scores), -1)[0]
    for logits in (row[None], torch.tensor(row[None])):
        (found,) = distribution(logits, params)
        assert np.allclose(np.asarray(found), wanted.numpy(), atol=1e-5)


def test_presence_and_frequency_count_the_answer_alone() -> None:
    tokens = [5, 5, 7]
    processors = made(tokens, presence_penalty=0.5, frequency_penalty=0.25)
    tokens += [7, 7, 8]  # the answer
    zero = np.zeros((2, WIDTH))
    changed, _ = processors.apply(zero, [8])
    assert {int(t): changed[0][t] for t in np.flatnonzero(changed[0])} == {7: -1.0, 8: -0.75}
    assert {int(t): changed[1][t] for t in np.flatnonzero(changed[1])} == {7: -1.0, 8: -1.0}
    assert not zero.any()  # the model's own rows are left alone


def test_order_of_options_is_bias_then_penalties() -> None:
    processors = made([2], logit_bias={2: 1.0}, repetition_penalty=2.0)
    changed, _ = processors.apply(np.full((1, WIDTH), 3.0), [])
    assert changed[0][2] == 2.0  # (3 + 1) / 2


@given(
    words=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    seed=st.integers(0, 9),
)
@settings(max_examples=40, deadline=None)
def test_bad_words_never_appear_however_they_are_cut(words: list[str], seed: int) -> None:
    """Against all texts: tokens of several letters, so that a word begins and ends inside them."""

    class Pieces(LetterTokenizer):
        texts = ("a", "b", "c", "ab", "bc", "cab", "ba", "d")

        def piece(self, token: int) -> bytes:
            return self.texts[token].encode()

        def vocabulary(self) -> list[str]:
            return list(self.texts)

    tokenizer = Pieces(8)
    rng = np.random.default_rng(seed)
    answer: list[int] = []
    tokens = [0, 1]
    processors = processors_for(SamplingParams(bad_words=words), tokens, tokenizer, 8, (), None)
    for _ in range(12):
        (row,), error = processors.apply(np.zeros((1, 8)), [])
        assert error is None
        text = "".join(Pieces.texts[t] for t in answer)
        for token in range(8):
            completes = any(w in text + Pieces.texts[token] for w in words)
            assert (row[token] == -np.inf) == completes
        answer.append(int(rng.choice(np.flatnonzero(row == 0))))
        tokens.append(answer[-1])


@pytest.mark.parametrize("length", [1, 3, 6])
@pytest.mark.parametrize("make", [same, other, lookup, zeros, ends, scattered])
def test_seeded_text_is_plain_decodings_with_all_of_them_on(make: Any, length: int) -> None:
    for seed in range(4):
        target = Toy(seed, sequences=3)
        params = SamplingParams(
            temperature=0.9, top_p=0.95, typical_p=0.95, seed=seed, max_tokens=15, **PER_TOKEN
        )
        engine = Engine(target, make(target), speculation=Speculation(draft_length=length))
        prompts = [[1], [2, 3], [0, 1, 2]]
        plain = [Engine(Toy(seed)).generate(prompt, params).token_ids for prompt in prompts]
        done = engine.generate_many(prompts, params)
        assert [one.token_ids for one in done] == plain
        assert all("ab" not in one.text and "cc" not in one.text for one in done)


@pytest.mark.parametrize("drafter", [same, other, zeros, ends, scattered])
def test_log_probabilities_are_plain_decodings(drafter: Any) -> None:
    target = Toy(3)
    params = SamplingParams(
        temperature=0.8, seed=5, max_tokens=20, logprobs=3, prompt_logprobs=1, presence_penalty=0.5
    )
    prompt = [1, 2, 0, 3]
    plain = Engine(Toy(3)).generate(prompt, params)
    engine = Engine(target, drafter(target), prefill_chunk=3)
    engine.generate(prompt)  # its prompt is cached now: it has to be read again
    request = engine.submit(prompt, params)
    steps = drain(engine)
    done = engine.completion(request)
    assert done.token_ids == plain.token_ids
    assert done.logprobs == plain.logprobs
    assert done.prompt_logprobs == plain.prompt_logprobs
    assert [each.token for each in done.logprobs] == list(done.token_ids)
    assert [each.token for each in done.prompt_logprobs] == prompt[1:]
    assert sum((step.logprobs for step in steps), ()) == done.logprobs
    assert sum((step.prompt_logprobs for step in steps), ()) == done.prompt_logprobs
    assert engine.generate(prompt).logprobs is None


@given(seed=st.integers(0, 99), count=st.integers(0, WIDTH + 2))
@settings(max_examples=30, deadline=None)
def test_a_log_probability_is_the_log_softmax(seed: int, count: int) -> None:
    (row,) = rows(seed, 1)
    wanted = torch.log_softmax(torch.tensor(row), -1)
    for logits in (row, torch.tensor(row)):
        found = logprob(logits, 4, count)
        assert found.logprob == pytest.approx(float(wanted[4]), abs=1e-5)
        best = torch.topk(wanted, min(count, WIDTH))
        assert [token for token, _ in found.top] == best.indices.tolist()
        assert [x for _, x in found.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_alternatives_that_tie_come_by_their_number() -> None:
    assert [t for t, _ in logprob(np.array([1.0, 2, 2, 0, 2]), 0, 2).top] == [1, 2]


def dead_end(tokens: Sequence[int], logits: np.ndarray) -> np.ndarray:
    """Nothing may follow a 2."""
    return np.full_like(logits, -np.inf) if tokens[-1] == 2 else logits


def fails(tokens: Sequence[int], logits: np.ndarray) -> np.ndarray:
    if tokens[-1] == 2:
        raise KeyError("no rule for 2")
    return logits


@pytest.mark.parametrize("processor", [dead_end, fails])
@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_a_dead_end_counts_only_where_it_is_reached(processor: Any, rule: Any) -> None:
    row = np.array([0.7, 0.3, 0.0, 0.0, 0.0])
    target = Toy(table={(): row})
    params = SamplingParams(temperature=1.0, max_tokens=8, processors=[processor])
    proposes_two = Script(lambda r: [0, 2, 1][: r.length])
    engine = Engine(target, proposes_two, speculation=Speculation(rule=rule))
    for _ in range(20):
        assert len(engine.generate([0], params).token_ids) == 8
    sure = Toy(table={(): row, (1,): np.array([0.0, 0, 1, 0, 0])})
    for drafter in (None, Script(lambda r: [1, 2, 0][: r.length])):
        engine = Engine(sure, drafter, speculation=Speculation(rule=rule))
        with pytest.raises(ParameterError, match=r"exclude every token|no rule for 2"):
            engine.generate([1], params)
        assert len(engine.generate([0], SamplingParams(max_tokens=5)).token_ids) == 5


MIXES: list[dict[str, Any]] = [
    {"bad_words": ["ca", "cb", "cc", "cd"], "logit_bias": {END: -2}},
    {"bad_words": ["ca", "cb", "cc", "cd"], "logit_bias": {END: -100}, "stop": ("c",)},
    {"bad_words": ["ca", "cb", "cc", "cd"], "logit_bias": {END: -100}, "stop_token_ids": [2]},
    {"regex": "cab|ab{1,3}", "logit_bias": {END: -100}},
    {"regex": "[ab]{2,6}", "repetition_penalty": 3.0, "logit_bias": {3: -100}},
    {"regex": "(ab|ba)+c", "stop": ("bb",)},
    {"processors": [dead_end], "stop": ("cc",), "min_tokens": 2},
    {"processors": [dead_end], "max_tokens": 3},
]


def outcome(engine: Engine, prompt: list[int], params: SamplingParams, predicted: list[int]) -> Any:
    """The answer, or the error it ends with; and what was told before."""
    request = engine.submit(prompt, params, prediction=predicted)
    steps = drain(engine)
    tokens = sum((step.tokens for step in steps), ())
    text = "".join(step.text for step in steps)
    try:
        done = engine.completion(request)
    except ParameterError as error:
        return str(error), tokens, text
    assert (done.token_ids, done.text) == (tokens, text)
    return done.finish_reason, tokens, text


@pytest.mark.parametrize("options", MIXES, ids=range(len(MIXES)))
@pytest.mark.parametrize("length", [1, 3, 12])
def test_what_is_behind_the_end_of_an_answer_changes_nothing(
    options: dict[str, Any], length: int
) -> None:
    """Drafts run past a stop, a complete grammar, the budget; there may be no token there."""
    for seed in range(8):
        params = SamplingParams(
            **{"temperature": 1.0, "seed": seed, "max_tokens": 12, "logprobs": 1, **options}
        )
        wanted = outcome(Engine(Toy(seed)), [0, 1], params, [])
        for drafter, predicted in ((same, []), (scattered, []), (same, list(wanted[1]) * 2)):
            target = Toy(seed)
            engine = Engine(target, drafter(target), speculation=Speculation(draft_length=length))
            for _ in range(2):  # the second time on a cached prefix
                assert outcome(engine, [0, 1], params, predicted) == wanted


def test_a_processor_of_the_wrong_shape_is_told() -> None:
    def short(tokens: Sequence[int], logits: np.ndarray) -> np.ndarray:
        return logits[:1]

    def number(tokens: Sequence[int], logits: np.ndarray) -> float:
        return 0.0

    for wrong in (short, number):
        with pytest.raises(ParameterError, match=f"logits processor {wrong.__name__} failed"):
            Engine(Toy(1)).generate([0], SamplingParams(processors=[wrong]))


@pytest.mark.parametrize("ask", [1, 12])
def test_a_grammar_that_is_stuck_ends_its_own_request_alone(ask: int) -> None:
    """Also where it notices while a token is committed, beside a neighbour of the same round."""
    target = Toy(0, sequences=2, table=cycle(SIZE))
    engine = Engine(target)
    neighbour = engine.submit([0, 1, 2, 3], SamplingParams(max_tokens=ask))
    stuck = engine.submit([0], SamplingParams(max_tokens=10, regex="b(c|a)e"))
    steps = drain(engine)
    alone = Engine(Toy(0, table=cycle(SIZE))).generate([0, 1, 2, 3], SamplingParams(max_tokens=ask))
    done = engine.completion(neighbour)
    assert (done.token_ids, done.text) == (alone.token_ids, alone.text)
    mine = [step for step in steps if step.request == neighbour]
    assert sum((step.tokens for step in mine), ()) == alone.token_ids
    with pytest.raises(DraftproofError):
        engine.completion(stuck)


def test_what_cannot_be_is_a_number_in_json() -> None:
    done = Engine(Toy(table=cycle())).generate([0], SamplingParams(max_tokens=2, logprobs=SIZE))
    text = json.dumps(done.to_json(), allow_nan=False)
    assert json.loads(text)["logprobs"][0]["top"][-1][1] == -9999


def test_stop_strings_count_after_the_least_number_of_tokens() -> None:
    target = Toy(table={(): np.eye(SIZE)[0], (0,): np.eye(SIZE)[1], (1,): np.eye(SIZE)[0]})
    for length in (0, 1, 3, 5):
        engine = Engine(target, zeros(target), speculation=Speculation(draft_length=length))
        done = engine.generate([1], SamplingParams(stop=("ab",), min_tokens=5, max_tokens=20))
        assert (done.text, done.finish_reason) == ("abab", "stop")
        assert len(done.token_ids) == 6


def test_a_stop_token_ends_an_answer_also_in_the_middle_of_a_draft() -> None:
    target = Toy(table={(): np.eye(SIZE)[0], **{(i,): np.eye(SIZE)[(i + 1) % 4] for i in range(4)}})
    for length in range(6):
        engine = Engine(target, other(target), speculation=Speculation(draft_length=length))
        done = engine.generate([3], SamplingParams(stop_token_ids=[2], ignore_eos=True))
        assert (done.token_ids, done.text, done.finish_reason) == ((0, 1, 2), "ab", "stop")


def test_several_answers_have_seeds_of_their_own() -> None:
    params = SamplingParams(temperature=1.0, seed=9)
    seeds = [one.seed for one in choices(params, 4)]
    assert seeds[0] == 9
    assert len(set(seeds)) == 4
    assert seeds == [one.seed for one in choices(params, 5)][:4]
    assert [one.seed for one in choices(SamplingParams(), 2)] == [None, None]
    with pytest.raises(ParameterError, match="n must be"):
        choices(params, 0)


WRONG: list[dict[str, Any]] = [
    {"logit_bias": {0: 101}},
    {"logit_bias": {-1: 1}},
    {"logit_bias": [1, 2]},
    {"logit_bias": "ab"},
    {"bad_words": [""]},
    {"bad_words": [3]},
    {"min_tokens": -1},
    {"min_tokens": 9, "max_tokens": 8},
    {"stop_token_ids": ["a"]},
    {"stop_token_ids": 3},
    {"repetition_penalty": 0},
    {"presence_penalty": float("nan")},
    {"frequency_penalty": 1000},
    {"typical_p": 0},
    {"logprobs": -1},
    {"logprobs": True},
    {"prompt_logprobs": 1.5},
    {"regex": "a", "json_schema": "{}"},
    {"regex": ""},
    {"grammar": 3},
    {"regex": "a", "min_tokens": 1},
    {"processors": [3]},
    {"processors": print},
    {"regex": "a", "ignore_eos": True},
    {"logit_bias": [(0, 1), (0, 2)]},
    {"json_schema": True},
]


@pytest.mark.parametrize("options", WRONG, ids=range(len(WRONG)))
def test_what_is_out_of_range_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="|".join(options)):
        SamplingParams(**options)


ANYTHING = st.one_of(
    *(st.none(), st.booleans(), st.integers(-3, 60), st.floats(), st.text("ab[(|", max_size=4)),
    *(st.lists(st.text("ab", max_size=2), max_size=2), st.lists(st.integers(-1, 6), max_size=2)),
    st.dictionaries(st.integers(-1, 6), st.floats(-101, 101), max_size=2),
)
FIELDS = sorted(field.name for field in fields(SamplingParams))


@given(options=st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=4))
@settings(max_examples=150, deadline=None)
def test_anything_is_used_or_refused(options: dict[str, Any]) -> None:
    try:
        params = replace(SamplingParams(**options), max_tokens=4, min_tokens=0)
        plain = Engine(Toy(1)).generate(
            [0], replace(params, seed=3 if params.temperature else None)
        )
    except DraftproofError:
        return
    assert 1 <= len(plain.token_ids) <= 4


@pytest.mark.parametrize("options", [{"logit_bias": {SIZE: 1}}, {"stop_token_ids": [SIZE]}])
def test_tokens_that_do_not_exist_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=f"there is no token {SIZE}"):
        Engine(Toy(1)).submit([0], SamplingParams(**options))


def test_options_that_are_off_leave_nothing_behind() -> None:
    engine = Engine(Toy(1), other(Toy(1)))
    engine.submit([0], SamplingParams(temperature=1.0, logprobs=1, stop=("a",)))
    assert engine._rounds.waiting[0].processors is None
    assert END in engine._rounds.waiting[0].end_tokens
