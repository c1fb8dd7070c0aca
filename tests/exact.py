"""Enumerates the real engine: every draft, every coin, every draw, in exact fractions.

An ``ExactTable`` hands out probabilities as fractions where a model hands out logits,
``distribution`` applies the sampling options to them by their definitions, and ``ScriptedNoise``
branches where a coin would fall. ``leaves`` runs the engine once for every way its coins can fall.
What must come out is in ``laws.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import accumulate, pairwise
from typing import Any
from unittest.mock import patch

import numpy as np

import draftproof.drafters.model
import draftproof.rounds
import draftproof.sequence
from draftproof import (
    Draft,
    Drafter,
    DraftRequest,
    Engine,
    ModelError,
    ModelOptions,
    SamplingParams,
    Speculation,
    Step,
)
from draftproof.control.turn import LONGEST
from draftproof.drafters.model import ModelDrafter
from draftproof.models.table import TableModel
from draftproof.noise import At, Purpose

Weights = Mapping[tuple[int, ...], Sequence[int]]
Tokens = tuple[int, ...]
Change = Callable[[], AbstractContextManager[Any]]

SAMPLED = SamplingParams(temperature=1.0, max_tokens=4)


class ExactTable(TableModel):
    """A table of whole weights whose "logits" are fractions: the probabilities themselves."""

    def _row(self, weights: Sequence[int]) -> np.ndarray:
        row = np.empty(len(weights), dtype=object)
        row[:] = normalised(weights)
        return row


def normalised(weights: Sequence[Any]) -> tuple[Fraction, ...]:
    total = sum(weights)
    return tuple(Fraction(weight) / total for weight in weights)


def lookup(table: Weights, tokens: Sequence[int]) -> tuple[Fraction, ...]:
    """The row of the longest ending that is in the table."""
    endings = (tuple(tokens[i:]) for i in range(len(tokens) + 1))
    return normalised(next(table[ending] for ending in endings if ending in table))


def distribution(rows: np.ndarray, params: SamplingParams) -> np.ndarray:
    """What ``sampling.distribution`` is for logits, for rows of probabilities [n, V]."""
    rows = np.where(rows == -np.inf, Fraction(0), rows)  # excluded tokens
    if not rows.any(axis=1).all():
        raise ModelError("nothing is left of a row")
    return np.array([filtered(tuple(row), params) for row in rows], dtype=object)


@cache
def filtered(row: tuple[Fraction, ...], params: SamplingParams) -> tuple[Fraction, ...]:
    """A row of probabilities under the sampling options, each by its definition."""
    if params.greedy:
        return tuple(Fraction(i == row.index(max(row))) for i in range(len(row)))
    exponent = 1 / Fraction(params.temperature)
    assert exponent.denominator == 1, "only whole powers of a fraction are fractions"
    row = tuple(x ** int(exponent) for x in row)
    if params.top_k:
        least = sorted(row, reverse=True)[: params.top_k][-1]
        row = tuple(x * (x >= least) for x in row)
    above = [sum(y for y in row if y > x) for x in row]  # mass of the more probable tokens
    aim = Fraction(params.top_p) * sum(row)
    least = Fraction(params.min_p) * max(row)
    return normalised([x * (a < aim and x >= least) for x, a in zip(row, above, strict=True)])


class Script:
    """The paths through the tree of all outcomes."""

    def __init__(self) -> None:
        self._path: list[tuple[int, int]] = []  # the choice, of how many
        self.begin()

    def begin(self) -> None:
        self._depth = 0
        self.probability = Fraction(1)
        self.reused: list[At] = []

    def choose(self, chances: Sequence[Fraction]) -> int:
        """The outcome on this path, among those that are possible."""
        possible = [i for i, chance in enumerate(chances) if chance]
        if len(possible) == 1:
            return possible[0]
        if self._depth == len(self._path):
            self._path.append((0, len(possible)))
        outcome = possible[self._path[self._depth][0]]
        self._depth += 1
        self.probability *= chances[outcome]
        return outcome

    def paths(self) -> Iterator[None]:
        """All paths, depth first; whoever iterates runs the same thing every time."""
        more = True
        while more:
            self.begin()
            yield
            assert self._depth == len(self._path), "the run did not repeat itself"
            more = self._advance()

    def _advance(self) -> bool:
        while self._path:
            choice, count = self._path.pop()
            if choice + 1 < count:
                self._path.append((choice + 1, count))
                return True
        return False


class ScriptedNoise:
    """The coins of one request, all of them: a uniform number is an interval, cut where it counts.

    A key that is asked again continues with the interval that is left, as the same uniform number
    would. So coins that are shared by mistake are enumerated truly; and they are written down.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._intervals: dict[At, tuple[Fraction, Fraction]] = {}

    def below(self, numerator: Any, denominator: Any, at: At) -> bool:
        return (
            self._cut([min(Fraction(1), Fraction(numerator) / denominator), Fraction(1)], at) == 0
        )

    def draw(self, weights: np.ndarray, at: At) -> int:
        return self._cut(list(accumulate(normalised(weights))), at)

    def _cut(self, edges: list[Fraction], at: At) -> int:
        """Which of the pieces that end at ``edges`` the uniform number falls into."""
        if at in self._intervals:
            self._script.reused.append(at)
        low, high = self._intervals.get(at, (Fraction(0), Fraction(1)))
        pieces = [(max(low, a), min(high, b)) for a, b in pairwise([Fraction(0), *edges])]
        chances = [max(Fraction(0), b - a) / (high - low) for a, b in pieces]
        outcome = self._script.choose(chances)
        self._intervals[at] = pieces[outcome]
        return outcome


class ChainDrafter:
    """Draws from a table, without a cache. It stops where ``stop(drafted, next row)`` says so."""

    name = "chain"

    def __init__(
        self, table: Weights, stop: Callable[[list[int], tuple[Fraction, ...]], bool] | None = None
    ) -> None:
        self._table = table
        self._stop = stop or (lambda drafted, row: False)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: DraftRequest) -> Draft:
        start = len(request.tokens)
        drafted: list[int] = []
        rows: list[tuple[Fraction, ...]] = []
        while len(drafted) < request.length and not request.end_tokens & set(drafted):
            row = filtered(lookup(self._table, [*request.tokens, *drafted]), request.params)
            if self._stop(drafted, row):
                break
            at = At(start, start + len(drafted), Purpose.DRAFT)
            drafted.append(request.noise.draw(np.array(row, dtype=object), at))
            rows.append(row)
        return Draft(tuple(drafted), np.array(rows, dtype=object) if rows else None)

    def close(self) -> None: ...


def drawn_from(table: Weights, context_length: int | None = None) -> Callable[..., Drafter]:
    """What makes the drafter that runs a draft model with this table."""

    def make(target: TableModel) -> Drafter:
        options = ModelOptions(
            max_sequences=target.capabilities.max_sequences, context_length=context_length
        )
        return ModelDrafter(ExactTable(table, "draft", options=options), target)

    return make


@dataclass(frozen=True, kw_only=True)
class Case:
    """A set-up to enumerate.

    Attributes:
        target: the target's weights.
        drafter: makes the drafter, given the target.
        rule: the rule that judges.
        draft_length: k; None follows the measurements.
        requests: prompt and options of each; all run at once.
        end: the end token, if any.
        prefill_chunk: as in ``Engine``.
        next_prompt: makes another prompt for the same engine from the first one and its answer.
    """

    target: Weights
    drafter: Callable[[TableModel], Drafter]
    rule: Any = "block"
    draft_length: int | None = 2
    requests: Sequence[tuple[Tokens, SamplingParams]] = (((0,), SAMPLED),)
    end: int | None = None
    prefill_chunk: int = 256
    next_prompt: Callable[[Tokens], Tokens] | None = None

    @property
    def longest(self) -> int:
        """Most tokens of a draft."""
        return LONGEST if self.draft_length is None else self.draft_length


def asks(prompt: Sequence[int], max_tokens: int, **options: Any) -> tuple[Any, ...]:
    """One request."""
    options = {"temperature": 1.0, **options}
    return ((tuple(prompt), SamplingParams(max_tokens=max_tokens, **options)),)


@dataclass(frozen=True)
class Leaf:
    """One way all coins can fall: its probability, each request's answer, what was done."""

    probability: Fraction
    answers: tuple[Tokens, ...]
    steps: tuple[Step, ...]
    reused: tuple[At, ...]

    @property
    def rounds(self) -> int:
        return len(self.steps)


def leaves(case: Case, change: Change = nullcontext) -> list[Leaf]:
    """Every way the coins of a case can fall; ``change`` patches Draftproof meanwhile."""
    script = Script()
    with exact_arithmetic(script, change):
        return [_leaf(case, script) for _ in script.paths()]


@contextmanager
def exact_arithmetic(script: Script, change: Change = nullcontext) -> Iterator[None]:
    """Fractions in place of floats, the script in place of chance, and then ``change``."""
    with (
        patch.object(draftproof.rounds, "distribution", distribution),
        patch.object(draftproof.drafters.model, "distribution", distribution),
        patch.object(draftproof.sequence, "noise_for", lambda seed: ScriptedNoise(script)),
        change(),
    ):
        yield


def _leaf(case: Case, script: Script) -> Leaf:
    options = ModelOptions(max_sequences=len(case.requests))
    target = ExactTable(case.target, end=case.end, options=options)
    speculation = Speculation(draft_length=case.draft_length, rule=case.rule)
    engine = Engine(
        target, case.drafter(target), speculation=speculation, prefill_chunk=case.prefill_chunk
    )
    answers, steps = _run(engine, case.requests)
    if case.next_prompt:
        prompt, params = case.requests[0]
        more = _run(engine, [(case.next_prompt((*prompt, *answers[0])), params)])
        answers, steps = answers + more[0], steps + more[1]
    return Leaf(script.probability, tuple(answers), tuple(steps), tuple(script.reused))


def _run(
    engine: Engine, requests: Sequence[tuple[Tokens, SamplingParams]]
) -> tuple[list[Tokens], list[Step]]:
    ids = [engine.submit(prompt, params) for prompt, params in requests]
    steps: list[Step] = []
    while round_ := engine.step():
        steps += round_
    return [engine.completion(request).token_ids for request in ids], steps
