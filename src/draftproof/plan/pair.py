"""From specs to a plan: loads a target and its drafters, measures them, and replays.

One target serves all drafters, its plain text and its latencies are measured once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from draftproof.checks import require
from draftproof.drafters import Drafter, load_drafter, split_chain
from draftproof.engine import Engine
from draftproof.errors import ParameterError
from draftproof.machine import in_words, machine
from draftproof.models import Model, Progress
from draftproof.models.describe import describe
from draftproof.params import SamplingParams
from draftproof.plan import LONGEST, Plan, Trace, plan
from draftproof.plan.measure import (
    cached,
    measure_drafts,
    measure_passes,
    plain_text,
    trace,
)
from draftproof.plan.profiles import MEASURED, WIDEST, Profile
from draftproof.prompts import Task, encode
from draftproof.types import ModelOptions

SIZES = (1, 2, 4, 8)
CONTEXT = 1024  # tokens, unless asked: every sequence of the largest batch has a cache of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What to plan, and how.

    Attributes:
        target: its spec.
        drafters: their specs.
        tasks: prompts, not encoded yet.
        params: greedy or seeded.
        options: how models are loaded.
        sizes: batch sizes; None for the usual ones, as far as the profile has them.
        profile: another machine's; None for this one.
        draft_cost: of a drafted token on that machine, in its plain steps; None takes it over
            from this one.
        repeats: measurements of each latency.
        raw: leave the chat template out.
        progress: called with the part done, from 0 to 1.
    """

    target: str
    drafters: Sequence[str]
    tasks: Sequence[Task]
    params: SamplingParams
    options: ModelOptions
    sizes: Sequence[int] | None = None
    profile: Profile | None = None
    draft_cost: float | None = None
    repeats: int = 5
    raw: bool = False
    progress: Progress = field(default=lambda part: None)


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What was found: a plan for each drafter, and the machine they are for."""

    plans: Sequence[Plan]
    profile: Profile


def batch_sizes(wanted: Sequence[int] | None, profile: Profile | None) -> list[int]:
    """The batch sizes to plan for; 1 is always one of them.

    Raises:
        ParameterError: the profile does not know one that was asked for.
    """
    for size in wanted or ():
        require(1 <= size <= 256, f"batch sizes lie from 1 to 256, not {size}")
    if profile is None:
        return sorted({1, *(SIZES if wanted is None else wanted)})
    for size in wanted or ():
        if size not in profile.sequences:
            known = ", ".join(map(str, profile.sequences))
            raise ParameterError(f"the profile knows no batches of {size}, only of {known}")
    return [size for size in profile.sequences if size == 1 or size in (wanted or SIZES)]


def survey(asked: Survey) -> Surveyed:
    """Load, measure, replay.

    Raises:
        DraftproofError: as ``Engine``.
    """
    sizes = batch_sizes(asked.sizes, asked.profile)
    context = asked.options.context_length or min(CONTEXT, describe(asked.target).context_length)
    options = replace(asked.options, context_length=context, max_sequences=max(sizes))
    with Engine(asked.target, options=options) as engine:
        return _Surveyor(asked, engine.target, options, sizes).run()


class _Surveyor:
    """One survey, with its target loaded."""

    def __init__(
        self, asked: Survey, target: Model, options: ModelOptions, sizes: Sequence[int]
    ) -> None:
        self._asked = asked
        self._target = target
        self._options = options
        self._sizes = sizes
        assert asked.params.max_tokens is not None
        self._tasks = encode(asked.tasks, target, asked.params.max_tokens, asked.raw)
        self._steps = len(self._tasks) * (1 + len(asked.drafters)) + 1
        self._done = 0.0

    def run(self) -> Surveyed:
        answers = []
        for task in self._tasks:
            answers.append(plain_text(self._target, task, self._asked.params))
            self._advance(1)
        texts = [[*task.tokens, *answer] for task, answer in zip(self._tasks, answers, strict=True)]
        surveyed = [self._drafter(spec, answers, texts) for spec in self._asked.drafters]
        here = self._here(texts)
        profile = self._asked.profile or here
        costs = {
            spec: self._costs(spec, seconds, here)
            for spec, (_, seconds) in zip(self._asked.drafters, surveyed, strict=True)
        }
        plans = [
            plan(spec, traces, profile, costs[spec], self._sizes)
            for spec, (traces, _) in zip(self._asked.drafters, surveyed, strict=True)
        ]
        return Surveyed(plans, replace(profile, drafts={**profile.drafts, **costs}))

    def _advance(self, steps: float) -> None:
        self._done += steps
        self._asked.progress(self._done / self._steps)

    def _drafter(
        self, spec: str, answers: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]
    ) -> tuple[list[Trace], dict[int, float]]:
        """How a drafter fares, and the seconds of a drafted token by batch size."""
        drafter = load_drafter(spec, self._target, self._options)
        if drafter is None:
            raise ParameterError("none drafts nothing: name a drafter to plan for")
        with closing(drafter):
            Engine(self._target, drafter)  # whether it can be speculated on
            traces = self._traces(drafter, answers)
            return traces, measure_drafts(drafter, texts, self._sizes, self._asked.repeats)

    def _traces(self, drafter: Drafter, answers: Sequence[Sequence[int]]) -> list[Trace]:
        traces = []
        for task, answer in zip(self._tasks, answers, strict=True):
            params = self._asked.params
            traces.append(trace(task, answer, self._target, drafter, params, LONGEST))
            self._advance(1)
        return traces

    def _here(self, texts: Sequence[Sequence[int]]) -> Profile:
        """This machine's latencies: the whole table, or plain steps if another's is replayed."""
        widest = min(WIDEST, self._target.capabilities.context_length - 1)
        before, widest = self._done, 1 if self._asked.profile else widest
        passes = measure_passes(
            self._target,
            max(texts, key=len),
            self._sizes,
            widest,
            self._asked.repeats,
            lambda part: self._advance(before + part - self._done),
        )
        return Profile(
            kind=MEASURED,
            machine=in_words(machine()),
            model=self._target.name,
            context=cached(self._target, widest),
            source=f"draftproof plan {self._asked.target}",
            passes=tuple(passes),
        )

    def _costs(self, spec: str, seconds: Mapping[int, float], here: Profile) -> Mapping[int, float]:
        """Seconds of a drafted token, by batch size, on the machine planned for."""
        there, given = self._asked.profile, self._asked.draft_cost
        if there is None:
            return seconds
        if given is None and spec in there.drafts and set(self._sizes) <= set(there.drafts[spec]):
            return there.drafts[spec]
        return {
            size: there.plain(size) * (seconds[size] / here.plain(size) if given is None else given)
            for size in self._sizes
        }


def model_files(target: str, drafters: Sequence[str]) -> dict[str, str]:
    """The file or folder of the target and of each draft model that is in one, by spec."""
    found = {}
    path = describe(target).path
    for spec in dict.fromkeys(part for drafter in drafters for part in split_chain(drafter)):
        kind, _, rest = spec.partition(":")
        if kind == "quantize" and path is not None:
            from draftproof.models.quantize import quantized_copy

            found[spec] = quantized_copy(path, rest)
        elif kind not in ("lookup", "quantize", "early-exit", "replay"):
            draft = describe(spec).path
            found |= {} if draft is None else {spec: draft}
    return found if path is None else {target: path, **found}
