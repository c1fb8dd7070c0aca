"""What a machine's costs allow: the limit of each drafter, and a plain lookup replayed at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from draftproof import Draft, DraftRequest, SamplingParams
from draftproof.bench.arms import PLAIN
from draftproof.bench.load import Arms
from draftproof.bench.summary import Row
from draftproof.drafters import Drafter, FreeDrafter
from draftproof.machine import in_words, machine
from draftproof.models import Model
from draftproof.plan import Trace, plan
from draftproof.plan.measure import cached, measure_drafts, measure_passes, trace
from draftproof.plan.profiles import MEASURED, Profile
from draftproof.prompts import Task

MATCHES = (4, 3, 2)  # tokens of a plain lookup, the longest first
DRAFTED = 3  # tokens it drafts
LIAR = "always wrong"
FLOORS = {  # it replayed over greedy answers of this model, at the costs of one machine
    "F16 + lookup": {
        "extraction": 1.64,
        "translation": 1.46,
        "rag": 1.40,
        "summarization": 1.31,
        "math": 1.25,
        "coding": 1.22,
        "qa": 1.04,
        "writing": 1.03,
    },
    "Q4_0 + lookup": {
        "extraction": 1.37,
        "translation": 1.30,
        "rag": 1.17,
        "summarization": 1.09,
        "math": 1.09,
        "coding": 1.08,
        "qa": 0.95,
        "writing": 0.96,
    },
}


def measure_costs(arms: Arms, tasks: Sequence[Task]) -> Profile:
    """Passes of the target, and a drafted token of each drafter; before any arm has answered."""
    text, context = max((task.tokens for task in tasks), key=len), cached(arms.target)
    drafts = {name: {1: _seconds(each, text[:context])} for name, each in arms.drafters.items()}
    return Profile(
        kind=MEASURED,
        machine=in_words(machine()),
        model=arms.target.name,
        context=context,
        source="benchmarks/control.py",
        passes=tuple(measure_passes(arms.target, text, [1])),
        drafts=drafts,
    )


def _seconds(drafter: Drafter, text: Sequence[int]) -> float:
    """Of a drafted token; nothing where drafts come of the text alone."""
    return 0.0 if isinstance(drafter, FreeDrafter) else measure_drafts(drafter, [text], [1])[1]


def limit(profile: Profile, drafted: float) -> tuple[float, int]:
    """The speedup where all drafts are right, and the draft length it is reached at.

    Args:
        profile: what passes take.
        drafted: seconds of a drafted token.
    """
    lengths = range(profile.longest(1) + 1)
    step = profile.plain(1)
    return max(((k + 1) * step / (profile.verify(k + 1, 1) + k * drafted), k) for k in lengths)


def limits(profile: Profile) -> dict[str, tuple[float, int]]:
    """Each drafter's limit; that of all together is the highest."""
    return {name: limit(profile, seconds[1]) for name, seconds in profile.drafts.items()}


def costs_table(profile: Profile) -> str:
    """The passes, the drafts and the limits, in words."""
    rows = sorted(profile.passes)
    lines = [
        f"passes over {profile.context} tokens",
        "tokens  " + "".join(f"{one.tokens:7d}" for one in rows),
        "ms      " + "".join(f"{1e3 * one.seconds:7.1f}" for one in rows),
    ]
    for name, (most, k) in limits(profile).items():
        drafted = 1e3 * profile.drafts[name][1]
        lines.append(
            f"limit of {name}, a drafted token at {drafted:.1f} ms: {most:.2f}x at {k} drafts"
        )
    return "\n".join(lines)


def lookup(tokens: Sequence[int], most: int) -> tuple[int, ...]:
    """What followed the latest earlier occurrence of the longest ending that has one."""
    for size in MATCHES:
        ending = tokens[-size:]
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == ending:
                return tuple(tokens[end : end + most])
    return ()


class PlainLookup:
    """Proposes what ``lookup`` finds."""

    name = "plain lookup"

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """See ``Drafter.propose``."""
        return [Draft(lookup(request.tokens, request.length)) for request in requests]

    def close(self) -> None:
        """See ``Drafter.close``."""


def floors(
    rows: Sequence[Row],
    tasks: Sequence[Task],
    params: SamplingParams,
    target: Model,
    profile: Profile,
) -> dict[str, float]:
    """By category, the speedup of a plain lookup over plain decoding's own answers.

    Args:
        rows: of all arms; the answers behind their first token are what is replayed.
        tasks: the prompts.
        params: how the answers were made.
        target: the model.
        profile: the machine.
    """
    plain = [row for row in rows if row.arm == PLAIN and not row.repeat and row.later]
    traces = [_trace(tasks[row.task], row.answer.token_ids, params, target) for row in plain]
    if not traces:
        return {}
    estimates = plan(PlainLookup.name, traces, profile, {1: 0.0}, [1]).estimates[1]
    return {name: every[DRAFTED].speedup.value for name, every in estimates.items()}


def _trace(task: Task, answer: Sequence[int], params: SamplingParams, target: Model) -> Trace:
    read = replace(task, tokens=(*task.tokens, answer[0]))
    rest = replace(params, max_tokens=len(answer) - 1)
    return trace(read, answer[1:], target, PlainLookup(), rest, DRAFTED)


class AlwaysWrong:
    """Proposes one token that never comes, at full length; free, as the worst case."""

    name = LIAR

    def __init__(self, token: int) -> None:
        self._token = token

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """See ``Drafter.propose``."""
        return [Draft((self._token,) * request.length) for request in requests]

    def close(self) -> None:
        """See ``Drafter.close``."""
