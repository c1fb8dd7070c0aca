"""Stage 2: is every drafted token drawn from the distribution it is said to come from?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log

import numpy as np

from draftproof.check.clock import Clock, Extent
from draftproof.check.evidence import (
    Evidence,
    certain,
    power_curve,
    said,
    smallest_found,
    transformed,
)
from draftproof.check.findings import Stage
from draftproof.check.lab import Coins, Lab, Round, fault, plain_array
from draftproof.check.stage_rules import TOLERANCE, apart
from draftproof.drafters import DraftRequest
from draftproof.drafters.model import ModelDrafter
from draftproof.noise import Purpose
from draftproof.types import Array

BINS = 10
RECOMPUTED = 8  # rows that are computed again; each takes a few passes over its whole text
LEAST_BOUND = 0.02  # of total variation: it would cost as much acceptance, and no exactness
_owners = itertools.count(-2, -1)  # requests have 0 and more


def check_drafts(lab: Lab, clock: Clock, extent: Extent, seen: Sequence[Round]) -> Stage:
    """What the coins were asked for, the law of the tokens, and the rows computed again.

    Args:
        lab: the pair.
        clock: of the stage.
        extent: how much to do.
        seen: rounds that were looked at already; more are run.
    """
    stage = Stage(name="drafts")
    evidence = Evidence(np.full(BINS, 1 / BINS))
    kept: dict[bool, list[Round]] = {True: [], False: []}
    drawn = [one for one in seen if one.draft.rows is not None]
    whole = False  # whether the last round was accepted whole
    coins = np.random.default_rng(lab.coin())
    for one in itertools.chain(drawn, _rounds(lab, clock, extent, evidence)):
        # Behind a draft that was accepted whole a draft model is most easily a token behind.
        same = kept[whole and len(one.context) > len(one.prompt)]
        same += [one] if len(same) < RECOMPUTED else []
        whole = one.step.accepted == len(one.draft.tokens)
        _asked(lab, stage, one)
        for row, token in zip(one.draft.rows or (), one.draft.tokens, strict=True):
            evidence.add(int(transformed(row, token, coins.random()) * BINS))
        if certain([evidence]):
            what = f"drafts do not follow their rows (evidence 10^{evidence.log / log(10):.0f})"
            stage.faults.append(fault(lab, one, what, 0))
            break
    looked_at = [*kept[True], *kept[False]][:RECOMPUTED]
    if not looked_at:
        stage.skipped = "deterministic drafts: they are said to come from no distribution"
        return stage
    alone = isinstance(lab.drafter, ModelDrafter)  # others choose what speaks by what has been
    apart_by = _recompute(lab, stage, looked_at) if alone else []
    _summarise(stage, evidence, apart_by, lab.seed, extent)
    return stage


def _rounds(lab: Lab, clock: Clock, extent: Extent, evidence: Evidence) -> Iterator[Round]:
    """Rounds whose drafts have rows, until there are drafts enough."""
    params = replace(lab.params, max_tokens=extent.tokens)
    fruitless = 0
    while clock.left(0.7) and evidence.counts.sum() < extent.drafts and fruitless < 2:
        fruitless += 1
        for one in lab.observe(lab.prompts[: extent.prompts], params, lab.speculation):
            if one.draft.rows is not None:
                fruitless = 0
                yield one
            if not clock.left(0.7) or evidence.counts.sum() >= extent.drafts:
                return


def _asked(lab: Lab, stage: Stage, one: Round) -> None:
    """Whether the draws of this round are the draft, and their weights its rows.

    A drafter that brings coins of its own asks for none; the test of the draws is left then.
    """
    rows, start = one.draft.rows, len(one.context)
    assert rows is not None
    for draw in one.drawn(Purpose.DRAFT):
        place = draw.at.position - start
        if not 0 <= place < len(rows):
            what = f"token {draw.token} was drawn as a draft and then dropped"
        elif one.draft.tokens[place] != draw.token:
            what = f"token {draw.token} was drawn and {one.draft.tokens[place]} proposed"
        elif apart(rows[place], draw.weights) > TOLERANCE:
            off = apart(rows[place], draw.weights)
            what = f"a draft was drawn from another distribution than its row, off by {off:.2g}"
        else:
            continue
        stage.faults.append(fault(lab, one, what, place))


def _recompute(lab: Lab, stage: Stage, kept: Sequence[Round]) -> list[float]:
    """Rows against fresh passes of the draft model over the same text, in two widths."""
    found = []
    for number, one in enumerate(kept):
        place = number % len(one.draft.tokens)
        tokens = [*one.context, *one.draft.tokens[:place]]
        fresh = [_fresh_row(lab, one.prompt, tokens, width) for width in (len(tokens), 1)]
        if any(row is None for row in fresh):
            continue
        assert one.draft.rows is not None
        row = one.draft.rows[place]
        noise = max(_variation(fresh[0], each) for each in fresh[1:])
        found.append((one, place, min(_variation(row, each) for each in fresh), noise))
    bound = 4 * max((noise for *_, noise in found), default=0.0) + LEAST_BOUND
    for one, place, off, _ in found:
        if off > bound:
            what = (
                f"the draft model read another text than was committed: its row is {off:.2g} of "
                f"total variation from a fresh pass (rounding: {bound:.2g})"
            )
            stage.faults.append(fault(lab, one, what, place))
    return [off for _, _, off, _ in found]


def _fresh_row(lab: Lab, prompt: Sequence[int], tokens: Sequence[int], width: int) -> Array | None:
    """The row behind a text, by a draft model that begins again and reads the answer in pieces."""
    other = [(tokens[0] + 1) % lab.target.capabilities.vocabulary]
    _propose(lab, other, other, 0, next(_owners))
    owner = next(_owners)
    for end in range(len(prompt), len(tokens), width):
        _propose(lab, prompt, tokens[:end], 0, owner)
    return _propose(lab, prompt, tokens, 1, owner)


def _propose(
    lab: Lab, prompt: Sequence[int], tokens: Sequence[int], length: int, owner: int
) -> Array | None:
    made = lab.request(prompt, lab.params)
    made.tokens += tokens[len(prompt) :]
    request = DraftRequest(
        seq=0,
        owner=owner,
        tokens=made.tokens,
        length=length,
        params=lab.params,
        noise=Coins(lab.seed),
        end_tokens=made.end_tokens,
        processors=made.processors,
    )
    (draft,) = lab.drafter.propose([request])
    return plain_array(draft.rows[0]) if draft.rows else None


def _variation(one: Array, other: Array) -> float:
    return float(np.abs(one.astype(np.float64) - other).sum() / 2)


def _summarise(
    stage: Stage, evidence: Evidence, apart_by: list[float], seed: int, extent: Extent
) -> None:
    total = int(evidence.counts.sum())
    curve = power_curve([evidence], seed, extent.runs)
    smallest = smallest_found(curve)
    stage.numbers = {
        "drafted_tokens": total,
        "log10_evidence": evidence.log / log(10),
        "rows_recomputed": len(apart_by),
        "largest_variation_from_fresh": max(apart_by, default=None),
        "detectable_variation": smallest if smallest < 1 else None,
    }
    stage.data = {"bins": evidence.counts.tolist(), "curve": curve}
    again = f", {len(apart_by)} rows computed again" if apart_by else ""
    stage.checked = f"{total:,} drafted tokens: what was drawn from, and where it fell{again}"
    stage.detectable = (
        f"a row that is not the one drawn from, by {TOLERANCE:g}; {said(smallest)} between draws "
        "and rows, in the mean (power .99)"
    )
