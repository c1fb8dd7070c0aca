"""A benchmark people can trust: arms in turns on the same prompts, tokens counted in one way.

Arms take turns within every prompt and repeat, in random order, from cold caches; every prompt and
repeat gives a ratio against plain decoding of that moment, so that a machine that slows down slows
both. Not here: which arms there are (``arms.py``), and what becomes of the rows
(``summary.py``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from draftproof.bench.arms import Arm
from draftproof.bench.summary import Row, summary
from draftproof.checks import require
from draftproof.machine import commit, machine, versions
from draftproof.params import SamplingParams
from draftproof.prompts import Task
from draftproof.text import Tokenizer

WARM_UP = 16  # tokens


@dataclass(slots=True)
class Results:
    """What a benchmark has measured.

    Attributes:
        tasks: the prompts.
        params: how tokens were drawn.
        arms: the arms' labels, plain decoding first.
        interrupted: whether Ctrl-C ended it; the rows are those measured by then.
        started: when, in UTC.
    """

    tasks: Sequence[Task]
    params: SamplingParams
    arms: Sequence[str]
    rows: list[Row] = field(default_factory=list)
    interrupted: bool = False
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def to_json(self, options: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
        """The one document.

        Args:
            options: what was asked for.
            tokenizer: spells the tokens where texts part.
        """
        return {
            "started": self.started.isoformat(timespec="seconds"),
            "interrupted": self.interrupted,
            "machine": machine(),
            "versions": versions(),
            "commit": commit(),
            "options": options,
            "prompts": [
                {"category": task.category, "text": task.text, "tokens": len(task.tokens)}
                for task in self.tasks
            ],
            "summary": summary(self.rows, self.arms, repeatable(self.params), tokenizer),
            "rows": [row.to_json() for row in self.rows],
        }


def repeatable(params: SamplingParams) -> bool:
    """Whether all arms must give the same text: greedy, or with a seed."""
    return params.greedy or params.seed is not None


def run(
    arms: Sequence[Arm],
    tasks: Sequence[Task],
    params: SamplingParams,
    repeats: int = 3,
    seed: int = 0,
    progress: Callable[[float], None] = lambda part: None,
) -> Results:
    """Measure. Ctrl-C ends it early and keeps what has been measured.

    Args:
        arms: plain decoding first.
        tasks: prompts with their tokens.
        params: how tokens are drawn.
        repeats: how often every arm answers every prompt.
        seed: of the order in which they run.
        progress: called with the part done, from 0 to 1.

    Raises:
        ParameterError: nothing to run.
        ModelError: a model failed.
    """
    require(repeats >= 1, f"repeats must be 1 or more, not {repeats!r}")
    require(bool(tasks), "there are no prompts: give some")
    results = Results(tasks, params, [arm.label for arm in arms])
    try:
        for arm in arms:
            short = min(WARM_UP, params.max_tokens or WARM_UP)
            arm.answer(tasks[0].tokens, replace(params, max_tokens=short))
        turns = _turns(len(tasks), len(arms), repeats, random.Random(seed))
        total = repeats * len(tasks) * len(arms)
        for done, (repeat, number, place) in enumerate(turns, 1):
            task, arm = tasks[number], arms[place]
            answer = arm.answer(task.tokens, params)
            results.rows.append(Row(number, task.category, arm.label, repeat, answer))
            progress(done / total)
    except KeyboardInterrupt:
        results.interrupted = True
    return results


def _turns(
    tasks: int, arms: int, repeats: int, coin: random.Random
) -> Iterator[tuple[int, int, int]]:
    """(repeat, prompt, arm): prompts in random order, the arms of each in random order."""
    for repeat in range(repeats):
        for task in coin.sample(range(tasks), tasks):
            for arm in coin.sample(range(arms), arms):
                yield repeat, task, arm
