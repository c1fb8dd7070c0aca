"""Measures a pair for ``plan.py``: what passes and drafts take, and how long drafts survive.

Caches of the models given are left empty or stale: make an engine afterwards, as this does.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from draftproof.drafters import Drafter, DraftRequest
from draftproof.engine import Engine
from draftproof.intervals import median
from draftproof.models import Chunk, Model
from draftproof.noise import noise_for
from draftproof.params import SamplingParams
from draftproof.plan import Trace
from draftproof.plan.profiles import WIDEST, Pass
from draftproof.prompts import Task
from draftproof.sampling import greedy

CONTEXT = 200  # tokens in each cache while passes are measured, at most
DRAFTED = 4  # tokens of the drafts that are timed

_owners = count(-2, -1)  # for drafters; an engine counts from 0 on


def plain_text(target: Model, task: Task, params: SamplingParams) -> tuple[int, ...]:
    """The target's own answer, greedy or seeded."""
    return Engine(target).generate(list(task.tokens), params).token_ids


def trace(
    task: Task,
    answer: Sequence[int],
    target: Model,
    drafter: Drafter,
    params: SamplingParams,
    longest: int,
) -> Trace:
    """For each position of an answer, how long a draft there is and how much of it survives.

    Args:
        task: the prompt.
        answer: what the target says, from ``plain_text``.
        target: the model.
        drafter: what drafts.
        params: as for the answer: greedy or seeded, so that drafts are deterministic.
        longest: drafts of at most so many tokens are asked for.
    """
    assert params.max_tokens is not None
    owner, noise = next(_owners), noise_for(params.seed)
    end_tokens = frozenset() if params.ignore_eos else target.tokenizer.end_tokens
    offered, accepted = [], []
    for at in range(len(answer)):
        tokens = [*task.tokens, *answer[:at]]
        length = min(longest, params.max_tokens - at - 1)
        request = DraftRequest(0, owner, tokens, length, params, noise, end_tokens)
        draft = drafter.propose([request])[0].tokens if length else ()
        offered.append(len(draft))
        accepted.append(_common(draft, answer[at:]))
    return Trace(task.category, tuple(offered), tuple(accepted))


def _common(draft: Sequence[int], text: Sequence[int]) -> int:
    pairs = zip(draft, text, strict=False)
    differing = (i for i, (a, b) in enumerate(pairs) if a != b)
    return next(differing, min(len(draft), len(text)))


def measure_passes(
    target: Model,
    text: Sequence[int],
    sizes: Sequence[int],
    widest: int = WIDEST,
    repeats: int = 5,
    progress: Callable[[float], None] = lambda part: None,
) -> list[Pass]:
    """The latency table: every width at every batch size, in turns, in random order.

    Args:
        target: the model; it holds at least as many sequences as the largest size.
        text: tokens to fill caches with, repeated as often as needed.
        sizes: batch sizes.
        widest: most tokens of a sequence in a pass.
        repeats: passes of each width and size.
        progress: called with the part done, from 0 to 1.
    """
    context = cached(target, widest)
    filled = (list(text) * (context + widest))[: context + widest]
    _fill(target, filled[:context], max(sizes))
    cells = [(width, size) for size in sizes for width in range(1, widest + 1)]
    seconds: dict[tuple[int, int], list[float]] = {cell: [] for cell in cells}
    coin = random.Random(0)
    for repeat in range(repeats + 1):
        for width, size in coin.sample(cells, len(cells)):
            taken = _pass(target, filled[context : context + width], size, context)
            if repeat:  # the first is a warm-up
                seconds[width, size].append(taken)
        progress((repeat + 1) / (repeats + 1))
    for seq in range(max(sizes)):
        target.truncate(seq, 0)
    return [Pass(width * size, size, *median(every)) for (width, size), every in seconds.items()]


def cached(target: Model, widest: int = WIDEST) -> int:
    """Tokens in each cache while passes of so many tokens are measured."""
    return min(CONTEXT, target.capabilities.context_length - widest)


def _fill(target: Model, tokens: Sequence[int], sequences: int) -> None:
    for seq in range(sequences):
        target.truncate(seq, 0)
        target.forward([Chunk(seq, tokens, 0)])


def _pass(target: Model, tokens: Sequence[int], size: int, context: int) -> float:
    """Seconds of a pass and of the argmax behind it, which waits for a GPU, too."""
    chunks = [Chunk(seq, tokens, len(tokens)) for seq in range(size)]
    begin = time.perf_counter()
    for rows in target.forward(chunks):
        greedy(rows)
    taken = time.perf_counter() - begin
    for seq in range(size):
        target.truncate(seq, context)
    return taken


def measure_drafts(
    drafter: Drafter, texts: Sequence[Sequence[int]], sizes: Sequence[int], repeats: int = 5
) -> dict[int, float]:
    """Seconds a drafted token, by batch size; a drafter that has nothing to say took that long.

    Args:
        drafter: what drafts.
        texts: tokens to draft behind.
        sizes: batch sizes.
        repeats: drafts of each size.
    """
    return {size: median(list(_drafts(drafter, texts, size, repeats))).value for size in sizes}


def _drafts(
    drafter: Drafter, texts: Sequence[Sequence[int]], size: int, repeats: int
) -> Iterator[float]:
    params, noise = SamplingParams(), noise_for(None)
    requests = [
        DraftRequest(
            *(seq, next(_owners), list(texts[seq % len(texts)]), DRAFTED, params, noise),
            frozenset(),
        )
        for seq in range(size)
    ]
    drafter.propose(requests)  # reads the texts
    for _ in range(repeats):
        begin = time.perf_counter()
        drafts = drafter.propose(requests)
        longest = max(len(draft.tokens) for draft in drafts)
        yield (time.perf_counter() - begin) / max(1, longest)
