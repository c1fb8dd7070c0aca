"""Is a difference between two texts the kernels' rounding, or a fault of ours?

A pass over one token and a pass over several run different kernels, and their logits differ by
rounding. Where two tokens are closer than that, either may be taken. So the first difference is
judged on the logits of passes over one token each, teacher-forced on what the texts have in
common, and the bound is measured: the largest change of a logit, at the same positions of the
same text, when it is read in wider passes. Where wide passes give the very same bits the bound
is 0, and the texts have to be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftproof import Chunk, Model, SamplingParams
from draftproof.noise import uniforms
from draftproof.sampling import distribution

LARGEST_NOISE = 0.5  # logits span about 30: more than this is no rounding


@dataclass(frozen=True)
class Tie:
    """The first difference: two tokens, how far apart they are, and how far rounding moves them."""

    position: int
    ours: int
    theirs: int
    gap: float
    bound: float

    def __str__(self) -> str:
        return (
            f"at {self.position}: {self.ours} or {self.theirs}, "
            f"gap {self.gap:.4f}, bound {self.bound:.4f}"
        )


def read(model: Model, tokens: Sequence[int], start: int, width: int) -> np.ndarray:
    """Logits for the tokens from ``start`` on, [n, V], read ``width`` at a time."""
    model.truncate(0, 0)
    chunks = [tokens[:start], *(tokens[i : i + width] for i in range(start, len(tokens), width))]
    rows = []
    for number, part in enumerate(chunks):
        (logits,) = model.forward([Chunk(0, part, len(part) if number else 1)])
        rows.append(np.array(logits))
    model.truncate(0, 0)
    return np.concatenate(rows)[: len(tokens) - start]


class Judge:
    """Judges one text's differences.

    Args:
        model: the target.
        tokens: prompt and plain text.
        start: length of the prompt.
        params: how the text was drawn.
        width: tokens of a wide pass.
    """

    def __init__(
        self, model: Model, tokens: Sequence[int], start: int, params: SamplingParams, width: int
    ) -> None:
        self.start, self.params = start, params
        self.rows = read(model, tokens, start, 1)
        self.noise = float(np.abs(self.rows - read(model, tokens, start, width)).max())
        assert self.noise < LARGEST_NOISE

    def tie(self, place: int, ours: int, theirs: int) -> Tie:
        """The two tokens at a place of the text, of which one-token passes take ``ours``."""
        row, position = self.rows[place], self.start + place
        scores = self._scores(row, position)
        assert int(np.argmax(scores)) == ours
        gap = float(scores[ours] - scores[theirs])
        if not self.params.greedy:
            gap = min(gap, self._edge(row, ours), self._edge(row, theirs))
        return Tie(position, ours, theirs, gap, 2 * self.noise / (self.params.temperature or 1))

    def _scores(self, row: np.ndarray, position: int) -> np.ndarray:
        """What the choice is the largest of: logits, or log p plus the seed's noise."""
        if self.params.greedy:
            return row
        p = distribution(row[None], self.params)[0].astype(np.float64)
        with np.errstate(divide="ignore"):
            return np.log(p) - np.log(
                -np.log(uniforms(self.params.seed, position, np.arange(p.size)))
            )

    def _edge(self, row: np.ndarray, token: int) -> float:
        """How far, in log odds, the mass above a token is from top-p: at 0 it is in or out.

        Logits that move by the noise move log odds by at most twice as much.
        """
        p = distribution(row[None], SamplingParams(temperature=self.params.temperature))[0]
        above, top = float(p[p > p[token]].sum(dtype=np.float64)), self.params.top_p
        if not 0 < above < 1 or top == 1:
            return np.inf
        return abs(np.log(above / (1 - above)) - np.log(top / (1 - top)))


def first_difference(
    model: Model,
    prompt: Sequence[int],
    plain: Sequence[int],
    other: Sequence[int],
    params: SamplingParams,
    width: int,
) -> Tie | None:
    """None where two texts are equal, and the tie where they part; the caller judges it."""
    pairs = enumerate(zip(plain, other, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), None)
    if place is None:
        assert len(plain) == len(other)
        return None
    judge = Judge(model, [*prompt, *plain], len(prompt), params, width)
    return judge.tie(place, plain[place], other[place])
