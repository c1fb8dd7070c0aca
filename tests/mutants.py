"""Tests the proof itself: wrong rules, noises and drafters, each of which it must catch.

Every mutant is a small change to the real code, of a kind that real engines have shipped. Run
``python tests/mutants.py`` for a table; it fails where a mutant survives. Total variation is
between the law of the whole answer (or of its first token) and the target's own: a first token
that is exactly right proves little.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import takewhile
from typing import Any
from unittest.mock import patch

import numpy as np

from draftproof import Draft, DraftRequest, SamplingParams, Verdict, rounds, rules
from draftproof.drafters.model import ModelDrafter
from draftproof.models import Chunk
from draftproof.noise import At, Noise, Purpose
from exact import Case, Change, Weights, drawn_from, leaves
from laws import (
    dishonest_rows,
    expected_accepted,
    expected_law,
    first_round,
    law,
    mean,
    total_variation,
)
from tables import BINARY, BINARY_DRAFT, QUATERNARY, QUATERNARY_DRAFT, TERNARY, TERNARY_DRAFT


def _case(
    target: Weights, draft: Weights, rule: str, first: int = 1, tokens: int = 3, top_k: int = 0
) -> Case:
    """Two drafts per round; every answer but a fully accepted one takes several rounds."""
    params = SamplingParams(temperature=1.0, top_k=top_k, max_tokens=tokens)
    return Case(
        target=target,
        drafter=drawn_from(draft),
        rule=rule,
        requests=(((first,), params),),
    )


CASES = [
    (_case(TERNARY, TERNARY_DRAFT, "token"), TERNARY_DRAFT),
    (_case(TERNARY, TERNARY_DRAFT, "block"), TERNARY_DRAFT),
    (_case(QUATERNARY, QUATERNARY_DRAFT, "block", first=0, top_k=3), QUATERNARY_DRAFT),
    (_case(BINARY, BINARY_DRAFT, "match"), BINARY_DRAFT),
]
ITSELF = [replace(_case(BINARY, BINARY, r, tokens=4), draft_length=1) for r in ("token", "block")]


@dataclass(frozen=True)
class Findings:
    """What the proof sees."""

    joint: Fraction  # largest total variation of the law of a whole answer
    first: Fraction  # the same of its first token
    caught: tuple[str, ...]  # the checks that fail


def examine(change: Change = nullcontext) -> Findings:
    """Run all checks with ``change`` made to Draftproof."""
    joint, first, slow, shared = [Fraction(0)], [Fraction(0)], False, False
    for case, draft in CASES:
        found, expected = leaves(case, change), expected_law(case)
        heads = law(found, lambda leaf: leaf.answers[0][:1])
        joint.append(total_variation(law(found, lambda leaf: leaf.answers), expected))
        first.append(total_variation(heads, _heads(expected)))
        emitted = mean(found, lambda leaf: len(first_round(leaf).tokens))
        slow |= emitted != 1 + expected_accepted(case, draft)
        shared |= any(leaf.reused for leaf in found)
    checks = {
        "law": any(joint),
        "tokens per round": slow,
        "shared coins": shared,
        "rows of drafts": any(dishonest_rows(case, change) for case, _ in CASES),
        "draft = target": any(_rejects(case, change) for case in ITSELF),
    }
    return Findings(max(joint), max(first), tuple(name for name, bad in checks.items() if bad))


def _heads(answers: dict[Any, Fraction]) -> dict[Any, Fraction]:
    heads: dict[Any, Fraction] = {}
    for (answer,), chance in answers.items():
        heads[answer[:1]] = heads.get(answer[:1], Fraction(0)) + chance
    return heads


def _rejects(case: Case, change: Change) -> bool:
    """Whether a draft of the target itself is ever rejected, in any round."""
    steps = (step for leaf in leaves(case, change) for step in leaf.steps)
    return any(step.accepted < len(step.drafted) for step in steps)


# The mutants. Each maker below returns a change: a function that makes a context manager.


def residual(plan: rules.Plan, accepted: int, row: int) -> Any:
    """max(scale p - q, 0), as it is right for row = accepted."""
    return np.maximum(plan.scales[accepted] * plan.p[accepted] - plan.q[row], 0)


def correction(weights: Callable[[rules.Plan, int], Any]) -> Change:
    """Another distribution for the token after a rejection."""
    original = rules.Plan.weights

    def mutant(plan: rules.Plan, accepted: int) -> Any:
        bonus = accepted == len(plan.scales)
        return original(plan, accepted) if bonus else weights(plan, accepted)

    return lambda: patch.object(rules.Plan, "weights", mutant)


def softmax_of_residual(plan: rules.Plan, accepted: int) -> Any:
    powers = [
        Fraction(math.exp(x)).limit_denominator(99) for x in residual(plan, accepted, accepted)
    ]
    return np.array(powers, dtype=object)


def previous_row(plan: rules.Plan, accepted: int) -> Any:
    weights = residual(plan, accepted, max(0, accepted - 1))
    return weights if weights.any() else plan.p[accepted]


def planned(name: str, alter: Callable[[rules.Plan], rules.Plan]) -> Change:
    """A rule that follows another plan."""
    original = getattr(rules, name)
    return lambda: patch.object(rules, name, lambda p, draft: alter(original(p, draft)))


def bonus_under(**options: Any) -> Change:
    """The row behind the last draft with other sampling options."""

    @contextmanager
    def change() -> Iterator[None]:
        original = rounds.distribution

        def mutant(logits: Any, params: SamplingParams) -> Any:
            p = original(logits, params)
            if len(p) > 1:
                p[-1:] = original(logits[-1:], replace(params, **options))
            return p

        with patch.object(rounds, "distribution", mutant):
            yield

    return change


def judged(name: str, judge: Callable[[Any, Draft, Noise, int], Verdict]) -> Change:
    """Another rule under the name."""
    return lambda: patch.dict(rules.RULES, {name: judge})


def fresh_redraw(p: Any, draft: Draft, noise: Noise, start: int) -> Verdict:
    verdict = rules.match(p, draft, noise, start)
    if verdict.accepted == len(draft.tokens):
        return verdict
    at = At(start, start + verdict.accepted, Purpose.ACCEPT)  # a coin that match leaves unused
    return Verdict(verdict.accepted, noise.draw(p[verdict.accepted], at))


def up_to_first_failure(p: Any, draft: Draft, noise: Noise, start: int) -> Verdict:
    plan = rules.block_plan(p, draft)
    coins = (rules._coin(plan, i, noise, start) for i in range(len(draft.tokens)))
    return rules._add(plan, sum(takewhile(bool, coins)), noise, start)


def no_bonus(p: Any, draft: Draft, noise: Noise, start: int) -> Verdict:
    verdict = rules.token(p, draft, noise, start)
    if verdict.accepted < len(draft.tokens) or not draft.tokens:
        return verdict
    return Verdict(verdict.accepted - 1, draft.tokens[-1])


def one_uniform(p: Any, draft: Draft, noise: Noise, start: int) -> Verdict:
    plan = rules.token_plan(p, draft)
    at = At(start, start, Purpose.ACCEPT)
    pairs = zip(plan.numerators, plan.denominators, strict=True)
    coins = (noise.below(numerator, denominator, at) for numerator, denominator in pairs)
    return rules._add(plan, sum(takewhile(bool, coins)), noise, start)


def noise_of_draft(plan: rules.Plan, accepted: int, noise: Noise, start: int) -> Verdict:
    at = At(start, start + accepted, Purpose.DRAFT)
    return Verdict(accepted, noise.draw(plan.weights(accepted), at))


def drafted(mutant: Callable[[ModelDrafter, list[DraftRequest]], list[Draft]]) -> Change:
    """Another way to draft."""
    return lambda: patch.object(ModelDrafter, "propose", mutant)


propose = ModelDrafter.propose


class _Skewed:
    """Draws from something else than what it is given."""

    def __init__(self, noise: Noise, skew: Callable[[Any], Any]) -> None:
        self._noise, self._skew = noise, skew

    def draw(self, weights: Any, at: At) -> int:
        return self._noise.draw(self._skew(weights), at)


def drafts_from(skew: Callable[[Any], Any]) -> Change:
    """Tokens drawn from ``skew(row)``, rows reported as they were."""

    def mutant(drafter: ModelDrafter, requests: list[DraftRequest]) -> list[Draft]:
        skewed = [request._replace(noise=_Skewed(request.noise, skew)) for request in requests]
        return propose(drafter, skewed)

    return drafted(mutant)


def most_probable(row: Any, count: int) -> Any:
    best = sorted(range(len(row)), key=lambda token: -row[token])[:count]
    return row * np.isin(np.arange(len(row)), best)


def unsure_dropped(drafter: ModelDrafter, requests: list[DraftRequest]) -> list[Draft]:
    def cut(draft: Draft) -> Draft:
        sure = (row[x] > Fraction(1, 3) for row, x in zip(draft.rows, draft.tokens, strict=True))
        kept = sum(takewhile(bool, sure))
        return Draft(draft.tokens[:kept], draft.rows[:kept] if kept else None)

    return [cut(draft) if draft.tokens else draft for draft in propose(drafter, requests)]


def one_behind(drafter: ModelDrafter, requests: list[DraftRequest]) -> list[Draft]:
    """Leaves the last draft out, as if drafting further had read it."""
    forward = drafter.model.forward

    def skipping(chunks: list[Chunk]) -> list[Any]:
        return forward(
            [c._replace(tokens=c.tokens[-1:]) if len(c.tokens) == 2 else c for c in chunks]
        )

    with patch.object(drafter.model, "forward", skipping):
        return propose(drafter, requests)


MUTANTS: dict[int, tuple[str, Change]] = {
    1: ("after a rejection draw from p", correction(lambda plan, i: plan.p[i])),
    2: ("softmax of the residual", correction(softmax_of_residual)),
    3: ("argmax drafts with softmax q", drafts_from(lambda row: most_probable(row, 1))),
    4: ("drafts at another temperature than q", drafts_from(lambda row: row**2)),
    5: ("drafts from the top 2 with the whole q", drafts_from(lambda row: most_probable(row, 2))),
    6: ("match, then a fresh redraw", judged("match", fresh_redraw)),
    7: (
        "leniency 0.8",
        planned(
            "token_plan",
            lambda plan: replace(plan, numerators=[n * 5 / 4 for n in plan.numerators]),
        ),
    ),
    8: ("bonus at another temperature", bonus_under(temperature=0.5)),
    9: ("bonus without top-k", bonus_under(top_k=0)),
    10: ("residual with the previous row of q", correction(previous_row)),
    11: ("one uniform for all positions", judged("token", one_uniform)),
    12: ("unsure token dropped after its draw", drafted(unsure_dropped)),
    13: ("block: stop at the first failure", judged("block", up_to_first_failure)),
    14: (
        "block: residual of the token rule",
        planned("block_plan", lambda plan: replace(plan, scales=[1] * len(plan.scales))),
    ),
    15: ("no bonus", judged("token", no_bonus)),
    16: ("draft cache one token behind", drafted(one_behind)),
    17: ("the draft's noise for the residual", lambda: patch.object(rules, "_add", noise_of_draft)),
    18: (
        "accept with p(x) alone",
        planned("token_plan", lambda plan: replace(plan, denominators=[1] * len(plan.scales))),
    ),
}


def main() -> int:
    """Print the table; 1 where a mutant survives or the code as it is fails."""
    print(f"{'':>2}  {'mutant':38}  {'TV answer':>9}  {'TV first':>8}  caught by")
    survivors = 0
    for number, (name, change) in {0: ("none: the code as it is", nullcontext), **MUTANTS}.items():
        findings = examine(change)
        survivors += bool(findings.caught) != bool(number)
        verdict = ", ".join(findings.caught) or ("SURVIVES" if number else "-")
        joint, first = float(findings.joint), float(findings.first)
        print(f"{number:>2}  {name:38}  {joint:9.5f}  {first:8.5f}  {verdict}", flush=True)
    return min(survivors, 1)


if __name__ == "__main__":
    sys.exit(main())
