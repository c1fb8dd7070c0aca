"""Whether speculation pays, before anyone deploys: acceptance traces replayed over latencies.

A trace says, for each position of the target's own answer, how long a draft there is and how much
of it survives. A fixed draft length k then fixes every round, and a latency table what each costs:
no model runs for it, and no constant acceptance is assumed. The formula that does assume one,

    tokens per round = 1 + alpha + ... + alpha^k,  speedup = tokens per round / (v + k c),

with v and c in units of a plain target step (Leviathan et al., ICML 2023), stands beside it.
Traces are taken one position at a time; a chain of drafters, which learns from what it said,
drafts a little differently in real rounds. Not here: measuring (``measure.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, NamedTuple

from draftproof.checks import is_int, is_number, require
from draftproof.intervals import Interval, ratio
from draftproof.plan.profiles import Profile

LONGEST = 16
OVERALL = "overall"
NEARLY = 0.99  # of the fastest: a longer draft has to gain more than this to be taken
MARGIN = 1.02  # a smaller speedup is not worth a draft model


class Trace(NamedTuple):
    """How drafts fare at each position of one answer.

    Attributes:
        category: the prompt's.
        offered: tokens of the draft at each position.
        accepted: how many of them agree with the answer.
    """

    category: str
    offered: tuple[int, ...]
    accepted: tuple[int, ...]


class Round(NamedTuple):
    """One round of a replay: drafts verified, drafts evaluated, drafts accepted, tokens emitted."""

    drafted: int
    evaluated: int
    accepted: int
    emitted: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a draft length is expected to give.

    Attributes:
        k: the draft length.
        speedup: over plain decoding; its interval is over prompts.
        acceptance_rate: accepted / evaluated; None where nothing was.
        tokens_per_round: emitted / rounds.
        draft_cost: of k drafts, in plain steps.
        verify_cost: of a pass over k drafts, in plain steps.
        formula: the speedup by the formula, from the mean acceptance rate.
    """

    k: int
    speedup: Interval
    acceptance_rate: float | None
    tokens_per_round: float
    draft_cost: float
    verify_cost: float
    formula: float

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        return {
            "k": self.k,
            "speedup": self.speedup.to_json(),
            "acceptance_rate": self.acceptance_rate,
            "tokens_per_round": self.tokens_per_round,
            "draft_cost": self.draft_cost,
            "verify_cost": self.verify_cost,
            "formula": self.formula,
        }


Estimates = Mapping[str, Sequence[Estimate]]
"""For each category, and for all together, one estimate for k = 0, 1, 2, ..."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer for one drafter.

    Attributes:
        drafter: its spec.
        draft_seconds: a drafted token, by batch size.
        estimates: by batch size.
    """

    drafter: str
    draft_seconds: Mapping[int, float]
    estimates: Mapping[int, Estimates]

    def best(self, sequences: int = 1, category: str = OVERALL) -> Estimate:
        """The shortest draft length within one per cent of the fastest; 0 where none pays."""
        every = self.estimates[sequences][category]
        good = [one for one in every if pays(one)]
        most = max((one.speedup.value for one in good), default=0.0)
        return next((one for one in good if one.speedup.value >= NEARLY * most), every[0])

    def to_json(self) -> dict[str, Any]:
        """All estimates."""
        return {
            "drafter": self.drafter,
            "draft_seconds": {str(size): s for size, s in self.draft_seconds.items()},
            "estimates": {
                str(size): {
                    name: [one.to_json() for one in every] for name, every in groups.items()
                }
                for size, groups in self.estimates.items()
            },
        }


def pays(estimate: Estimate) -> bool:
    """Whether it is faster than plain decoding, by more than a margin and beyond doubt."""
    low = estimate.speedup.low
    return estimate.speedup.value >= MARGIN and (low is None or low > 1)


def tokens_per_round(alpha: float, k: int) -> float:
    """Tokens a target pass gives: 1 + alpha + ... + alpha^k.

    Args:
        alpha: acceptance rate, from 0 to 1.
        k: draft length.

    Raises:
        ParameterError: out of range.
    """
    require(is_number(alpha) and 0 <= alpha <= 1, f"alpha must lie from 0 to 1, not {alpha!r}")
    require(is_int(k) and k >= 0, f"the draft length must be 0 or more, not {k!r}")
    return float(sum(alpha**i for i in range(k + 1)))


def speedup(alpha: float, k: int, draft_cost: float, verify_cost: float) -> float:
    """The formula's speedup over plain decoding.

    Args:
        alpha: acceptance rate, from 0 to 1.
        k: draft length.
        draft_cost: of one drafted token, in plain steps.
        verify_cost: of the pass over k drafts, in plain steps.

    Raises:
        ParameterError: out of range.
    """
    for name, cost in (("draft", draft_cost), ("verify", verify_cost)):
        least = "0 or more" if name == "draft" else "more than 0"
        good = is_number(cost) and (cost > 0 or (cost == 0 and name == "draft"))
        require(good, f"the {name} cost must be {least}, not {cost!r}")
    return tokens_per_round(alpha, k) / (verify_cost + k * draft_cost)


def limit(profile: Profile) -> tuple[float, int]:
    """The physical limit of one sequence: the speedup where drafts are free and always right.

    Returns:
        The speedup, and the draft length it is reached at.
    """
    step = profile.plain(1)
    lengths = range(min(LONGEST, profile.longest(1)) + 1)
    return max(((k + 1) * step / profile.verify(k + 1, 1), k) for k in lengths)


def rounds(trace: Trace, k: int) -> Iterator[Round]:
    """The rounds that a fixed draft length leads to."""
    at, end = 0, len(trace.offered)
    while at < end:
        drafted = min(k, trace.offered[at])
        accepted = min(drafted, trace.accepted[at])
        emitted = min(accepted + 1, end - at)  # nothing is added behind an accepted end
        evaluated = min(drafted, emitted)
        yield Round(drafted, evaluated, accepted, emitted)
        at += emitted


def plan(
    drafter: str,
    traces: Sequence[Trace],
    profile: Profile,
    draft_seconds: Mapping[int, float],
    sizes: Sequence[int],
) -> Plan:
    """Replay traces over a machine's latencies.

    Args:
        drafter: what drafted.
        traces: of several prompts.
        profile: the machine.
        draft_seconds: a drafted token on that machine, by batch size.
        sizes: the batch sizes to plan for, all of them in the profile.
    """
    groups = {OVERALL: list(traces)}
    for one in traces:
        groups.setdefault(one.category, []).append(one)
    estimates = {
        size: {
            name: [
                _estimate(group, k, size, profile, draft_seconds[size])
                for k in range(min(LONGEST, profile.longest(size)) + 1)
            ]
            for name, group in groups.items()
        }
        for size in sizes
    }
    return Plan(drafter, draft_seconds, estimates)


def _estimate(
    traces: Sequence[Trace], k: int, size: int, profile: Profile, draft: float
) -> Estimate:
    every = [one for trace in traces for one in rounds(trace, k)]
    evaluated = sum(one.evaluated for one in every)
    rate = sum(one.accepted for one in every) / evaluated if evaluated else None
    step = profile.plain(size)
    drafting, verifying = k * draft / step, profile.verify(size * (k + 1), size) / step
    return Estimate(
        k=k,
        speedup=_speedup(traces, k, size, profile, draft),
        acceptance_rate=rate,
        tokens_per_round=sum(one.emitted for one in every) / len(every),
        draft_cost=drafting,
        verify_cost=verifying,
        formula=tokens_per_round(rate or 0.0, k) / (verifying + drafting),
    )


def _speedup(
    traces: Sequence[Trace], k: int, size: int, profile: Profile, draft: float
) -> Interval:
    """One sequence at a time, with an interval; or several together, which has none."""
    step = profile.plain(size) / size  # plain seconds a token
    if size > 1:
        tokens, seconds = together(traces, k, size, profile, draft)
        return Interval(tokens * step / seconds)
    plain, drafted = [], []
    for trace in traces:
        every = list(rounds(trace, k))
        plain.append(step * len(trace.offered))
        drafted.append(sum(profile.verify(r.drafted + 1, 1) + r.drafted * draft for r in every))
    return ratio(plain, drafted)


def together(
    traces: Sequence[Trace], k: int, size: int, profile: Profile, draft: float
) -> tuple[int, float]:
    """Tokens and seconds of a batch that is always full.

    An answer that ends makes room for the next, the traces in turns, until as many have ended as
    there are. A pass costs by all its tokens, a batch of drafts by its longest.
    """
    waiting = cycle(traces)
    running = [rounds(trace, k) for trace in islice(waiting, size)]
    tokens, seconds, ended = 0, 0.0, 0
    while ended < max(size, len(traces)):
        batch = []
        for slot, sequence in enumerate(running):
            one = next(sequence, None)
            if one is None:
                ended += 1
                running[slot] = rounds(next(waiting), k)
                one = next(running[slot])
            batch.append(one)
        widths = sum(one.drafted + 1 for one in batch)
        seconds += profile.verify(widths, size) + draft * max(one.drafted for one in batch)
        tokens += sum(one.emitted for one in batch)
    return tokens, seconds
