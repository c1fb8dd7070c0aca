"""Chained drafters: exact whoever speaks, and the one that earns most speaks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from draftproof import (
    Chunk,
    Draft,
    Drafter,
    DraftRequest,
    Engine,
    Model,
    ModelError,
    ModelLoadError,
    ModelOptions,
    ParameterError,
    SamplingParams,
    Speculation,
    load_drafter,
    load_model,
)
from draftproof.control.acceptance import NEXT
from draftproof.drafters import split_chain
from draftproof.drafters.chain import ChainDrafter
from draftproof.drafters.lookup import LookupDrafter
from draftproof.drafters.model import ModelDrafter
from draftproof.models.table import TableModel
from draftproof.text import encode_prompt
from draftproof.types import RULES
from exact import Case, Weights, asks, drawn_from
from laws import dishonest_rows, prove
from tables import BINARY, BINARY_DRAFT, TERNARY, TERNARY_DRAFT
from toy_drafters import Script, other, same
from toys import PLAIN, PROMPTS, SEEDED, Toy, agrees, ask, check, cycle, drain, eight_requests

LONG = SamplingParams(max_tokens=900, ignore_eos=True)


class Spy:
    """A drafter that notes which sequences it was asked about, round by round."""

    def __init__(self, drafter: Drafter, asked: list[list[int]]) -> None:
        self.name, self._drafter, self._asked = drafter.name, drafter, asked

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self._asked.append([request.seq for request in requests if request.length])
        return self._drafter.propose(requests)

    def close(self) -> None:
        self._drafter.close()


class Misled(LookupDrafter):
    """A lookup that proposes other tokens where it is told to."""

    def __init__(self, wrong: Callable[[DraftRequest], bool]) -> None:
        super().__init__(min_match=1)
        self._wrong = wrong

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = super().propose(requests)
        return [
            Draft(tuple((t + 1) % 4 for t in draft.tokens)) if self._wrong(request) else draft
            for request, draft in zip(requests, drafts, strict=True)
        ]


class Timed(Toy):
    """A pass takes a second of its own clock."""

    def __init__(self, clock: list[float], seconds: float, *args: int, **named: object) -> None:
        super().__init__(*args, **named)
        self._clock, self._seconds = clock, seconds

    def forward(self, chunks: Sequence[Chunk]) -> list:
        self._clock[0] += self._seconds
        return super().forward(chunks)


def exact_chain(
    draft: Weights, min_match: int = 1, asked: list[list[int]] | None = None, frozen: bool = False
) -> Callable[[TableModel], Drafter]:
    """Lookup and a draft model; the clock ticks once a look, so that every run is the same."""

    def make(target: TableModel) -> Drafter:
        model = Spy(drawn_from(draft)(target), [] if asked is None else asked)
        clock = (lambda: 0.0) if frozen else count().__next__
        return ChainDrafter([LookupDrafter(min_match), model], clock)

    return make


# Exact


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_law_stays_whoever_speaks(rule: str, length: int) -> None:
    asked: list[list[int]] = []
    case = Case(
        target=BINARY,
        drafter=exact_chain(BINARY_DRAFT, asked=asked),
        rule=rule,
        draft_length=length,
        requests=asks((0, 1, 1, 0, 1), 5),
    )
    found = prove(case)
    drafted = sum(bool(step.drafted) for leaf in found for step in leaf.steps)
    assert 0 < sum(map(bool, asked)) < drafted, "both have to speak to test anything"
    assert max(leaf.rounds for leaf in found) >= 2


@pytest.mark.parametrize("rule", RULES)
def test_the_law_stays_on_three_tokens_and_in_the_next_conversation(rule: str) -> None:
    prove(
        Case(
            target=TERNARY,
            drafter=exact_chain(TERNARY_DRAFT),
            rule=rule,
            requests=asks((0, 1, 0), 4),
        )
    )
    prove(
        Case(
            target=BINARY,
            drafter=exact_chain(BINARY_DRAFT),
            rule=rule,
            requests=asks((0, 1), 3),
            next_prompt=lambda text: (*text, 0),
        )
    )


def test_two_sequences_at_once() -> None:
    requests = (*asks((0, 1, 0), 2), *asks((1, 1), 2))
    prove(Case(target=BINARY, drafter=exact_chain(BINARY_DRAFT), requests=requests))


def test_rows_are_those_of_the_one_that_speaks() -> None:
    """By expected acceptance alone the model is preferred to so short a match."""
    case = Case(
        target=TERNARY,
        drafter=exact_chain(TERNARY_DRAFT, frozen=True),
        draft_length=3,
        requests=asks((0, 1, 0), 4),
    )
    assert not dishonest_rows(case)


# Who speaks


def timed_chain(
    wrong: Callable[[DraftRequest], bool], sequences: int = 1
) -> tuple[Engine, list[list[int]], Timed]:
    """A target that counts abcd; a lookup that may be misled; the target as its own draft model,
    each of whose passes takes a fifth of the target's.
    """
    clock = [0.0]
    target = Timed(clock, 1.0, 0, 2000, sequences, table=cycle())
    model = Timed(clock, 0.2, 0, 2000, sequences, table=cycle())
    asked: list[list[int]] = []
    spy = Spy(ModelDrafter(model, target), asked)
    return Engine(target, ChainDrafter([Misled(wrong), spy], lambda: clock[0])), asked, model


def spoken(engine: Engine, asked: list[list[int]], rounds: int) -> list[bool]:
    """Round by round whether lookup spoke."""
    heard = []
    for _ in range(rounds):
        before = len(asked)
        (step,) = engine.step()
        heard.append(bool(step.drafted) and not any(asked[before:]))
    return heard


def test_a_wrong_lookup_is_heard_less_and_less_and_comes_back_when_it_pays() -> None:
    wrong = [True]
    engine, asked, _ = timed_chain(lambda request: wrong[0])
    engine.submit([0, 1, 2, 3, 0, 1, 2, 3, 0], LONG)
    early, late = (sum(spoken(engine, asked, 20)) for _ in range(2))
    assert 0 < early <= 5
    assert late == 0
    wrong[0] = False
    assert sum(spoken(engine, asked, 30)) > 20
    assert all(spoken(engine, asked, 5))
    wrong[0] = True
    assert sum(spoken(engine, asked, 20)) < 18
    assert not any(spoken(engine, asked, 20))


def test_a_draft_model_that_was_given_up_is_tried_again() -> None:
    """It cannot be judged while it is silent, so it gets a turn now and then."""
    clock = [0.0]
    target = Timed(clock, 1.0, 0, 2000, table=cycle())
    bad, heard = [True], []

    def quick(request: DraftRequest) -> list[int]:
        heard.append(request)
        return [(request.tokens[-1] + 1 + bad[0] + i) % 4 for i in range(request.length)]

    def slow(request: DraftRequest) -> list[int]:
        clock[0] += 2
        return [(request.tokens[-1] + 1 + i) % 4 for i in range(request.length)]

    engine = Engine(target, ChainDrafter([Script(quick), Script(slow)], lambda: clock[0]))
    engine.submit([0], LONG)
    for _ in range(80):
        engine.step()
    assert 2 < len(heard) < 12
    bad[0] = False
    heard.clear()
    for _ in range(60):
        engine.step()
    assert len(heard) > 30


def test_each_sequence_of_a_batch_decides_for_itself() -> None:
    engine, asked, _ = timed_chain(lambda request: request.tokens[0] == 1, sequences=2)
    for first in (0, 1):
        engine.submit([first, *[0, 1, 2, 3] * 3], LONG)
    for _ in range(30):
        engine.step()
    assert all(seqs == [1] for seqs in asked[-10:])
    assert len(asked) > 12


def test_the_draft_models_cache_is_in_line_after_switching() -> None:
    """Reading what it missed takes no pass of its own: one a token it drafts, and no more."""
    engine, asked, model = timed_chain(lambda request: len(request.tokens) // 40 % 2 == 1)
    steps = []
    engine.submit([0, 1, 2, 3, 0], LONG)
    switches, by_model, longest = 0, False, 0
    while new := engine.step():
        steps += new
        speaks = bool(asked and asked[-1])
        asked.append([])
        switches += speaks != by_model
        by_model = speaks
        if speaks:
            assert new[0].accepted == len(new[0].drafted) > 0
            longest += len(new[0].drafted)
    assert switches >= 6
    # A last round without room for a draft would only read.
    assert longest <= len(model.calls) <= longest + 1
    assert max(len(call[0].tokens) for call in model.calls) > 10  # a long piece it had missed


def test_a_prompt_is_read_by_all_in_the_same_parts() -> None:
    target, model = Toy(1), Toy(1)
    engine = Engine(
        target, ChainDrafter([LookupDrafter(), ModelDrafter(model, target)]), prefill_chunk=4
    )
    engine.submit([1, 2, 3, 0] * 3, PLAIN)
    drain(engine)
    assert [len(call[0].tokens) for call in model.calls[:2]] == [4, 4]


def test_where_the_draft_model_has_no_room_lookup_speaks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = Toy(0, 200, table=cycle())
    model = ModelDrafter(Toy(0, 8, table=cycle()), target)
    chain = ChainDrafter([model, LookupDrafter()], lambda: 0.0)
    with caplog.at_level(logging.WARNING, "draftproof"):
        done = Engine(target, chain).generate([0], SamplingParams(max_tokens=60, ignore_eos=True))
    assert "has outgrown its context" in caplog.text
    assert done.token_ids == tuple((i + 1) % 4 for i in range(60))
    assert done.stats.acceptance_length > 3


def test_an_earlier_drafter_wins_a_tie() -> None:
    one, two = Script(lambda r: [0]), Script(lambda r: [1])
    (draft,) = ChainDrafter([one, two], lambda: 0.0).propose([ask([0])])
    assert (draft.tokens, len(two.requests)) == ((0,), 0)


# The text does not depend on it

CHAINS = {
    "lookup first": lambda target: ChainDrafter([LookupDrafter(1), other(target)]),
    "lookup last": lambda target: ChainDrafter([other(target), LookupDrafter()]),
    "two models": lambda target: ChainDrafter([other(target), same(target)]),
    "alone": lambda target: ChainDrafter([LookupDrafter(1)]),
}
pytest_chains = pytest.mark.parametrize("make", CHAINS.values(), ids=CHAINS)


@pytest_chains
def test_eight_requests_that_differ_in_everything(make: Callable[[Toy], Drafter]) -> None:
    target = Toy(1, sequences=3)
    engine = Engine(target, make(target), prefill_chunk=5)
    requests = eight_requests()
    ids = [engine.submit(*request) for request in requests]
    drain(engine)
    for number, (prompt, params, _) in zip(ids, requests, strict=True):
        check(engine, number, target, prompt, params)


@pytest_chains
@pytest.mark.parametrize("budget", range(1, 8))
def test_budgets(make: Callable[[Toy], Drafter], budget: int) -> None:
    target = Toy(1)
    engine = Engine(target, make(target))
    for temperature in (0, 1.0):
        params = SamplingParams(max_tokens=budget, temperature=temperature, seed=3)
        for prompt in PROMPTS:
            assert agrees(engine.generate(prompt, params), target, prompt, params)


@pytest_chains
def test_cancelled_failed_and_taken_over(make: Callable[[Toy], Drafter]) -> None:
    """A slot changes hands in the middle of a request, and a second engine uses the drafter."""
    target = Toy(1)
    drafter = make(target)
    engine = Engine(target, drafter)
    gone = engine.submit([1, 2, 1, 2, 1], SamplingParams(max_tokens=30, ignore_eos=True))
    engine.step()
    engine.step()
    engine.cancel(gone)
    for serving in (engine, Engine(target, drafter), engine):
        for params in (PLAIN, SEEDED):
            assert agrees(serving.generate([2, 1, 2], params), target, [2, 1, 2], params)
    target.failures = {len(target.calls) + 2: (ModelError("down"), "half")}
    long = replace(SEEDED, max_tokens=40, ignore_eos=True)
    request = engine.submit([1, 2], long)
    engine.step()
    with pytest.raises(ModelError):
        engine.step()
    drain(engine)
    check(engine, request, target, [1, 2], long)


def test_a_failed_round_teaches_nothing() -> None:
    """A drafter is right half of the time; a target that fails now and then changes no belief."""

    def chances(failures: int) -> list[float]:
        target = Toy(0, 200, table=cycle())
        target.failures = {n: (ModelError("down"), "half") for n in range(5, 5 + 2 * failures, 2)}
        drafter = Script(lambda r: [(r.tokens[-1] + 1) % 4, 0][: r.length])
        chain = ChainDrafter([drafter], lambda: 0.0)
        engine = Engine(target, chain)
        engine.submit([0], SamplingParams(max_tokens=50, ignore_eos=True))
        while True:
            try:
                if not engine.step():
                    return [chain.control.estimates.streams[0].chances[0].unseen()]
            except ModelError:
                assert failures

    assert chances(5) == chances(0)
    assert chances(0) != [NEXT]


def test_closing_closes_all() -> None:
    parts = [Script(lambda r: []), Script(lambda r: [])]
    ChainDrafter(parts).close()
    assert [part.closed for part in parts] == [1, 1]


# By name


def test_chains_by_name() -> None:
    markov = load_model("table:markov")
    for spec in ("lookup,table:markov-draft", "table:markov-draft,lookup"):
        drafter = load_drafter(spec, markov)
        assert isinstance(drafter, ChainDrafter)
        assert drafter.name == spec
        drafter.close()


@pytest.mark.parametrize("spec", ["lookup,none", "lookup,", ",lookup", "lookup,lookup"])
def test_a_chain_of_nothing_or_of_the_same_twice_is_refused(spec: str) -> None:
    with pytest.raises(ParameterError, match="a chain names drafters, each of them once"):
        load_drafter(spec, load_model("table:markov"))


def test_what_was_loaded_is_closed_when_the_next_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = []
    monkeypatch.setattr(LookupDrafter, "close", lambda self: closed.append(self))
    with pytest.raises(ModelLoadError, match="no table is called"):
        load_drafter("lookup,table:no", load_model("table:markov"))
    assert len(closed) == 1


def test_a_comma_in_a_path_that_exists_belongs_to_it(tmp_path: Path) -> None:
    path = tmp_path / "a,b,c.gguf"
    path.touch()
    assert split_chain(str(path)) == [str(path)]
    assert split_chain(f"lookup,{path},demo") == ["lookup", str(path), "demo"]
    assert split_chain(f"gguf:{path},lookup") == [f"gguf:{path}", "lookup"]
    assert split_chain("lookup,no,such.gguf") == ["lookup", "no", "such.gguf"]


# The real model

COPYING = (
    "Correct the spelling and repeat the whole text: The quick brown fox jumpd over the lazy dog. "
    "The dog was not amused, and the fox was very hapy. The quick brown fox laughed at the lazy "
    "dog. The dog slept on and the fox went home to eat a large dinner with his friends."
)
WRITING = "Tell a short story about a lighthouse keeper and a whale."


@pytest.mark.model
@pytest.mark.parametrize("question", [COPYING, WRITING], ids=["copying", "writing"])
def test_a_chain_accepts_about_as_much_as_the_better_one(
    f16_path: str, q8_path: str, question: str
) -> None:
    """With a clock that stands still no drafter is cheaper, and acceptance alone decides."""
    options = ModelOptions(context_length=512)
    target: Model = load_model(f16_path, options)
    model = load_drafter(q8_path, target)
    assert model is not None
    messages = [{"role": "user", "content": question}]
    prompt = encode_prompt(target.tokenizer, messages, target.capabilities.vocabulary)
    params = SamplingParams(max_tokens=96, ignore_eos=True)

    def acceptance_length(drafter: Drafter) -> float:
        speculation = Speculation(draft_length=4)
        return Engine(target, drafter).generate(prompt, params, speculation).stats.acceptance_length

    alone = max(acceptance_length(LookupDrafter()), acceptance_length(model))
    chained = acceptance_length(ChainDrafter([LookupDrafter(), model], lambda: 0.0))
    model.close()
    target.close()
    assert chained > alone - 0.3


def test_a_model_alone_behind_a_lookup_that_spoke_for_long() -> None:
    """At a fixed length; lookup has nothing to say in the round after."""
    offers = [True]

    class Sometimes(LookupDrafter):
        def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            return super().propose(requests) if offers[0] else [Draft() for _ in requests]

    clock = [0.0]
    target = Timed(clock, 1.0, 0, 2000, 1, table=cycle())
    model = Timed(clock, 0.2, 0, 2000, 1, table=cycle())
    chain = ChainDrafter([Sometimes(1), ModelDrafter(model, target)], lambda: clock[0])
    engine = Engine(target, chain, speculation=Speculation(draft_length=2))
    engine.submit([0, 1, 2, 3, 0, 1, 2, 3, 0], LONG)
    for _ in range(60):
        engine.step()
    offers[0] = False
    steps = [engine.step()[0] for _ in range(3)]
    assert all(step.drafted for step in steps)
