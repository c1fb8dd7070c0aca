"""What must come out of an enumeration, said without engine or rule; and the comparison.

``prove`` is the whole of it for one case: the joint law of the answers is the target's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from fractions import Fraction
from typing import Any

from draftproof import DraftRequest, SamplingParams, Step
from exact import (
    Case,
    Change,
    ExactTable,
    Leaf,
    Script,
    ScriptedNoise,
    Tokens,
    Weights,
    exact_arithmetic,
    filtered,
    leaves,
    lookup,
    normalised,
)

Law = dict[Any, Fraction]


def prove(case: Case) -> list[Leaf]:
    """The joint law is the target's own, no coin serves twice, and the records add up."""
    found = leaves(case)
    assert law(found, lambda leaf: leaf.answers) == expected_law(case)
    for leaf in found:
        assert not leaf.reused
        emitted = [token for step in leaf.steps for token in step.tokens]
        assert sorted(emitted) == sorted(token for answer in leaf.answers for token in answer)
        for step in leaf.steps:
            assert step.tokens[: step.accepted] == step.drafted[: step.accepted]
            assert step.accepted <= step.evaluated <= len(step.drafted) <= case.longest
    return found


def accepted(found: Sequence[Leaf]) -> Fraction:
    """E[accepted drafts] of the first round."""
    return mean(found, lambda leaf: first_round(leaf).accepted)


def law(found: Sequence[Leaf], of: Callable[[Leaf], Any]) -> Law:
    """The distribution of something that can be read off a leaf."""
    total: Law = defaultdict(Fraction)
    for leaf in found:
        total[of(leaf)] += leaf.probability
    assert sum(total.values()) == 1
    return dict(total)


def mean(found: Sequence[Leaf], of: Callable[[Leaf], int]) -> Fraction:
    """The expectation of a number that can be read off a leaf."""
    return sum((leaf.probability * of(leaf) for leaf in found), Fraction(0))


def first_round(leaf: Leaf) -> Step:
    """The first round that emitted anything."""
    return next(step for step in leaf.steps if step.tokens)


def total_variation(one: Law, other: Law) -> Fraction:
    keys = one.keys() | other.keys()
    return sum((abs(one.get(key, 0) - other.get(key, 0)) for key in keys), Fraction(0)) / 2


def autoregressive_law(
    table: Weights, prompt: Tokens, params: SamplingParams, end: int | None = None
) -> Law:
    """The target's own law of an answer: one token after another."""
    assert params.max_tokens is not None
    total: Law = {}

    def grow(answer: Tokens, chance: Fraction) -> None:
        if len(answer) == params.max_tokens or answer[-1:] == (end,):
            total[answer] = chance
            return
        for token, p in enumerate(filtered(lookup(table, [*prompt, *answer]), params)):
            if p:
                grow((*answer, token), chance * p)

    grow((), Fraction(1))
    return total


def expected_law(case: Case) -> Law:
    """The law of a case's answers: its requests are independent of each other."""
    prompt, params = case.requests[0]
    joint = {(a,): p for a, p in autoregressive_law(case.target, prompt, params, case.end).items()}
    if case.next_prompt:
        return {
            (first, second): p * then
            for (first,), p in joint.items()
            for second, then in autoregressive_law(
                case.target, case.next_prompt((*prompt, *first)), params, case.end
            ).items()
        }
    for prompt, params in case.requests[1:]:
        other = autoregressive_law(case.target, prompt, params, case.end)
        joint = {(*a, b): p * then for a, p in joint.items() for b, then in other.items()}
    return joint


def expected_accepted(case: Case, draft: Weights) -> Fraction:
    """E[accepted drafts] of the first round by the formulas of the papers, drafts from ``draft``.

    A sum over i of the chance that draft i is made and kept: for match prod p(x), for token
    prod min(1, p(x) / q(x)) (Leviathan et al.), for block P_i (Sun et al.), in the mean over q.
    """
    keep = {
        "match": lambda kept, p, q: kept * p,
        "token": lambda kept, p, q: kept * min(1, p / q),
        "block": lambda kept, p, q: min(1, kept * p / q),
    }[case.rule]
    prompt, params = case.requests[0]
    assert params.max_tokens is not None
    length = min(case.draft_length, params.max_tokens - 1)

    def walk(drafted: Tokens, kept: Fraction) -> Fraction:
        if len(drafted) == length or drafted[-1:] == (case.end,):
            return Fraction(0)
        p = filtered(lookup(case.target, [*prompt, *drafted]), params)
        q = filtered(lookup(draft, [*prompt, *drafted]), params)
        total = Fraction(0)
        for x in (x for x in range(len(q)) if q[x]):
            survives = keep(kept, p[x], q[x])
            total += q[x] * (survives + walk((*drafted, x), survives))
        return total

    return walk((), Fraction(1))


def dishonest_rows(case: Case, change: Change = nullcontext) -> list[Tokens]:
    """Beginnings of drafts behind which a token is not drawn from the row that is reported.

    A drafter may stop behind a beginning, but where it goes on the next token has the law of the
    row. One that looks at a token before it drops it does not.
    """
    prompt, params = case.requests[0]
    reported: dict[Tokens, Tokens] = {}
    drawn: dict[Tokens, Law] = defaultdict(lambda: defaultdict(Fraction))
    script = Script()
    with exact_arithmetic(script, change):
        for _ in script.paths():
            target = ExactTable(case.target, end=case.end)
            ends = target.tokenizer.end_tokens
            noise = ScriptedNoise(script)
            request = DraftRequest(0, 0, prompt, case.draft_length, params, noise, ends)
            (draft,) = case.drafter(target).propose([request])
            for i, token in enumerate(draft.tokens):
                reported[draft.tokens[:i]] = tuple(draft.rows[i])
                drawn[draft.tokens[:i]][token] += script.probability
    return [
        beginning
        for beginning, row in reported.items()
        if normalised([drawn[beginning][token] for token in range(len(row))]) != row
    ]
