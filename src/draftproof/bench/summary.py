"""Rows of a benchmark to numbers: ratios with intervals, percentiles, and where texts part.

- seconds per token: the seconds behind the first round over the tokens behind it, as in
  ``Stats.tokens_per_second``; an answer of one round has none;
- speedup: plain decoding's seconds per token over the arm's, for the same prompt in the same
  repeat; the median over repeats, then the median over prompts, with a bootstrap over prompts;
- TPOT: per token, never per chunk: each token of a round took the round's time over its tokens.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from draftproof.bench.arms import PLAIN, Answer
from draftproof.intervals import median
from draftproof.text import Tokenizer

PERCENTILES = (50, 90, 99)
SHOWN = 12  # tokens shown from where texts part


class Row(NamedTuple):
    """One answer of one arm.

    Attributes:
        task: the prompt's number.
        category: its kind.
        arm: the arm's label.
        repeat: the repeat's number.
        answer: what was measured.
    """

    task: int
    category: str
    arm: str
    repeat: int
    answer: Answer

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.answer.rounds[0][1]

    @property
    def later(self) -> tuple[tuple[int, float], ...]:
        """The rounds behind the first."""
        return self.answer.rounds[1:]

    @property
    def seconds_per_token(self) -> float | None:
        """Seconds a token behind the first round."""
        tokens = sum(count for count, _ in self.later)
        return sum(seconds for _, seconds in self.later) / tokens if tokens else None

    def to_json(self) -> dict[str, Any]:
        """All of it, in milliseconds where it is a round."""
        stats = self.answer.stats
        return {
            "prompt": self.task,
            "category": self.category,
            "arm": self.arm,
            "repeat": self.repeat,
            "completion_tokens": len(self.answer.token_ids),
            "ttft": self.ttft,
            "seconds_per_token": self.seconds_per_token,
            "rounds": [[count, round(1e3 * seconds, 3)] for count, seconds in self.answer.rounds],
            "stats": stats.to_json() if stats else None,
        }


def summary(
    rows: Sequence[Row], arms: Sequence[str], repeatable: bool, tokenizer: Tokenizer
) -> dict[str, Any]:
    """All numbers, per arm: overall and by category; and the differences between texts.

    Args:
        rows: what was measured.
        arms: the labels, plain decoding first.
        repeatable: whether all texts must be equal.
        tokenizer: spells tokens.
    """
    categories = list(dict.fromkeys(row.category for row in sorted(rows, key=lambda row: row.task)))
    differences = list(_differences(rows, tokenizer)) if repeatable else None
    return {
        "categories": categories,
        "arms": {
            arm: {
                "overall": _block(rows, arm),
                "categories": {
                    name: _block([row for row in rows if row.category == name], arm)
                    for name in categories
                },
            }
            for arm in arms
        },
        "texts_compared": _compared(rows) if repeatable else None,
        "differences": differences,
    }


def _block(rows: Sequence[Row], arm: str) -> dict[str, Any]:
    """The numbers of an arm."""
    own = [row for row in rows if row.arm == arm]
    rounds = sum(len(row.answer.rounds) for row in own)
    tokens = sum(len(row.answer.token_ids) for row in own)
    ratios = _ratios(rows, arm)
    return {
        "answers": len(own),
        "tokens": tokens,
        "speedup": median(ratios).to_json() if ratios else None,
        "prompts_with_speedup": len(ratios),
        "tokens_per_second": _speed(own),
        "acceptance_length": tokens / rounds if rounds else None,
        **_counted(own),
        "ttft": _percentiles(row.ttft for row in own),
        "tpot": _percentiles(seconds for row in own for seconds in _each_token(row)),
    }


def _speed(rows: Iterable[Row]) -> float | None:
    """Tokens a second behind the first rounds."""
    later = [one for row in rows for one in row.later]
    seconds = sum(seconds for _, seconds in later)
    return sum(count for count, _ in later) / seconds if seconds else None


def _counted(rows: Iterable[Row]) -> dict[str, float | None]:
    """What only the engine can count."""
    every = [row.answer.stats for row in rows if row.answer.stats]
    evaluated = sum(stats.evaluated for stats in every)
    rounds = sum(stats.rounds for stats in every)
    return {
        "acceptance_rate": sum(s.accepted for s in every) / evaluated if evaluated else None,
        "mean_draft_length": sum(s.drafted for s in every) / rounds if rounds else None,
        "plain_rounds": sum(s.plain for s in every) / rounds if rounds else None,
    }


def _ratios(rows: Iterable[Row], arm: str) -> list[float]:
    """One speedup per prompt that has one."""
    pairs: dict[tuple[int, int], dict[str, float]] = {}
    for row in rows:
        if row.arm in (PLAIN, arm) and row.seconds_per_token:
            pairs.setdefault((row.task, row.repeat), {})[row.arm] = row.seconds_per_token
    tasks: dict[int, list[float]] = {}
    for (task, _), seconds in pairs.items():
        if PLAIN in seconds and arm in seconds:
            tasks.setdefault(task, []).append(seconds[PLAIN] / seconds[arm])
    return [statistics.median(ratios) for _, ratios in sorted(tasks.items())]


def _each_token(row: Row) -> Iterator[float]:
    for count, seconds in row.later:
        yield from [seconds / count] * count


def _percentiles(values: Iterable[float]) -> dict[str, float] | None:
    every = list(values)
    if not every:
        return None
    found = np.percentile(every, PERCENTILES)
    return {f"p{q}": float(value) for q, value in zip(PERCENTILES, found, strict=True)}


def _references(rows: Iterable[Row]) -> dict[int, Row]:
    """Plain decoding's first answer to each prompt."""
    found: dict[int, Row] = {}
    for row in rows:
        if row.arm == PLAIN:
            found.setdefault(row.task, row)
    return found


def _compared(rows: Sequence[Row]) -> int:
    known = _references(rows)
    return sum(row.task in known and known[row.task] is not row for row in rows)


def _differences(rows: Sequence[Row], tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """Where an answer parts from plain decoding's first one to the same prompt."""
    known = _references(rows)
    for row in rows:
        reference = known.get(row.task, row).answer.token_ids
        mine = row.answer.token_ids
        if mine == reference:
            continue
        pairs = enumerate(zip(reference, mine, strict=False))
        shorter = min(len(reference), len(mine))
        at = next((i for i, (a, b) in pairs if a != b), shorter)
        yield {
            "prompt": row.task,
            "category": row.category,
            "arm": row.arm,
            "repeat": row.repeat,
            "position": at,
            "plain": _spelled(tokenizer, reference[at : at + SHOWN]),
            "text": _spelled(tokenizer, mine[at : at + SHOWN]),
        }


def _spelled(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    return b"".join(map(tokenizer.piece, tokens)).decode(errors="replace")
