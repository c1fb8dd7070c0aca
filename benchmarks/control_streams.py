"""Eight streams at once: the automatic draft length beside plain decoding.

Both arms answer the same groups of prompts from cold caches, in turns; a prompt begins where an
answer has ended. Throughput at eight is that of the rounds in which all eight take part and none
still reads its prompt; how long the whole group took, reading and the emptying batch at its end
included, is counted beside it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any, NamedTuple

from control_numbers import Goal, Spent, interval, tally

from draftproof import Engine, SamplingParams
from draftproof.bench import WARM_UP
from draftproof.prompts import Task
from draftproof.types import ModelOptions, Step

STREAMS = 8
GROUP = 16  # prompts
CONTEXT = 2048  # tokens of each
ARMS = AUTO, PLAIN = "auto", "plain"
AIM = 0.98
Group = Sequence[Sequence[int]]


class Pace(NamedTuple):
    """One group of prompts, answered once.

    Attributes:
        arm: "auto" or "plain".
        group: its number.
        repeat: the repeat's number.
        tokens: of the rounds that all streams took part in.
        seconds: of these rounds.
        answered: tokens of all rounds.
        wall: seconds from the first request to the last token.
    """

    arm: str
    group: int
    repeat: int
    tokens: int
    seconds: float
    answered: int
    wall: float


@dataclass(slots=True)
class Streams:
    """What was measured for a pair."""

    pair: str
    paces: list[Pace] = field(default_factory=list)
    interrupted: bool = False

    def goals(self) -> Iterator[Goal]:
        """At eight, and from the first request to the last token."""
        full = [Spent(p.arm, "", p.group, p.repeat, p.tokens, p.seconds) for p in self.paces]
        all_of_it = [Spent(p.arm, "", p.group, p.repeat, p.answered, p.wall) for p in self.paces]
        for what, every in (("", full), (", from request to end", all_of_it)):
            sums = tally(every, ARMS)
            if sums[AUTO]:
                found = interval([*sums[AUTO].values()], [*sums[PLAIN].values()])
                yield Goal(f"{self.pair}, eight streams{what}: auto over plain", AIM, found)

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {"pair": self.pair, "groups": [pace._asdict() for pace in self.paces]}


def groups(tasks: Sequence[Task], most: int) -> list[Group]:
    """Full groups of prompts, of as many kinds each as there are."""
    kinds: dict[str, list[Task]] = {}
    for task in tasks:
        kinds.setdefault(task.category, []).append(task)
    mixed = [task.tokens for task in chain(*zip_longest(*kinds.values())) if task]
    return [mixed[at : at + GROUP] for at in range(0, len(mixed) - GROUP + 1, GROUP)][:most]


def run_streams(
    pair: str, plain: Engine, auto: Engine, prompts: Sequence[Group], tokens: int, repeats: int
) -> Streams:
    """Both arms on all groups, in turns; Ctrl-C keeps what has been measured.

    Args:
        pair: its name.
        plain: decodes without a drafter.
        auto: another engine of the same target.
        prompts: in groups.
        tokens: of an answer, at most.
        repeats: how often every arm answers every group.
    """
    found = Streams(pair)
    params = SamplingParams(max_tokens=tokens)
    try:
        for engine in (plain, auto):
            cool(engine, WARM_UP)
        for repeat in range(repeats):
            for number, group in enumerate(prompts):
                turns = [(PLAIN, plain), (AUTO, auto)]
                for arm, engine in turns[:: (-1) ** (number + repeat)]:
                    cool(engine)
                    found.paces.append(Pace(arm, number, repeat, *answer(engine, group, params)))
    except KeyboardInterrupt:
        found.interrupted = True
    return found


def cool(engine: Engine, tokens: int = 1) -> None:
    """Answer another text in all caches, so that no prompt is found there."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    engine.generate_many([[0]] * STREAMS, params)


def answer(engine: Engine, group: Group, params: SamplingParams) -> tuple[int, float, int, float]:
    """Tokens and seconds of the full rounds; tokens and seconds of everything."""
    begin = time.perf_counter()
    waiting = {engine.submit(list(prompt), params) for prompt in group}
    tokens, seconds, answered = 0, 0.0, 0
    while waiting:
        before = time.perf_counter()
        steps = engine.step()
        emitted = sum(len(step.tokens) for step in steps)
        answered += emitted
        if full(steps, min(STREAMS, len(group))):
            tokens, seconds = tokens + emitted, seconds + time.perf_counter() - before
        for step in steps:
            if step.finish_reason:
                engine.completion(step.request)
                waiting.remove(step.request)
    return tokens, seconds, answered, time.perf_counter() - begin


def full(steps: Sequence[Step], streams: int) -> bool:
    """Whether all streams took part in a round, none of them reading its prompt."""
    return len(steps) == streams and not any(step.prefilled for step in steps)


def stream_options() -> ModelOptions:
    """How models are loaded for eight streams."""
    return ModelOptions(max_sequences=STREAMS, context_length=CONTEXT)
