"""Is a difference between two texts the kernels' rounding, or a fault?

A pass over one token and a pass over several run different kernels, and their logits differ by
rounding. Where two tokens are closer than that, either may be taken. So a difference is judged on
the logits of passes over one token each, teacher-forced on what the texts have in common, and the
bound is measured: the largest change of a logit at the same positions of the same text when it is
read in wider passes. Where wide passes give the very same bits the bound is 0.

For texts that run together it is read by several sequences at once. All of them read the same text,
so what mixes up their entries at one position changes nothing here, and cannot excuse itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from draftproof.check.lab import Lab, plain_array
from draftproof.models import Chunk, Model
from draftproof.noise import At, Purpose, SeededNoise
from draftproof.params import SamplingParams
from draftproof.sampling import distribution
from draftproof.types import Array

LARGEST_NOISE = 3.0  # logits span about 30: what is more explains nothing


@dataclass(frozen=True, slots=True)
class Tie:
    """A place where two texts differ.

    Attributes:
        position: of the token, counted from the start of the prompt.
        plain, other: the two tokens.
        gap: how far two logits must move against each other to swap them.
        bound: how far rounding moves them.
    """

    position: int
    plain: int
    other: int
    gap: float
    bound: float

    @property
    def near(self) -> bool:
        """Whether rounding explains it."""
        return self.gap <= self.bound

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        return {
            "position": self.position,
            "plain": self.plain,
            "other": self.other,
            "gap": self.gap if self.gap < inf else None,
            "bound": self.bound,
        }


def read(model: Model, tokens: Sequence[int], start: int, width: int) -> Array:
    """Logits behind the tokens from ``start - 1`` on, [n, V], read ``width`` at a time.

    Beginning with empty caches, which are left empty.
    """
    (rows,) = read_together(model, tokens, start, width, 1)
    return rows


def read_together(
    model: Model, tokens: Sequence[int], start: int, width: int, count: int
) -> list[Array]:
    """The same for each of ``count`` sequences that read these tokens in the same passes."""
    empty(model, count)
    chunks = [tokens[:start], *(tokens[i : i + width] for i in range(start, len(tokens), width))]
    passes = []
    for number, part in enumerate(chunks):
        wanted = len(part) if number else 1
        logits = model.forward([Chunk(seq, part, wanted) for seq in range(count)])
        passes.append([plain_array(rows) for rows in logits])
    empty(model, count)
    return [np.concatenate(rows) for rows in zip(*passes, strict=True)]


def empty(model: Model, count: int) -> None:
    """Forget what the first ``count`` sequences hold."""
    for seq in range(count):
        model.truncate(seq, 0)


def rounding(model: Model, tokens: Sequence[int], start: int, width: int, count: int = 1) -> float:
    """Largest change of a logit behind the prompt from passes over one token of one sequence.

    Args:
        model: the target.
        tokens: of the text.
        start: length of the prompt.
        width: tokens of each sequence in the other passes.
        count: sequences in them.
    """
    one = read(model, tokens, start, 1)
    return max(distance(one, rows) for rows in read_together(model, tokens, start, width, count))


def all_rounding(
    model: Model, tokens: Sequence[int], start: int, width: int, count: int = 1
) -> float:
    """The same for every width up to this one, and for every way the passes of one may fall."""
    one, largest = read(model, tokens, start, 1), 0.0
    shifts = range(max(1 - width, 1 - start), min(width, len(tokens) - start))
    for shift in shifts if count == 1 else (0,):
        for each in range(1, width + 1):
            for rows in read_together(model, tokens, start + shift, each, count):
                largest = max(largest, distance(one[max(shift, 0) :], rows[max(-shift, 0) :]))
    return largest


def distance(one: Array, other: Array) -> float:
    """The largest difference of two arrays of logits, which may hold the same infinities."""
    with np.errstate(invalid="ignore"):
        return float(np.nan_to_num(np.abs(one - other), nan=0.0, posinf=inf).max(initial=0.0))


class Judge:
    """Judges where other texts part from one text.

    Args:
        lab: whose target wrote them.
        prompt, plain: tokens of the text.
        params: how it was drawn.
        width: most tokens of one text in the passes that the other texts were read in.
        count: texts in those passes.
        noise: what rounding was seen to do in such passes already.
    """

    def __init__(
        self,
        lab: Lab,
        prompt: Sequence[int],
        plain: Sequence[int],
        params: SamplingParams,
        width: int,
        count: int = 1,
        noise: float = 0.0,
    ) -> None:
        tokens, start = [*prompt, *plain], len(prompt)
        self.start, self.params = start, params
        self.rows = lab.rows(prompt, plain, read(lab.target, tokens, start, 1), params)
        passes = lab.target, tokens, start, width, count
        self.noise = noise or rounding(*passes)
        self._thorough: Callable[[], float] = lambda: all_rounding(*passes)

    def tie(self, place: int, plain: int, other: int) -> Tie:
        """The two tokens at a place of the text; what looks like none is measured again."""
        row, position = self.rows[place], self.start + place
        gap = max(self._gap(row, position, token) for token in (plain, other))
        if gap > 2 * self.noise:
            self.noise = max(self.noise, self._thorough())
        return Tie(position, plain, other, gap, 2 * min(self.noise, LARGEST_NOISE))

    def _gap(self, row: Array, position: int, token: int) -> float:
        """Twice the least change of every logit [V] that makes ``token`` the choice; inf for none.

        For the filters too: a token may be chosen as another one falls behind a cut-off.
        """
        first = self._choice(row, position)
        if first == token:
            return 0.0
        for change in np.geomspace(1e-4, LARGEST_NOISE, 60):
            for moved in _moved(row, token, first, float(change)):
                if self._choice(moved, position) == token:
                    return 2 * float(change)
        return inf

    def _choice(self, row: Array, position: int) -> int:
        """The token that is taken: the largest logit, or the winner of the seed's race."""
        if self.params.greedy:
            return int(row.argmax())
        assert self.params.seed is not None
        return SeededNoise(self.params.seed).draw(
            distribution(row[None], self.params)[0], At(position, position, Purpose.TARGET)
        )


def _moved(row: Array, token: int, rival: int, change: float) -> Iterator[Array]:
    """The ways to move logits [V] that favour a token most: alone, or where a filter decides."""
    for ours, others in ((1, -1), (-1, 1), (1, 1)):
        moved = row + others * change
        moved[token] = row[token] + ours * change
        moved[rival] = row[rival] - change
        yield moved
    alone = row - change
    alone[token] = row[token] + change
    yield alone
