from __future__ import annotations

import logging
import math
from dataclasses import replace

import numpy as np
import pytest

from draftproof import (
    Chunk,
    Engine,
    ModelError,
    ModelOptions,
    PairError,
    ParameterError,
    SamplingParams,
    Speculation,
    load_drafter,
)
from draftproof.drafters.lookup import LookupDrafter
from draftproof.drafters.model import ModelDrafter
from draftproof.models.table import TableModel
from toy_drafters import other, same
from toys import END, PLAIN, SEEDED, SIZE, NoRollback, Toy, ask, oracle


def pair(context: int = 64, sequences: int = 2) -> tuple[ModelDrafter, Toy, Toy]:
    target, model = Toy(1, 64, sequences), Toy(2, context, sequences)
    return ModelDrafter(model, target), model, target


def test_a_draft_model_reads_only_what_is_new() -> None:
    drafter, model, _ = pair()
    text = [1, 2, 3]
    (draft,) = drafter.propose([ask(text, 3)])
    assert len(draft.tokens) == 3
    for kept in (3, 1, 0):  # all accepted, then a rejection in the middle, and at the start
        before = len(model.calls)
        text = [*text, *draft.tokens[:kept], (draft.tokens[kept - 1] + 1) % SIZE]
        (draft,) = drafter.propose([ask(text, 3)])
        first = model.calls[before][0].tokens
        assert first == (text[-2:] if kept == 3 else text[-1:])
        assert model._cache[0][: len(text)] == text


def test_the_next_turn_begins_where_the_texts_part() -> None:
    drafter, model, _ = pair()
    drafter.propose([ask([1, 2, 3, 0, 1], 2)])
    before = len(model.calls)
    drafter.propose([ask([1, 2, 0, 0], 1, owner=1)])
    assert model.calls[before][0].tokens == [0, 0]
    drafter.propose([ask([1, 2, 0, 0], 1, owner=2)])
    assert model.calls[-1][0].tokens == [0]


def test_a_round_without_a_draft_keeps_the_cache_up_to_date() -> None:
    drafter, model, _ = pair()
    drafter.propose([ask([1, 2, 3], 0)])
    assert model.calls == [[(0, [1, 2, 3], 0)]]
    drafter.propose([ask([1, 2, 3], 0)])
    assert len(model.calls) == 1
    drafter.propose([ask([1, 2, 3, 3], 1)])
    assert model.calls[1] == [(0, [3], 1)]


def test_rows_are_what_was_drawn_from() -> None:
    drafter, model, _ = pair()
    params = SamplingParams(temperature=0.7, top_k=3)
    (draft,) = drafter.propose([ask([1, 2], 4, params)])
    text = [1, 2]
    for token, row in zip(draft.tokens, draft.rows, strict=True):
        rows = np.exp(model._lookup(text[-2:]) / 0.7)
        rows[rows < np.sort(rows)[-3]] = 0
        np.testing.assert_allclose(row, rows / rows.sum())
        assert row[token] > 0
        text.append(token)


@pytest.mark.parametrize("params", [PLAIN, SEEDED])
def test_greedy_and_seeded_drafts_are_the_models_own_text(params: SamplingParams) -> None:
    drafter, model, _ = pair()
    (draft,) = drafter.propose([ask([1, 2], 5, params)])
    assert draft.rows is None
    assert draft.tokens == oracle(model, [1, 2], replace(params, ignore_eos=True))[0][:5]


def test_a_draft_model_stops_at_an_end_token_and_keeps_it() -> None:
    rows = {(): [0, 1, 0, 0, 0], (1,): [0, 0, 1, 0, 0], (2,): [0, 0, 0, 0, 1]}
    drafter = ModelDrafter(Toy(table=rows), Toy(1))
    assert drafter.propose([ask([0], 5, ends=frozenset([END]))])[0].tokens == (1, 2, END)
    assert len(drafter.propose([ask([0], 5)])[0].tokens) == 5


@pytest.mark.parametrize("sizes", [(4, 6), (6, 4)])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_vocabularies_padded_to_different_sizes(sizes: tuple[int, int], temperature: float) -> None:
    mine, theirs = sizes
    model = TableModel({(): [1 / mine] * mine}, "draft")
    target = TableModel({(): [1 / theirs] * theirs}, "target")
    drafter = ModelDrafter(model, target)
    params = SamplingParams(temperature=temperature, max_tokens=40)
    (draft,) = drafter.propose([ask([0], 30, params)])
    assert max(draft.tokens) < min(sizes)
    if temperature:
        assert np.shape(draft.rows) == (30, theirs)
        np.testing.assert_allclose(draft.rows[0][: min(sizes)], 1 / min(sizes))
        np.testing.assert_allclose(np.sum(draft.rows, axis=1), 1)
    engine = Engine(target, drafter)
    for rule in ("block", "token", "match"):
        done = engine.generate([0], params, Speculation(rule=rule))
        assert len(done.token_ids) == 40
        assert done.stats.drafted > 0


def test_a_target_that_takes_the_padding_is_not_stopped() -> None:
    target = TableModel({(): [0, 0, 0, 0, 0.0, 1.0]}, "target")
    drafter = ModelDrafter(TableModel({(): [0.25] * 4}, "draft"), target)
    params = SamplingParams(temperature=1, max_tokens=10)
    assert Engine(target, drafter).generate([0], params).token_ids == (5,) * 10


def test_a_pair_of_different_tokenizers_is_refused_with_both_names() -> None:
    target = Toy(1)
    model = TableModel({(): [0.5, 0.5]}, "stranger")
    model.tokenizer._letters = ["a", "z"]
    with pytest.raises(PairError, match=r"stranger.*toy 1.*token 1 is 'z' there, 'b' here"):
        ModelDrafter(model, target)


def test_a_draft_model_must_hold_as_many_sequences_and_go_back() -> None:
    with pytest.raises(PairError, match="toy 2 holds 1 sequences and toy 1 3"):
        ModelDrafter(Toy(2), Toy(1, sequences=3))
    with pytest.raises(PairError, match="toy 2 cannot draft: its state is recurrent"):
        ModelDrafter(NoRollback(2), Toy(1))


def test_a_sequence_that_outgrows_the_draft_model_goes_on_plain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target, model = Toy(1, context=64, sequences=3), Toy(2, context=20, sequences=3)
    engine = Engine(target, ModelDrafter(model, target))
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    brief = SamplingParams(max_tokens=12, ignore_eos=True)
    with caplog.at_level(logging.WARNING, "draftproof"):
        long = [engine.submit([i], params) for i in (1, 2)]
        requests = [engine.submit([0], brief)]
        while steps := engine.step():
            for step in steps:
                if step.request == 2 and len(step.tokens) > 1:
                    assert step.drafted
        requests.append(engine.submit([3, 1], brief))
        while engine.step():
            pass
    for request, prompt in zip(long, ([1], [2]), strict=True):
        done = engine.completion(request)
        assert done.token_ids == oracle(target, prompt, params)[0]
        assert done.stats.plain > 0
        assert done.stats.drafted > 0
    again = engine.completion(requests[1])
    assert again.stats.drafted > 0
    assert again.token_ids == oracle(target, [3, 1], brief)[0]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2  # each request once
    assert all(line.startswith("toy 2: ") and "context of 20" in line for line in told)


@pytest.mark.parametrize("context", range(3, 12))
@pytest.mark.parametrize("length", [1, 4, 8])
def test_no_draft_model_is_run_past_its_context(context: int, length: int) -> None:
    target = Toy(1)
    drafter = ModelDrafter(Toy(2, context), target)
    engine = Engine(target, drafter, prefill_chunk=3)
    for n in range(1, 14):
        done = engine.generate([1] * n, SEEDED, Speculation(draft_length=length))
        assert done.token_ids == oracle(target, [1] * n, SEEDED)[0]


def test_one_drafter_may_serve_engine_after_engine() -> None:
    target = Toy(1, sequences=2)
    for make in (other, same, lambda t: LookupDrafter(1)):
        drafter = make(target)
        for first in range(4):
            done = Engine(target, drafter).generate([first, first], SEEDED)
            assert done.token_ids == oracle(target, [first, first], SEEDED)[0]
            if make is same:
                assert done.stats.rejected == 0


@pytest.mark.parametrize("rule", ["block", "token", "match"])
@pytest.mark.parametrize("temperature", [0, 0.6, 1.0])
def test_the_target_as_its_own_draft_accepts_everything(rule: str, temperature: float) -> None:
    target = Toy(1, sequences=3)
    engine = Engine(target, same(target))
    seed = 5 if rule == "match" else None  # without a seed a match is two independent draws
    params = SamplingParams(temperature=temperature, max_tokens=30, seed=seed)
    for length in range(1, 9):
        speculation = Speculation(draft_length=length, rule=rule)
        for done in engine.generate_many([[i] for i in range(4)], params, speculation):
            assert done.stats.rejected == 0
            assert done.stats.accepted > 0 or len(done.token_ids) == 1


@pytest.mark.parametrize("rule", ["block", "token", "match"])
def test_disjoint_supports_accept_nothing(rule: str) -> None:
    target = Toy(table={(): [0.5, 0.5, 0, 0, 0]})
    drafter = ModelDrafter(Toy(table={(): [0, 0, 0.5, 0.5, 0]}), target)
    params = SamplingParams(temperature=1, max_tokens=40)
    done = Engine(target, drafter).generate([0], params, Speculation(rule=rule))
    assert done.stats.accepted == 0
    assert done.stats.evaluated == done.stats.rejected > 0
    assert set(done.token_ids) == {0, 1}


def test_drafters_by_name() -> None:
    target = Toy(1, context=40, sequences=2)
    assert load_drafter("none", target) is None
    assert load_drafter("lookup", target).name == "lookup"
    markov = Engine("table:markov", options=ModelOptions(context_length=40, max_sequences=2)).target
    drafter = load_drafter("table:markov-draft", markov)
    can = drafter.model.capabilities
    assert (can.context_length, can.max_sequences) == (40, 2)
    for spec, error in (
        ("", ParameterError),
        ("lookup:3", ParameterError),
        ("quantize:Q4_0", PairError),
        ("table:nowhere", Exception),
    ):
        with pytest.raises(error):
            load_drafter(spec, target)


def test_a_draft_model_that_breaks_down_costs_drafts_and_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its logits are not finite behind token 1: what it drafted before still counts."""
    model, target = Toy(), Toy(1)
    healthy = model._lookup
    model._lookup = lambda ending: healthy(ending) * (math.nan if ending[-1] == 1 else 1)
    engine = Engine(target, ModelDrafter(model, target))
    for params in (PLAIN, SEEDED):
        done = engine.generate([0, 2], params)
        assert done.token_ids == Engine(Toy(1)).generate([0, 2], params).token_ids
        assert done.stats.drafted > 0
        assert "not finite" in caplog.text


def test_a_draft_model_whose_pass_fails_costs_drafts_and_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Told once for each request; afterwards it drafts again as if nothing had been."""
    target, model = Toy(1), Toy(1)
    run, passes = model.forward, iter(range(1000))

    def sometimes(chunks: list[Chunk]) -> list[np.ndarray]:
        rows = run(chunks)
        if next(passes) % 3 == 2:
            raise ModelError("out of memory")
        return rows

    model.forward = sometimes
    engine = Engine(target, ModelDrafter(model, target))
    params = replace(PLAIN, max_tokens=30)
    done = engine.generate([0, 2], params)
    assert done.token_ids == Engine(Toy(1)).generate([0, 2], params).token_ids
    assert done.stats.accepted == done.stats.evaluated > 0
    assert caplog.text.count("out of memory") == 1


def test_a_draft_model_drafts_up_to_its_last_place() -> None:
    """Behind 6 of 8 entries: the newest token and two drafts are read, a third is only drawn."""
    drafter, _, _ = pair(context=8)
    (draft,) = drafter.propose([ask([1, 2, 3, 0, 1, 2], 5)])
    assert len(draft.tokens) == 3
    assert len(drafter.propose([ask([1, 2, 3, 0, 1, 2, 3, 0], 5)])[0].tokens) == 1
    assert drafter.propose([ask([1, 2, 3, 0, 1, 2, 3, 0, 1], 5)])[0].tokens == ()
