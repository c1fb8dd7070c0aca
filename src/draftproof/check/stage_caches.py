"""Stage 6: do the caches hold the committed text, no more and no less, also after rejections?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import log

import numpy as np

from draftproof.check.clock import Clock, Extent
from draftproof.check.findings import ALPHA, Fault, Stage
from draftproof.check.lab import Lab, Round, fault
from draftproof.check.near_ties import (
    LARGEST_NOISE,
    Judge,
    Tie,
    all_rounding,
    distance,
    read,
    rounding,
)
from draftproof.drafters.model import ModelDrafter
from draftproof.errors import DraftproofError
from draftproof.models import Model
from draftproof.params import SamplingParams
from draftproof.sampling import distribution
from draftproof.types import Speculation

REREAD = 8  # rounds whose logits are computed again

Twin = Callable[[], Model]
"""Loads the target a second time."""


@dataclass(slots=True)
class _Count:
    """What a draft of the target's own did."""

    rounds: int = 0
    drafted: int = 0
    emitted: int = 0
    refused: int = 0
    allowed: float = 0.0  # refusals that the difference of p and q explains, in the mean
    ties: list[Tie] = field(default_factory=list)
    widest: float = 0.0


def check_caches(
    lab: Lab, clock: Clock, extent: Extent, seen: Sequence[Round], twin: Twin | None
) -> Stage:
    """Logits of rolled-back caches against fresh ones; the target drafting for itself."""
    stage = Stage(name="caches")
    reread, off, noise = _reread(lab, clock, stage, seen)
    stage.numbers = {
        "rounds_reread": reread,
        "largest_logit_change": off if reread else None,
        "rounding": noise if reread else None,
    }
    stage.checked = f"{reread} rounds read again from empty caches"
    stage.detectable = f"a logit that changes by more than rounding does ({noise:.2g})"
    if twin is None:
        stage.checked += "; the target cannot be loaded a second time to draft for itself"
        return stage
    count = _itself(lab, clock, extent, stage, twin)
    if count is not None:
        _summarise(stage, count)
    return stage


def _reread(
    lab: Lab, clock: Clock, stage: Stage, seen: Sequence[Round]
) -> tuple[int, float, float]:
    """Rounds that follow others: their caches were rolled back."""
    later = [one for one in seen if len(one.context) > len(one.prompt)] or list(seen)
    changes: list[tuple[Round, float]] = []
    noise = 0.0
    for one in later[:: max(1, len(later) // REREAD)][:REREAD]:
        if changes and not clock.left(0.4):
            break
        tokens, width = [*one.context, *one.draft.tokens], len(one.draft.tokens) + 1
        fresh = read(lab.target, tokens, len(one.prompt), width)[-width:]
        changes.append((one, distance(fresh, one.logits)))
        noise = max(noise, rounding(lab.target, tokens, len(one.prompt), width))
        if changes[-1][1] > 3 * noise:
            noise = max(noise, all_rounding(lab.target, tokens, len(one.prompt), width))
    bound = 3 * min(noise, LARGEST_NOISE)
    for one, change in changes:
        if change > bound:
            what = (
                f"the target's logits change by {change:.2g} when the text is read again from an "
                f"empty cache (rounding: {noise:.2g})"
            )
            stage.faults.append(fault(lab, one, what))
    return len(changes), max((change for _, change in changes), default=0.0), noise


def _itself(lab: Lab, clock: Clock, extent: Extent, stage: Stage, twin: Twin) -> _Count | None:
    """Let a second instance of the target draft for it."""
    try:
        model = twin()
        drafter = ModelDrafter(model, lab.target)
    except DraftproofError as error:
        stage.checked += f"; the target does not draft for itself ({error})"
        return None
    count = _Count()
    try:
        for params, speculation, prompts in _ways(lab, extent):
            refusals = []
            for one in lab.observe(prompts, params, speculation, drafter):
                _count(one, params, count)
                if one.draft.rows is None and one.step.evaluated > one.step.accepted:
                    refusals.append(one)
                if count.rounds > 3 and not clock.left():
                    break
            for one in refusals:
                _greedy_refusal(lab, stage, one, params, count)
    finally:
        drafter.close()
    _too_many(lab, stage, count)
    return count


def _ways(
    lab: Lab, extent: Extent
) -> Iterator[tuple[SamplingParams, Speculation, Sequence[list[int]]]]:
    """Sampled by the rules that read rows, without filters, whose edges rounding would cross."""
    prompts = lab.prompts[: max(2, extent.prompts // 3)]
    for rule in ("token", "block") if not lab.params.greedy else ():
        params = SamplingParams(temperature=lab.params.temperature, max_tokens=extent.tokens)
        yield params, replace(lab.speculation, rule=rule), prompts
    yield SamplingParams(max_tokens=extent.tokens), replace(lab.speculation, rule=None), prompts


def _count(one: Round, params: SamplingParams, count: _Count) -> None:
    count.rounds += 1
    count.drafted += len(one.draft.tokens)
    count.emitted += len(one.step.tokens)
    count.refused += one.step.evaluated > one.step.accepted
    if one.draft.rows is None:
        return
    p = distribution(np.array(one.logits), params)
    judged = zip(p, one.draft.rows[: one.step.evaluated], strict=False)
    apart = [float(np.abs(a.astype(np.float64) - b).sum() / 2) for a, b in judged]
    count.allowed += sum(apart)
    count.widest = max([count.widest, *apart])


def _greedy_refusal(
    lab: Lab, stage: Stage, one: Round, params: SamplingParams, count: _Count
) -> None:
    """A refused draft of the target itself must be a near tie."""
    place = one.step.accepted
    judge = Judge(lab, one.context, one.step.tokens, params, len(one.draft.tokens) + 1)
    tie = judge.tie(place, one.step.tokens[place], one.draft.tokens[place])
    if tie.near:
        count.ties.append(tie)
        count.allowed += 1
    else:
        what = f"the target refuses its own greedy draft: a gap of {tie.gap:.2g}, no near tie"
        stage.faults.append(fault(lab, one, what, place))


def _too_many(lab: Lab, stage: Stage, count: _Count) -> None:
    """Whether more was refused than the difference of p and q explains.

    Chernoff's bound for a sum of independent refusals: P(at least r) <= exp(r - m - r log(r / m)).
    """
    refused, mean = count.refused, count.allowed
    if refused <= mean or stage.faults:
        return
    exponent = refused - mean - refused * log(refused / max(mean, 1e-9))
    if exponent < log(ALPHA):
        what = (
            f"the target as its own draft model is refused {refused} times in {count.rounds} "
            f"rounds; rounding explains {mean:.2g}"
        )
        prompt = tuple(lab.prompts[0])
        stage.faults.append(Fault(what=what, prompt=prompt, text=lab.text(prompt)))


def _summarise(stage: Stage, count: _Count) -> None:
    rounds = max(1, count.rounds)
    stage.numbers |= {
        "itself_rounds": count.rounds,
        "itself_drafted": count.drafted,
        "itself_refused": count.refused,
        "itself_refused_by_rounding": count.allowed,
        "itself_tokens_per_round": count.emitted / rounds,
        "itself_largest_variation": count.widest,
        "near_ties": [tie.to_json() for tie in count.ties],
    }
    stage.data["ties"] = count.ties
    stage.checked += (
        f"; the target drafting for itself, {count.drafted} drafts in {count.rounds} rounds: "
        f"{count.refused} refused ({count.allowed:.2g} by rounding), "
        f"{count.emitted / rounds:.2f} tokens per round"
    )
    stage.detectable += "; a draft of its own that it refuses"
