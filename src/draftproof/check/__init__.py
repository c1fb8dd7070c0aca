"""An audit of a pair on its own models, options and prompts: is the output the target's own?

Seven stages, each of which says what it would have caught: the rules on the pair's own rows, the
honesty of q, greedy texts, the law of the next tokens, texts with a seed, the caches, and texts
that run together. Nothing in the loop is replaced (``lab.py``).

Not here: the proof by enumeration on small tables, which is the test suite's.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from draftproof.check.clock import FULL, QUICK, Clock, Extent
from draftproof.check.findings import ALPHA, Audit, Fault, Stage
from draftproof.check.lab import Lab, Round
from draftproof.check.stage_caches import Twin, check_caches
from draftproof.check.stage_drafts import check_drafts
from draftproof.check.stage_law import check_law
from draftproof.check.stage_rules import check_rules
from draftproof.check.stage_texts import Text, check_batch, check_greedy, check_seeds
from draftproof.drafters import Drafter
from draftproof.errors import DraftproofError, PairError, ParameterError, PromptError
from draftproof.models import Model, Progress, load_model
from draftproof.pair import Pair
from draftproof.params import SamplingParams
from draftproof.prompts import Task, encode, read_tasks
from draftproof.types import ModelOptions, Speculation

__all__ = ["ALPHA", "FULL", "QUICK", "Audit", "Extent", "Fault", "Stage", "audit"]

OPTIONS = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "bad_words"),
)
"""What is audited of ``SamplingParams``; seeds, ends and grammars are not the user's here."""

SAMPLED = ("rules", "drafts", "law", "seeds")
_BROKEN = (AssertionError, ArithmeticError, LookupError, TypeError, ValueError)
"""What a faulty drafter or loop raises. Our own errors are for the user, and go through."""
_T = TypeVar("_T")

ROWS_BYTES = 300e6  # of the rounds that are kept; each has about twenty rows
LEAST = 4  # rounds that are looked at, however long they take
PASSES = 10  # over the prompts, to find them
TOGETHER = 4  # texts that run at once, unless the options say how many
PARTS = {
    "look": 2,
    "rules": 4,
    "drafts": 2,
    "greedy": 3,
    "law": 8,
    "seeds": 3,
    "caches": 3,
    "batch": 2,
}
"""What each stage may take of the time, against the others."""


def audit(
    target: Model | str | os.PathLike[str],
    drafter: Drafter | Model | str | os.PathLike[str],
    *,
    params: SamplingParams | None = None,
    speculation: Speculation | None = None,
    options: ModelOptions | None = None,
    cross_vocabulary: str | None = None,
    tasks: Sequence[Task] | None = None,
    raw: bool = False,
    seed: int | None = None,
    extent: Extent = FULL,
    loading: Progress | None = None,
    progress: Progress = lambda part: None,
) -> Audit:
    """Audit a pair.

    Args:
        target: a model, or a spec as ``load_model`` takes it.
        drafter: a drafter, a draft model, or a spec as ``load_drafter`` takes it.
        params: options of the texts, those of ``OPTIONS``; temperature 1 if left out.
        speculation: draft length and rule.
        options: how models given by their spec are loaded; for one sequence, and once more for the
            last stage, with ``max_sequences`` or ``TOGETHER`` of them.
        cross_vocabulary: as in ``load_drafter``.
        tasks: the prompts; those built in if left out, or single tokens where the target does
            not know their letters.
        raw: leave the chat template out.
        seed: repeats the audit's own coins; drawn if left out.
        extent: how much to do.
        loading: called with the part of a model that is loaded.
        progress: called with the part done, from 0 to 1.

    Raises:
        ParameterError: nothing would be drafted, or an option that is not audited.
        PromptError: the prompts cannot be used.
        UserError: the pair cannot be loaded, or cannot work together.
    """
    began = time.perf_counter()
    params, speculation = params or SamplingParams(temperature=1.0), speculation or Speculation()
    _refuse(drafter, params, speculation)
    options, clocks = options or ModelOptions(), _clocks(extent.seconds, progress)
    one = replace(options, max_sequences=1)
    seed = secrets.randbits(32) if seed is None else seed
    texts: list[Text] = []
    with closing(Pair(target, drafter, one, loading, cross_vocabulary)) as pair:
        assert pair.drafter is not None
        prompts = _prompts(pair.target, tasks, raw, extent)
        lab = Lab(pair.target, pair.drafter, params, speculation, prompts, seed)
        stages = list(_stages(lab, extent, _twin(target, pair.target, one), clocks, texts))
    again = partial(_again, target, drafter, options, loading, cross_vocabulary)
    stages.append(_attempt("batch", lambda: _batch(lab, clocks["batch"], again, texts)))
    return Audit(
        target=lab.target.name,
        drafter=lab.drafter.name,
        options=_named(lab, extent),
        seed=seed,
        stages=tuple(stages),
        seconds=time.perf_counter() - began,
    )


def _again(target: Any, drafter: Any, options: ModelOptions, *rest: Any) -> Pair:
    """The pair once more, with room for several sequences.

    Raises:
        PairError: it cannot be had.
        UserError: as ``Pair``.
    """
    if _spec(target) and not _spec(drafter):
        raise PairError("the drafter is an object made for one sequence: give its spec")
    count = options.max_sequences if options.max_sequences > 1 else TOGETHER
    return Pair(target, drafter, replace(options, max_sequences=count), *rest)


def _spec(given: Any) -> bool:
    """Whether a model or drafter is given by its spec, so that it can be loaded again."""
    return isinstance(given, str | os.PathLike)


def _refuse(drafter: Any, params: SamplingParams, speculation: Speculation) -> None:
    speculation.rule_for(params)
    for name in sorted(params.changed() - set(OPTIONS)):
        raise ParameterError(f"an audit has texts and seeds of its own: leave out {name}")
    if drafter in ("none", None) or speculation.draft_length == 0:
        raise ParameterError("nothing is drafted, so there is nothing to check: give a drafter")


def _prompts(
    model: Model, tasks: Sequence[Task] | None, raw: bool, extent: Extent
) -> list[list[int]]:
    """Token ids, shortest first: a fault is to be shown with as little as possible."""
    if tasks is not None:
        found = encode(tasks, model, extent.tokens, raw)
    else:
        found = [one for task in read_tasks() for one in _readable(model, task, raw, extent)]
    words = set(range(min(12, model.capabilities.vocabulary))) - model.tokenizer.end_tokens
    return sorted((list(task.tokens) for task in found), key=len) or [[word] for word in words]


def _readable(model: Model, task: Task, raw: bool, extent: Extent) -> list[Task]:
    """A prompt that is built in; nothing where the target cannot read it, or has no room."""
    try:
        return encode([task], model, extent.tokens, raw)
    except PromptError:
        return []


def _twin(spec: Any, model: Model, options: ModelOptions) -> Twin | None:
    """What loads the target once more, where that is known."""
    if not isinstance(spec, (str, os.PathLike)):
        return None
    capabilities = model.capabilities
    same = replace(
        options,
        context_length=capabilities.context_length,
        max_sequences=capabilities.max_sequences,
    )
    return lambda: load_model(spec, same)


def _stages(
    lab: Lab,
    extent: Extent,
    twin: Twin | None,
    clocks: dict[str, Callable[[], Clock]],
    texts: list[Text],
) -> Iterator[Stage]:
    """All but the last, each within its part of the time; ``texts`` is for that one."""
    seen: list[Round] = []
    stages: dict[str, Callable[[Clock], Stage]] = {
        "rules": lambda clock: check_rules(lab, clock, seen),
        "drafts": lambda clock: check_drafts(lab, clock, extent, seen),
        "greedy": lambda clock: check_greedy(lab, clock, extent, texts),
        "law": lambda clock: check_law(lab, clock, extent, seen),
        "seeds": lambda clock: check_seeds(lab, clock, extent, texts),
        "caches": lambda clock: check_caches(lab, clock, extent, seen, twin),
    }
    broken = _attempt("rules", lambda: seen.extend(_look(lab, clocks["look"](), extent)))
    for name, run in stages.items():
        if lab.params.greedy and name in SAMPLED:
            yield Stage(name=name, skipped="nothing is drawn at temperature 0")
        elif name == "rules" and broken:
            yield broken
        else:
            yield _attempt(name, partial(run, clocks[name]()))


def _batch(
    lab: Lab, clock: Callable[[], Clock], load: Callable[[], Pair], texts: Sequence[Text]
) -> Stage:
    """The last one: the pair is loaded again, with room for several sequences."""
    try:
        pair = load()
    except DraftproofError as error:
        return Stage(name="batch", skipped=f"the pair cannot hold several sequences ({error})")
    with closing(pair):
        assert pair.drafter is not None
        return check_batch(replace(lab, target=pair.target, drafter=pair.drafter), clock(), texts)


def _clocks(seconds: float, progress: Progress) -> dict[str, Callable[[], Clock]]:
    """What starts the clock of each part."""
    whole, before = sum(PARTS.values()), 0
    clocks: dict[str, Callable[[], Clock]] = {}
    for name, part in PARTS.items():
        clocks[name] = partial(_clock, seconds, before / whole, part / whole, progress)
        before += part
    return clocks


def _clock(seconds: float, begin: float, share: float, progress: Progress) -> Clock:
    return Clock(seconds * share, lambda over: progress(begin + share * over))


def _attempt(name: str, run: Callable[[], _T]) -> _T | Stage:
    """A stage; where the loop or a drafter breaks down in it, that is its fault."""
    try:
        return run()
    except DraftproofError:
        raise
    except _BROKEN as error:
        reason = " ".join(str(error).split())
        what = f"it broke down: {type(error).__name__}{': ' if reason else ''}{reason}"
        return Stage(name=name, checked="not done", faults=[Fault(what=what)])


def _look(lab: Lab, clock: Clock, extent: Extent) -> list[Round]:
    """Rounds of the loop, with everything that passed through it."""
    width = lab.target.capabilities.vocabulary
    count = max(LEAST, min(extent.rounds, int(ROWS_BYTES / (80 * width))))
    params = replace(lab.params, max_tokens=extent.tokens)
    seen: list[Round] = []
    for _ in range(PASSES):
        for one in lab.observe(lab.prompts[: extent.prompts], params, lab.speculation):
            seen.append(one)
            if len(seen) == count or not (clock.left() or len(seen) < LEAST):
                return seen
    return seen


def _named(lab: Lab, extent: Extent) -> dict[str, Any]:
    """What was audited, for the report."""
    params = lab.params
    return {
        **{name: getattr(params, name) for name in OPTIONS},
        "draft_length": lab.speculation.draft_length,
        "rule": lab.speculation.rule_for(params),
        "prompts": len(lab.prompts),
        "quick": extent == QUICK,
    }
