"""Draft models of another tokenizer: what they read, what they propose, and what they cost."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from byte_tokens import DRAFT, TARGET, speaking
from draftproof import (
    Chunk,
    Engine,
    PairError,
    ParameterError,
    SamplingParams,
    Speculation,
    load_drafter,
    models,
)
from draftproof.cli import main
from draftproof.drafters.cross import Choice, CrossVocabularyDrafter
from draftproof.drafters.cross_bytes import WINDOW, Retelling, Vocabulary
from draftproof.drafters.cross_tokens import Intersection
from draftproof.drafters.model import ModelDrafter
from draftproof.types import CROSS_VOCABULARY, RULES
from toys import FRESH, PLAIN, SEEDED, NoRollback, Toy, agrees, ask, drain


def toy(pieces: tuple[bytes, ...], seed: int = 1, kind: type[Toy] = Toy, **named: object) -> Toy:
    """A random model whose tokens are ``pieces``."""
    rng = np.random.default_rng(seed)
    endings = [()] + [(token,) for token in range(len(pieces))]
    rows = {ending: rng.dirichlet([0.3] * len(pieces)).tolist() for ending in endings}
    how = {key: named.pop(key) for key in ("end", "bos", "space") if key in named}
    return speaking(kind(seed, table=rows, **named), pieces, **how)


def copies(text: bytes, pieces: tuple[bytes, ...], **named: object) -> Toy:
    """A model that says ``text`` again and again, one piece per byte of it."""
    at = {piece: token for token, piece in enumerate(pieces)}
    tokens = [at[bytes([byte])] for byte in text]
    follows = dict(zip(tokens, [*tokens[1:], tokens[0]], strict=True))
    rows = {(): [1.0] + [0.0] * (len(pieces) - 1)}
    rows |= {(a,): np.eye(len(pieces))[b].tolist() for a, b in follows.items()}
    return speaking(Toy(0, table=rows, **named), pieces)


@pytest.mark.parametrize("method", CROSS_VOCABULARY)
@pytest.mark.parametrize("params", [PLAIN, SEEDED], ids=["greedy", "seeded"])
def test_text_is_plain_text(method: str, params: SamplingParams) -> None:
    drafted = 0
    for seed, length in product(range(6), (1, 2, 5)):
        target, params = toy(TARGET, seed), replace(params, max_tokens=40)
        drafter = CrossVocabularyDrafter(toy(DRAFT, seed + 50), target, method)
        done = Engine(target, drafter).generate([0, 1], params, Speculation(draft_length=length))
        assert agrees(done, target, [0, 1], params)
        drafted += done.stats.drafted
    assert drafted > 100


byte_pieces = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=3), st.text("aé€ ", min_size=1, max_size=2).map(str.encode)
    ),
    min_size=2,
    max_size=8,
)


@settings(max_examples=100, deadline=None)
@given(byte_pieces, byte_pieces, st.sampled_from(CROSS_VOCABULARY), st.integers(0, 99), st.data())
def test_any_two_vocabularies(
    mine: list[bytes], theirs: list[bytes], method: str, seed: int, data: st.DataObject
) -> None:
    """Duplicates, parts of characters, bytes that are no text, spaces in front."""
    target = toy(tuple(theirs), seed, end=data.draw(st.sampled_from([None, 0])))
    space, bos = data.draw(st.booleans()), data.draw(st.sampled_from([None, 1]))
    draft = toy(
        tuple(mine), seed + 1, space=space, bos=bos, end=data.draw(st.sampled_from([None, 0]))
    )
    engine = Engine(target, CrossVocabularyDrafter(draft, target, method), prefill_chunk=2)
    prompt = [1] * data.draw(st.integers(1, 5))
    for params in (SEEDED, PLAIN, replace(SEEDED, ignore_eos=True)):
        assert agrees(engine.generate(prompt, params), target, prompt, params)


@settings(max_examples=60, deadline=None)
@given(byte_pieces, st.lists(st.binary(max_size=6), max_size=30), st.booleans())
def test_the_draft_model_reads_the_same_bytes(
    mine: list[bytes], parts: list[bytes], space: bool
) -> None:
    """However the committed tokens come, and whatever the tokenizer puts in front."""
    single = [bytes([byte]) for byte in range(256)]
    theirs = [*single, *parts]
    target, draft = toy(tuple(theirs)), toy((*single, *mine), space=space)
    retelling = Retelling(Vocabulary(target), Vocabulary(draft))
    tokens: list[int] = []
    for part in range(len(parts)):
        tokens.append(256 + part)
        old = list(retelling.tokens)
        kept = retelling.update(ask(tokens))
        assert b"".join((*single, *mine)[t] for t in retelling.tokens) == b"".join(
            parts[: part + 1]
        )
        assert retelling.tokens[:kept] == old[:kept]


def test_a_longer_text_costs_no_more() -> None:
    """Each round only the last tokens are encoded again, and only what changed is read again."""
    target = copies(b"abcd", (b"a", b"b", b"c", b"d"), context=2000)
    model = copies(b"abcd", (b"a", b"b", b"c", b"d", b"ab", b"abc"), context=2000)
    model.tokenizer.encode, asked = _counting(model.tokenizer.encode)
    for method in ("tokens", "text"):
        asked.clear()
        model.calls.clear()
        drafter = CrossVocabularyDrafter(model, target, method)
        engine = Engine(target, drafter, prefill_chunk=1000)
        engine.generate([0, 1, 2, 3] * 100, SamplingParams(max_tokens=500))
        rounds = [asked[-1], *asked[-20:]]
        assert max(rounds) <= 3 * WINDOW + 20
        read = [len(chunk.tokens) for call in model.calls[1:] for chunk in call]
        assert max(read) <= 12
        assert sum(read) < 500 * 4


def _counting(encode: Callable[[str], list[int]]) -> tuple[Callable[[str], list[int]], list[int]]:
    asked: list[int] = []

    def counting(text: str) -> list[int]:
        asked.append(len(text))
        return encode(text)

    return counting, asked


def test_retelling_merges_with_what_is_there() -> None:
    target, draft = toy((b"a", b"b", b"c")), toy((b"a", b"b", b"c", b"abc", b"ab"))
    retelling = Retelling(Vocabulary(target), Vocabulary(draft))
    assert retelling.update(ask([2, 0])) == 0
    assert retelling.tokens == [2, 0]
    assert retelling.update(ask([2, 0, 1])) == 1
    assert retelling.tokens == [2, 4]
    assert retelling.update(ask([2, 0, 1, 2])) == 1
    assert retelling.tokens == [2, 3]
    assert retelling.update(ask([2, 0, 1], owner=1)) == 1
    assert retelling.tokens == [2, 4]


def test_control_tokens_are_read_as_the_draft_models_own() -> None:
    target = toy((b"<s>", b"a", b"</s>", b"<tool>", b"<other>"), bos=0, end=2)
    target.tokenizer.piece = lambda t: b"a" if t == 1 else b""
    draft = toy((b"<begin>", b"<stop>", b"<tool>", b"a"), bos=0, end=1)
    draft.tokenizer.piece = lambda t: b"a" if t == 3 else b""
    retelling = Retelling(Vocabulary(target), Vocabulary(draft))
    retelling.update(ask([0, 1, 3, 1, 2, 4, 1]))
    assert retelling.tokens == [0, 3, 2, 3, 1, 3]  # the tool is known, the other is not


def test_characters_in_parts() -> None:
    """Bytes of a character are read as far as there are tokens for them, then as one."""
    target = toy(tuple(bytes([b]) for b in "€é".encode()))
    draft = toy(("€".encode(), "é".encode(), b"\xe2", b"\x82"))
    retelling = Retelling(Vocabulary(target), Vocabulary(draft))
    for count, expected in ((1, [2]), (2, [2, 3]), (3, [0]), (4, [0]), (5, [0, 1])):
        retelling.update(ask(list(range(count))))
        assert retelling.tokens == expected


@pytest.mark.parametrize(
    ("before", "data", "expected"),
    [
        ("c", b"abc", [2, 3]),  # as the tokenizer writes it
        ("a", b"bc", [1, 3]),  # "ab" would have been one token: what is there stays
        ("c", b"a", [0]),
        ("c", b"xa", []),  # no token for it
        ("c", b"ax", [0]),
        ("c", b"b\xe2\x82", [1]),  # a character that is not whole
    ],
)
def test_text_in_the_targets_tokens(before: str, data: bytes, expected: list[int]) -> None:
    for space in (False, True):
        pieces = (*TARGET, b" ", b" c") if space else TARGET
        vocabulary = Vocabulary(toy(pieces, space=space))
        before_tokens = [pieces.index(before.encode())]
        assert vocabulary.go_on(before_tokens, data) == expected


def test_duplicates_are_taken_once() -> None:
    target, draft = toy((b"a", b"b", b"a")), toy((b"b", b"b", b"a", b"a", b"x"))
    shared = Intersection(Vocabulary(target), Vocabulary(draft))
    assert len(shared) == 2
    (row,) = shared.share(np.array([[1.0, 2.0, 3.0, 4.0, 5.0]]))
    assert row.tolist() in ([-np.inf, 1, 3], [3, 1, -np.inf])
    assert {shared.draft(int(token)) for token in np.flatnonzero(row > 0)} == {0, 2}


def test_end_tokens_are_shared_by_their_text_or_else_as_eos() -> None:
    def ends(mine: bytes, theirs: bytes, ours: int | None = 1) -> dict[int, int]:
        target, draft = toy((b"a", b"-", theirs), end=2), toy((b"a", mine), end=ours)
        return Intersection(Vocabulary(target), Vocabulary(draft)).ends

    assert ends(b"</s>", b"</s>") == {1: 2}
    assert ends(b"</s>", b"<end>") == {1: 2}
    assert ends(b"</s>", b"<end>", None) == {}


def test_nothing_in_common_is_told_once_and_plain_text_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for method in CROSS_VOCABULARY:
        caplog.clear()
        target = toy((b"a", b"b", b"ab"))
        drafter = CrossVocabularyDrafter(toy((b"x", b"y", b"xy")), target, method)
        done = Engine(target, drafter).generate([0], SEEDED)
        assert agrees(done, target, [0], SEEDED)
        assert done.stats.drafted == 0
        assert [r.getMessage() for r in caplog.records if "no token in common" in r.getMessage()]
        assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1


def test_no_token_in_common_but_text(caplog: pytest.LogCaptureFixture) -> None:
    target, draft = toy((b"ab", b"ba")), copies(b"ab", (b"a", b"b"))
    CrossVocabularyDrafter(draft, target, "tokens")
    assert "no token in common" in caplog.text
    caplog.clear()
    done = Engine(target, CrossVocabularyDrafter(draft, target, "text")).generate(
        [0], replace(PLAIN, max_tokens=30)
    )
    assert caplog.text == ""
    assert done.stats.drafted > 0


@pytest.mark.parametrize("method", CROSS_VOCABULARY)
@pytest.mark.parametrize("params", [PLAIN, SEEDED, FRESH], ids=["greedy", "seeded", "fresh"])
def test_the_targets_own_vocabulary_drafts_as_the_ordinary_drafter(
    method: str, params: SamplingParams, caplog: pytest.LogCaptureFixture
) -> None:
    """And it is said that the option was not needed."""
    params, speculation = replace(params, max_tokens=40), Speculation(draft_length=3)
    stats = []
    for make in (ModelDrafter, lambda m, t: CrossVocabularyDrafter(m, t, method)):
        target, model = Toy(1), Toy(1)
        done = Engine(target, make(model, target)).generate([0], params, speculation)
        stats.append(done.stats)
    assert "without --cross-vocabulary it drafts as well" in caplog.text
    if method == "tokens" or params.greedy:
        assert stats[0].rejected == stats[1].rejected == 0
        assert stats[0].rounds == stats[1].rounds


def test_seeded_drafts_are_drawn_with_the_noise_of_the_targets_ids() -> None:
    """The target's own distribution under other ids: all drafts are what the target draws."""
    target, order = toy((b"a", b"b", b"c", b"d")), [2, 0, 3, 1]
    rows = {
        tuple(order.index(token) for token in ending): np.exp(row)[order].tolist()
        for ending, row in target._logits.items()
    }
    model = speaking(Toy(0, table=rows), [b"abcd"[t : t + 1] for t in order])
    engine = Engine(target, CrossVocabularyDrafter(model, target, "tokens"))
    stats = engine.generate([0], replace(SEEDED, max_tokens=50)).stats
    assert stats.rejected == 0
    assert stats.accepted >= 38


def test_text_finds_tokens_the_intersection_lacks() -> None:
    """The target says ab and c, the draft model spells a, b, c: every draft is right."""
    target = speaking(Toy(0, table={(): [0, 1.0], (0,): [0, 1.0], (1,): [1.0, 0]}), (b"ab", b"c"))
    model = copies(b"abc", (b"a", b"b", b"c"))
    params, four = SamplingParams(max_tokens=40), Speculation(draft_length=4)
    found = {}
    for method in CROSS_VOCABULARY:
        engine = Engine(target, CrossVocabularyDrafter(model, target, method))
        found[method] = engine.generate([0, 1], params, four).stats
    assert found["text"].rejected == 0
    assert found["text"].acceptance_length > 2
    assert found["tokens"].accepted < found["text"].accepted
    assert found["auto"].accepted > found["tokens"].accepted


def test_auto_keeps_what_earns_more_and_tries_again() -> None:
    choice = Choice()
    taken = []
    for round_ in range(400):
        taken.append(choice.next())
        better = "text" if round_ < 200 else "tokens"
        choice.learn(taken[-1], 3 if taken[-1] == better else 1)
    assert {taken[0], taken[1]} == {"tokens", "text"}
    assert taken[20:200].count("text") > 170
    assert taken[300:].count("tokens") > 90
    assert str(choice).startswith("tokens 2.9")


def test_a_batch_of_sequences_and_turns() -> None:
    target, model = toy(TARGET, 1, sequences=3), toy(DRAFT, 2, sequences=3)
    engine = Engine(target, CrossVocabularyDrafter(model, target), prefill_chunk=3)
    for turn in range(3):
        prompts = [[i, 0, 1] * (1 + i + turn) for i in range(4)]
        requests = [engine.submit(prompt, SEEDED) for prompt in prompts]
        drain(engine)
        for request, prompt in zip(requests, prompts, strict=True):
            assert agrees(engine.completion(request), target, prompt, SEEDED)


@pytest.mark.parametrize("method", CROSS_VOCABULARY)
@pytest.mark.parametrize("context", range(3, 14))
def test_no_draft_model_is_run_past_its_context(method: str, context: int) -> None:
    target = toy(TARGET)
    engine = Engine(target, CrossVocabularyDrafter(toy(DRAFT, 2, context=context), target, method))
    for n in range(1, 12):
        assert agrees(engine.generate([2] * n, SEEDED), target, [2] * n, SEEDED)


class TorchToy(Toy):
    """A model of another library."""

    def forward(self, chunks: Sequence[Chunk]) -> list[torch.Tensor]:
        return [torch.from_numpy(rows) for rows in super().forward(chunks)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", CROSS_VOCABULARY)
@pytest.mark.parametrize("kinds", [(Toy, TorchToy), (TorchToy, Toy), (TorchToy, TorchToy)])
def test_models_of_two_libraries(method: str, rule: str, kinds: tuple[type, type]) -> None:
    target, model = toy(TARGET, kind=kinds[0]), toy(DRAFT, 2, kind=kinds[1])
    engine = Engine(target, CrossVocabularyDrafter(model, target, method))
    done = [engine.generate([0, 1], FRESH, Speculation(rule=rule)).stats for _ in range(9)]
    assert sum(stats.drafted for stats in done) > 90
    assert sum(stats.accepted for stats in done) > 0
    again = toy(TARGET)
    assert agrees(engine.generate([0, 1], SEEDED), again, [0, 1], SEEDED)


def test_what_is_refused() -> None:
    target = toy(TARGET)
    with pytest.raises(PairError, match="or add --cross-vocabulary"):
        ModelDrafter(toy(DRAFT), target)
    with pytest.raises(PairError, match="cannot draft for itself"):
        CrossVocabularyDrafter(target, target)
    with pytest.raises(PairError, match="its state is recurrent"):
        CrossVocabularyDrafter(NoRollback(2), target)
    with pytest.raises(ParameterError, match="one of auto, tokens, text, not 'both'"):
        CrossVocabularyDrafter(toy(DRAFT), target, "both")
    for spec in ("none", "lookup", "quantize:Q4_0"):
        with pytest.raises(ParameterError, match="needs a draft model"):
            load_drafter(spec, target, cross_vocabulary="auto")
    with pytest.raises(ParameterError, match="given by its spec"):
        Engine(target, cross_vocabulary="auto")


@pytest.mark.parametrize(
    "option", [[f"--cross-vocabulary={m}"] for m in CROSS_VOCABULARY] + [["--cross-vocabulary"]]
)
def test_on_the_command_line(
    option: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces = {"target": TARGET, "draft": DRAFT}
    monkeypatch.setitem(models.LOADERS, "toy", lambda name, *_: toy(pieces[name]))
    sampled = ["--temperature", "1", "--seed", "4", "--max-tokens", "30", "--json"]
    texts = []
    for draft in ([], ["--draft", "toy:draft", *option]):
        assert main(["generate", "--target", "toy:target", *draft, *sampled, "abc"]) == 0
        texts.append(json.loads(capsys.readouterr().out))
    assert texts[0]["text"] == texts[1]["text"]
    assert texts[1]["stats"]["drafted"] > 0


def test_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.LOADERS, "toy", lambda *_: toy(DRAFT))
    target = toy(TARGET)
    with pytest.raises(PairError):
        load_drafter("toy:x", target)
    for spec in ("toy:x", "lookup,toy:x"):
        engine = Engine(target, spec, cross_vocabulary="tokens")
        assert agrees(engine.generate([0, 1], SEEDED), target, [0, 1], SEEDED)
        engine.close()
