"""Stages 3 and 5: is the text with speculation the text without, greedy and with a seed?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from draftproof.check.clock import Clock, Extent
from draftproof.check.findings import Fault, Stage
from draftproof.check.lab import Lab
from draftproof.check.near_ties import Judge, Tie
from draftproof.engine import Engine
from draftproof.params import SamplingParams
from draftproof.stats import Completion
from draftproof.types import Speculation


def check_greedy(lab: Lab, clock: Clock, extent: Extent) -> Stage:
    """Temperature 0."""
    stage = Stage(name="greedy")
    params = SamplingParams(max_tokens=extent.tokens)
    return _compare(lab, clock, extent, stage, lambda number: params)


def check_seeds(lab: Lab, clock: Clock, extent: Extent) -> Stage:
    """The user's sampling options, each prompt with a seed of its own."""
    stage = Stage(name="seeds")
    params = replace(lab.params, max_tokens=extent.tokens)
    return _compare(
        lab, clock, extent, stage, lambda number: replace(params, seed=lab.seed + number)
    )


def _compare(
    lab: Lab,
    clock: Clock,
    extent: Extent,
    stage: Stage,
    options: Callable[[int], SamplingParams],
) -> Stage:
    """Plain decoding against speculation, of the user's draft length and of auto in turns."""
    ways = [replace(lab.speculation, rule=None), Speculation()]
    plain, fast = Engine(lab.target), Engine(lab.target, lab.drafter)
    ties: list[Tie] = []
    noise, texts, tokens, accepted = 0.0, 0, 0, 0
    for number, prompt in enumerate(lab.prompts[: extent.prompts]):
        if texts and not clock.left():
            break
        params = options(number)
        one = plain.generate(prompt, params)
        other = fast.generate(prompt, params, ways[number % 2])
        texts, tokens = texts + 1, tokens + len(one.token_ids)
        accepted += other.stats.accepted
        if (one.token_ids, one.text, one.finish_reason) == (
            *(other.token_ids, other.text, other.finish_reason),
        ):
            continue
        judge = Judge(lab, prompt, one.token_ids, params, lab.longest + 1)
        noise = max(noise, judge.noise)
        _classify(lab, stage, prompt, one, other, judge, ties)
        plain, fast = Engine(lab.target), Engine(lab.target, lab.drafter)
    _summarise(stage, ties, noise, texts, tokens, accepted)
    return stage


def _classify(
    lab: Lab,
    stage: Stage,
    prompt: Sequence[int],
    plain: Completion,
    other: Completion,
    judge: Judge,
    ties: list[Tie],
) -> None:
    """A near tie, or a fault."""
    pairs = enumerate(zip(plain.token_ids, other.token_ids, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), None)
    if place is None:
        ends = f"{plain.finish_reason} after {len(plain.token_ids)} tokens"
        what = f"{ends} without speculation, {other.finish_reason} after {len(other.token_ids)}"
        place = min(len(plain.token_ids), len(other.token_ids))
    else:
        tie = judge.tie(place, plain.token_ids[place], other.token_ids[place])
        if tie.near:
            ties.append(tie)
            return
        what = (
            f"token {tie.other} with speculation, {tie.plain} without; a gap of {tie.gap:.4g}, and "
            f"rounding explains {tie.bound:.4g}"
        )
    stage.faults.append(
        Fault(
            what=what,
            prompt=tuple(prompt),
            text=lab.text(prompt),
            position=len(prompt) + place,
        )
    )


def _summarise(
    stage: Stage, ties: list[Tie], noise: float, texts: int, tokens: int, accepted: int
) -> None:
    stage.numbers = {
        "texts": texts,
        "tokens": tokens,
        "accepted_drafts": accepted,
        "near_ties": [tie.to_json() for tie in ties],
        "rounding": noise if ties or stage.faults else None,
    }
    stage.data = {"ties": ties}
    same = texts - len(ties) - len(stage.faults)
    stage.checked = f"{texts} texts of {tokens:,} tokens, {accepted:,} of them accepted drafts"
    stage.checked += f": {same} equal, {len(ties)} part at a near tie" if ties else ""
    stage.detectable = "any other token in these texts"
    if ties:
        stage.detectable += f", unless rounding of a logit by {noise:.2g} explains it"
