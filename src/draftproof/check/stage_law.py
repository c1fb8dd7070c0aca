"""Stage 4: do the next tokens together have the target's own law?"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np

from draftproof.check.clock import Clock, Extent
from draftproof.check.evidence import Evidence, certain, power_curve, said, smallest_found
from draftproof.check.findings import Fault, Stage
from draftproof.check.lab import Lab, Round, plain_array
from draftproof.checks import require
from draftproof.models import Chunk
from draftproof.params import SamplingParams
from draftproof.sampling import distribution
from draftproof.types import Array

DEPTH = 3  # tokens, so that a draft of two and the bonus behind it are among them
BRANCHES = 4  # tokens of a row that are told apart

Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cells:
    """A partition of all answers by their beginnings.

    Attributes:
        places: number of a cell by its beginning; -1 at its end stands for all other tokens.
        open: beginnings that are told apart further.
        chances: of the cells by the target, [C]: passes over one token.
        envelope: the larger of these and of those from passes over several, [C].
    """

    places: dict[Path, int]
    open: frozenset[Path]
    chances: Array
    envelope: Array

    def of(self, answer: Sequence[int]) -> int:
        """The cell of an answer of ``DEPTH`` tokens."""
        path: Path = ()
        while path in self.open:
            further = (*path, answer[len(path)])
            path = further if further in self.places or further in self.open else (*path, -1)
        return self.places[path]


def cells(lab: Lab, prompt: Sequence[int], params: SamplingParams, most: int) -> Cells:
    """Tell the most probable beginnings apart, one row of the target after another."""
    model = lab.target
    model.truncate(0, 0)
    if prompt[:-1]:
        model.forward([Chunk(0, prompt[:-1], 0)])
    heap: list[tuple[float, Path, float]] = [(-1.0, (), 1.0)]  # chance, beginning, by wide passes
    closed: dict[Path, tuple[float, float]] = {}
    opened = set()
    while heap and len(heap) + len(closed) + BRANCHES <= most:
        chance, path, wide = heapq.heappop(heap)
        opened.add(path)
        one, several = (_row(lab, prompt, path, params, width) for width in (1, DEPTH))
        rest = [1.0, 1.0]
        for token in np.argsort(-one)[:BRANCHES].tolist():
            if not one[token]:
                continue
            pair = -chance * one[token], wide * several[token]
            rest = [rest[0] - one[token], rest[1] - several[token]]
            if len(path) + 1 < DEPTH:
                heapq.heappush(heap, (-pair[0], (*path, token), pair[1]))
            else:
                closed[*path, token] = pair
        closed[*path, -1] = max(0.0, -chance * rest[0]), max(0.0, wide * rest[1])
    model.truncate(0, 0)
    closed |= {path: (-chance, wide) for chance, path, wide in heap}
    one, several = (np.array(column) for column in zip(*closed.values(), strict=True))
    places = {path: number for number, path in enumerate(closed)}
    # Where rounding shows, it may also let a filter pass what had no chance in either pass.
    least = np.full_like(one, np.abs(one - several).max() / 10)
    envelope = np.maximum.reduce([one, several, least])
    return Cells(places, frozenset(opened), one, envelope)


def _row(lab: Lab, prompt: Sequence[int], path: Path, params: SamplingParams, width: int) -> Array:
    """The target's distribution behind a beginning, [V], read ``width`` tokens at a time."""
    model = lab.target
    model.truncate(0, len(prompt) - 1)
    tokens = [prompt[-1], *path]
    for start in range(0, len(tokens), width):
        (logits,) = model.forward([Chunk(0, tokens[start : start + width], 1)])
    row = lab.rows(prompt, path, plain_array(logits), params)
    return distribution(row, params)[0].astype(np.float64)


def check_law(lab: Lab, clock: Clock, extent: Extent, seen: Sequence[Round]) -> Stage:
    """Answers to a few prompts, counted by their beginnings, against the target's chances.

    The prompts are texts behind which something was drafted, where there are any.
    """
    stage = Stage(name="law")
    params = replace(lab.params, max_tokens=DEPTH, ignore_eos=True)
    found: list[tuple[Path, Evidence]] = []
    drafted = 0
    room = lab.target.capabilities.context_length - DEPTH
    drafted_behind = sorted({one.context for one in seen}, key=len)
    texts = [tuple(text) for text in drafted_behind or lab.prompts if len(text) <= room]
    require(bool(texts), f"no answer of {DEPTH} tokens fits into the context: give a longer one")
    for number, prompt in enumerate(texts[: extent.laws]):
        part = (number + 1) / min(extent.laws, len(texts))
        split = cells(lab, prompt, params, extent.cells)
        evidence = Evidence(split.chances, split.envelope)
        found.append((tuple(prompt), evidence))
        answers = lab.answers(prompt, params, lab.speculation, extent.answers)
        for count, (answer, drafts) in enumerate(answers):
            evidence.add(split.of(answer))
            drafted += drafts
            sure = count % 50 == 49 and certain([each for _, each in found])
            if sure or not clock.left(part):
                break
    _judge(lab, stage, found)
    _summarise(lab, stage, found, drafted, extent)
    return stage


def _judge(lab: Lab, stage: Stage, found: Sequence[tuple[Path, Evidence]]) -> None:
    if not certain([evidence for _, evidence in found]):
        return
    prompt, worst = max(found, key=lambda pair: pair[1].log)
    what = (
        "the next tokens do not have the target's law: evidence 10^"
        f"{worst.log / log(10):.0f} after {int(worst.counts.sum()):,} answers, a total "
        f"variation of about {_variation(worst):.2g}"
    )
    stage.faults.append(
        Fault(what=what, prompt=prompt, text=lab.text(prompt), position=len(prompt))
    )


def _variation(evidence: Evidence) -> float:
    """Between the counts and the chances."""
    shares = evidence.counts / max(1, evidence.counts.sum())
    return float(np.abs(shares - evidence.chances).sum() / 2)


def _summarise(
    lab: Lab,
    stage: Stage,
    found: Sequence[tuple[Path, Evidence]],
    drafted: int,
    extent: Extent,
) -> None:
    every = [evidence for _, evidence in found]
    total = sum(int(evidence.counts.sum()) for evidence in every)
    curve = power_curve(every, lab.seed, extent.runs)
    smallest = smallest_found(curve)
    excess = max(each.slack for each in every)
    stage.numbers = {
        "answers": total,
        "tokens_each": DEPTH,
        "cells": [len(evidence.chances) for evidence in every],
        "drafted_tokens": drafted,
        "log10_evidence": sum(evidence.log for evidence in every) / log(10),
        "detectable_variation": smallest if smallest < 1 else None,
        "rounding_of_the_law": excess,
    }
    stage.data = {
        "curve": curve,
        "laws": [(each.chances.tolist(), each.counts.tolist()) for each in every],
    }
    stage.checked = (
        f"{total:,} answers to {len(every)} prompts by their first {DEPTH} tokens, in "
        f"{sum(len(each.chances) for each in every)} cells"
    )
    stage.checked += "" if drafted else "; nothing was drafted there"
    stage.detectable = f"{said(smallest)} from the target's law (power .99)"
