"""The rounds that the figures show, run by the engine on two tables of words, ready for JSON.

Not here: the figures that need no engine (``explain.py``), and how any of them is drawn
(``server/page/``) and served (``server/explain.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from draftproof.checks import is_int, is_number, require
from draftproof.engine import Engine
from draftproof.models import Chunk
from draftproof.models.table import Table, TableModel
from draftproof.params import SamplingParams
from draftproof.sampling import distribution
from draftproof.types import Array, ModelOptions, Origin, Speculation, Step

Json = dict[str, Any]
Language = Mapping[str, Mapping[str, float]]
"""What may follow the last word, or the last two: word to probability."""

TARGET: Language = {
    "the": {"quick": 0.5, "small": 0.3, "lazy": 0.2},
    "over the": {"lazy": 0.6, "small": 0.25, "quick": 0.15},
    "quick": {"brown": 0.6, "red": 0.3, "fox": 0.1},
    "small": {"red": 0.5, "brown": 0.3, "dog": 0.2},
    "lazy": {"dog": 0.6, "cat": 0.3, "fox": 0.1},
    "brown": {"fox": 0.6, "dog": 0.25, "cat": 0.15},
    "red": {"fox": 0.6, "cat": 0.4},
    "fox": {"jumped": 0.45, "ran": 0.3, "laughed": 0.15, "sat": 0.1},
    "cat": {"ran": 0.4, "sat": 0.4, "jumped": 0.2},
    "dog": {"laughed": 0.4, "ran": 0.35, "sat": 0.25},
    "jumped": {"over": 0.75, "away": 0.15, "and": 0.1},
    "ran": {"away": 0.6, "over": 0.3, "and": 0.1},
    "laughed": {"and": 0.8, "away": 0.2},
    "sat": {"and": 1.0},
    "over": {"the": 0.8, "and": 0.2},
    "away": {"and": 0.9, "over": 0.1},
    "and": {"the": 0.6, "ran": 0.2, "laughed": 0.2},
}
DRAFT: Language = {
    **TARGET,
    "the": {"quick": 0.7, "small": 0.25, "lazy": 0.05},
    "over the": {"lazy": 0.8, "quick": 0.15, "small": 0.05},
    "quick": {"brown": 0.8, "red": 0.1, "fox": 0.1},
    "small": {"dog": 0.4, "red": 0.4, "brown": 0.2},
    "brown": {"fox": 0.8, "cat": 0.15, "dog": 0.05},
    "fox": {"jumped": 0.7, "ran": 0.1, "laughed": 0.15, "sat": 0.05},
    "dog": {"ran": 0.6, "laughed": 0.2, "sat": 0.2},
    "jumped": {"over": 0.9, "and": 0.1},
    "over": {"the": 0.95, "and": 0.05},
    "and": {"the": 0.8, "ran": 0.2},
}
WORDS = sorted(key for key in TARGET if " " not in key)

PREFIX = ("the", "quick", "brown", "fox")
DRAFTED = ("jumped", "over", "the", "lazy")
TEXT_LENGTH = 16  # tokens of the schedule's text
TOP = 3  # words shown of a row
SEEDS = 100  # among them every outcome of a round is found


class _Watched(TableModel):
    """A table model that keeps the rows of its last pass."""

    rows: Array

    def forward(self, chunks: Sequence[Chunk]) -> list[Array]:
        """See ``Model.forward``."""
        found = super().forward(chunks)
        self.rows = found[0]
        return found


def _table(language: Language) -> Table:
    rows = {tuple(map(WORDS.index, key.split())): _row(row) for key, row in language.items()}
    return {(): _row(dict.fromkeys(WORDS, 1 / len(WORDS))), **rows}


def _row(chances: Mapping[str, float]) -> list[float]:
    return [chances.get(word, 0.0) for word in WORDS]


def _words(tokens: Sequence[int]) -> list[str]:
    return [WORDS[token] for token in tokens]


def _engine(draft_length: int) -> tuple[Engine, _Watched]:
    options = ModelOptions(context_length=128)
    target = _Watched(_table(TARGET), options=options)
    draft = TableModel(_table(DRAFT), "draft", options=options)
    return Engine(target, draft, speculation=Speculation(draft_length=draft_length)), target


def _params(seed: int, max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=max_tokens)


def schedule(draft_length: int, draft_cost: float, verify_cost: float, seed: int) -> Json:
    """Figure 1: the same text, generated ordinarily and speculatively by the engine.

    Args:
        draft_length: tokens proposed per round, 1 to 8.
        draft_cost: of one drafted token, in plain steps, 0 to 1.
        verify_cost: of the pass over a draft, in plain steps, 0.1 to 4.
        seed: of the text.

    Raises:
        ParameterError: out of range.
    """
    check_costs(draft_length, 8, draft_cost, verify_cost)
    require(is_int(seed) and 0 <= seed < 2**31, f"the seed must be 0 or more, not {seed!r}")
    ordinary = _timed(_steps(0, seed), draft_cost, verify_cost)
    speculative = _timed(_steps(draft_length, seed), draft_cost, verify_cost)
    return {
        "prefix": list(PREFIX),
        "ordinary": ordinary,
        "speculative": speculative,
        "same": _text(ordinary) == _text(speculative),
        "speedup": ordinary["total"] / speculative["total"],
    }


def _text(run: Json) -> list[str]:
    return [token["word"] for one in run["rounds"] for token in one["tokens"]]


def check_costs(k: int, longest: int, draft_cost: float, verify_cost: float) -> None:
    """Refuse what the sliders do not offer.

    Raises:
        ParameterError: out of range.
    """
    require(is_int(k) and 1 <= k <= longest, f"the draft length is 1 to {longest}, not {k!r}")
    for name, cost, low, high in (("draft", draft_cost, 0, 1), ("verify", verify_cost, 0.1, 4)):
        good = is_number(cost) and low <= cost <= high
        require(good, f"the {name} cost must lie from {low} to {high}, not {cost!r}")


def _steps(draft_length: int, seed: int) -> list[Step]:
    engine, _ = _engine(draft_length)
    prompt = [WORDS.index(word) for word in PREFIX]
    return list(engine.stream(prompt, _params(seed, TEXT_LENGTH)))


def _timed(steps: Sequence[Step], draft_cost: float, verify_cost: float) -> Json:
    """Rounds one after another, in plain steps; a round without a draft is a plain step."""
    rounds, now = [], 0.0
    for step in steps:
        draft = len(step.drafted) * draft_cost
        verify = verify_cost if step.drafted else 1.0
        rounds.append(
            {
                "start": now,
                "draft": draft,
                "verify": verify,
                "drafted": len(step.drafted),
                "tokens": _labelled(step),
            }
        )
        now += draft + verify
    return {"rounds": rounds, "total": now, "passes": len(steps)}


def _labelled(step: Step) -> list[Json]:
    pairs = zip(_words(step.tokens), step.origins, strict=True)
    return [{"word": word, "origin": str(origin)} for word, origin in pairs]


@cache
def rounds() -> Json:
    """Figures 2 and 3: one prefix and one draft, judged by the engine in every possible way.

    The seeds are found by running the engine: the first one with which this draft is drafted and
    so many of it are accepted.
    """
    found: dict[int, Json] = {}
    for seed in range(SEEDS):
        step, target = _round(seed)
        if tuple(_words(step.drafted)) == DRAFTED and step.accepted not in found:
            found[step.accepted] = {"seed": seed, **_outcome(step, target)}
    outcomes = [found[accepted] for accepted in range(len(DRAFTED) + 1)]
    return {"prefix": list(PREFIX), "draft": list(DRAFTED), "outcomes": outcomes}


def _round(seed: int) -> tuple[Step, _Watched]:
    engine, target = _engine(len(DRAFTED))
    engine.submit([WORDS.index(word) for word in PREFIX], _params(seed, TEXT_LENGTH))
    (step,) = engine.step()
    return step, target


def _outcome(step: Step, target: _Watched) -> Json:
    rows = distribution(target.rows, _params(0, TEXT_LENGTH))
    *_, last = step.tokens
    return {
        "accepted": step.accepted,
        "added": WORDS[last],
        "origin": str(step.origins[-1]),
        "committed": _labelled(step),
        "discarded": list(DRAFTED[step.evaluated :]),
        "cached": target.length(0),
        "checks": [_check(row, at, step) for at, row in enumerate(rows)],
    }


def _check(row: Array, at: int, step: Step) -> Json:
    """What the target's row at one place of the draft sees, says, and decides."""
    best = np.argsort(-row, kind="stable")[:TOP]
    behind = at > step.accepted
    verdict = Origin.ACCEPTED if at < step.accepted else "unread" if behind else step.origins[-1]
    return {
        "prefix": [*PREFIX, *DRAFTED[:at]],
        "draft": DRAFTED[at] if at < len(DRAFTED) else None,
        "top": [{"word": WORDS[i], "p": float(row[i])} for i in best if row[i]],
        "drawn": None if behind else WORDS[step.tokens[at]],
        "verdict": str(verdict),
    }
