"""Options that look at the tokens before: the joint law of whole answers, by enumeration.

The real engine with real logits in double precision, every coin enumerated; the law it must have
is said here by the options' definitions, in plain Python and without the engine.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import draftproof.sequence
from draftproof import (
    Draft,
    Drafter,
    DraftRequest,
    Engine,
    ModelOptions,
    SamplingParams,
    Speculation,
)
from draftproof.drafters.model import ModelDrafter
from draftproof.models.table import TableModel
from exact import Script, ScriptedNoise, Weights
from tables import QUATERNARY, QUATERNARY_DRAFT, TERNARY, TERNARY_DRAFT

Tokens = tuple[int, ...]
Law = dict[Tokens, float]
LETTERS = "abcd"


def favour_change(tokens: Sequence[int], logits: np.ndarray) -> np.ndarray:
    """A custom processor: less for the newest token, more for one that depends on the count."""
    changed = logits.copy()
    changed[tokens[-1]] -= 1.5
    changed[len(tokens) % len(changed)] += 1
    return changed


OPTIONS: dict[str, dict[str, Any]] = {
    "bias": {"logit_bias": {0: 0.7, 1: -100, 2: -0.4}},
    "presence": {"presence_penalty": 1.2},
    "frequency": {"frequency_penalty": -0.9},
    "repetition": {"repetition_penalty": 1.7},
    "bad words": {"bad_words": ["ab", "ca"]},
    "minimum": {"min_tokens": 3},
    "custom": {"processors": [favour_change]},
    "typical": {"typical_p": 0.6},
    "regex": {"regex": "(a|b[ac]|c[ab])+"},
    "all": {
        "logit_bias": {1: 0.5},
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.3,
        "bad_words": ["aa"],
        "processors": [favour_change],
        "temperature": 0.7,
        "top_k": 3,
        "min_p": 0.05,
    },
}


def row_after(table: Weights, tokens: Tokens) -> list[float]:
    endings = (tokens[i:] for i in range(len(tokens) + 1))
    weights = next(table[ending] for ending in endings if ending in table)
    return [math.log(w) if w else -math.inf for w in weights]


def says(answer: Tokens, end: int | None) -> str:
    return "".join(LETTERS[token] for token in answer if token != end)


def excluded(params: SamplingParams, answer: Tokens, token: int, end: int | None) -> bool:
    """Whether an option forbids a token behind an answer."""
    if dict(params.logit_bias).get(token) == -100:
        return True
    if token == end and len(answer) < params.min_tokens:
        return True
    text = says((*answer, token), end)
    if any(text.endswith(word) for word in params.bad_words if token != end):
        return True
    if params.regex is None:
        return False
    words = {"a", "ba", "bc", "ca", "cb"}
    sentences = {""}
    for _ in range(len(text) + 1):
        sentences |= {s + w for s in sentences for w in words if len(s + w) <= len(text) + 2}
    if token == end:
        return not text or text not in sentences
    return not any(s.startswith(text) for s in sentences)


def chances(
    table: Weights, params: SamplingParams, prompt: Tokens, answer: Tokens, end: int | None
) -> list[float]:
    """p(next | prompt, answer) under all options, by their definitions."""
    before = (*prompt, *answer)
    logits = row_after(table, before)
    for token, amount in params.logit_bias:
        logits[token] += amount
    for token in range(len(logits)):
        if excluded(params, answer, token, end):
            logits[token] = -math.inf
    for token in set(before):
        scaled = logits[token] * params.repetition_penalty
        logits[token] = scaled if logits[token] <= 0 else logits[token] / params.repetition_penalty
    for token in set(answer):
        logits[token] -= params.presence_penalty + params.frequency_penalty * answer.count(token)
    for processor in params.processors:
        logits = list(processor(before, np.array(logits)))
    return filtered([math.exp(x / params.temperature) for x in logits], params)


def filtered(weights: list[float], params: SamplingParams) -> list[float]:
    if params.top_k:
        edge = sorted(weights)[-min(params.top_k, len(weights))]
        weights = [w * (w >= edge) for w in weights]
    weights = [w * (w >= params.min_p * max(weights)) for w in weights]
    p = [w / sum(weights) for w in weights]
    if params.typical_p == 1:
        return p
    entropy = -sum(x * math.log(x) for x in p if x)
    distances = [abs(-math.log(x) - entropy) if x else math.inf for x in p]
    nearer = [sum(y for y, e in zip(p, distances, strict=True) if e < d - 1e-12) for d in distances]
    kept = [x * (mass < params.typical_p) for x, mass in zip(p, nearer, strict=True)]
    return [x / sum(kept) for x in kept]


def expected(table: Weights, params: SamplingParams, prompt: Tokens, end: int | None) -> Law:
    law: Law = defaultdict(float)

    def grow(answer: Tokens, chance: float) -> None:
        if len(answer) == params.max_tokens or answer[-1:] == (end,):
            law[answer] += chance
            return
        for token, p in enumerate(chances(table, params, prompt, answer, end)):
            if p:
                grow((*answer, token), chance * p)

    grow((), 1.0)
    return law


class Stubborn:
    """Proposes the same tokens always, whatever the options forbid."""

    name = "stubborn"

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft((0, 1, 0)[: request.length]) for request in requests]

    def close(self) -> None: ...


def drawn(table: Weights) -> Callable[[TableModel], Drafter]:
    return lambda target: ModelDrafter(TableModel(table, "draft"), target)


def found(
    table: Weights,
    drafter: Callable[[TableModel], Drafter],
    params: SamplingParams,
    prompt: Tokens,
    end: int | None,
    speculation: Speculation,
) -> Law:
    """The law of the real engine's answers."""
    script = Script()
    law: Law = defaultdict(float)
    with patch.object(draftproof.sequence, "noise_for", lambda seed: ScriptedNoise(script)):
        for _ in script.paths():
            target = TableModel(table, end=end, options=ModelOptions(context_length=32))
            engine = Engine(target, drafter(target), speculation=speculation)
            law[engine.generate(list(prompt), params).token_ids] += float(script.probability)
    return law


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "minimum"])
@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_the_joint_law_is_the_targets_own(rule: Any, name: str) -> None:
    check(TERNARY, drawn(TERNARY_DRAFT), rule, name, None)


@pytest.mark.parametrize("name", OPTIONS)
def test_also_where_answers_end_and_whatever_is_drafted(name: str) -> None:
    check(QUATERNARY, drawn(QUATERNARY_DRAFT), "block", name, 3)
    check(QUATERNARY, lambda target: Stubborn(), None, name, 3)


def check(
    table: Weights,
    drafter: Callable[[TableModel], Drafter],
    rule: Any,
    name: str,
    end: int | None,
) -> None:
    tokens = 3 if rule == "match" else 4  # it has more outcomes to enumerate
    params = SamplingParams(**{"temperature": 1.0, "max_tokens": tokens, **OPTIONS[name]})
    prompt = (0, 1)
    law = found(table, drafter, params, prompt, end, Speculation(draft_length=2, rule=rule))
    wanted = expected(table, params, prompt, end)
    assert law.keys() <= wanted.keys()
    assert max(abs(law.get(answer, 0) - wanted[answer]) for answer in wanted) < 1e-9
    plain = expected(table, SamplingParams(temperature=1.0, max_tokens=tokens), prompt, end)
    assert any(abs(plain.get(a, 0) - wanted.get(a, 0)) > 1e-3 for a in plain.keys() | wanted.keys())


def test_penalties_of_a_round_instead_of_a_token_are_caught() -> None:
    """The proof itself: counting the committed tokens alone changes the law."""
    from draftproof.processors import Penalties

    real = Penalties.__call__
    context = patch.object(Penalties, "__call__", lambda self, row, drafted: real(self, row, ()))
    for wrong in (nullcontext(), context):
        with wrong:
            failed = False
            try:
                check(TERNARY, drawn(TERNARY_DRAFT), "block", "frequency", None)
            except AssertionError:
                failed = True
        assert failed == (wrong is context)
