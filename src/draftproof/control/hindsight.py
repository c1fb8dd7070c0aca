"""How much faster the best fixed draft length would have been, seen from the end of an answer.

The record is what the rounds did. For each drafter and each place in its drafts it holds how often
the draft was right there of the times that this is known; for a drafter whose drafts are functions
of the text that is every round, for a draft model the rounds in which it spoke. A round of k drafts
would then have brought 1 + S_1 + ... + S_k tokens, S_i being the product of the first i of these
parts (Kaplan and Meier's estimate, as outcomes end at the first rejection). Both sides are timed by
the same table, so that the noise of the machine cancels.

A draft model speaks where it promises more than elsewhere, so the best fixed length looks better
here than it would have been: the regret is an upper bound of the true one on average, not exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Places:
    """How often drafts were right at each place, of the times that this is known."""

    right: list[int] = field(default_factory=list)
    known: list[int] = field(default_factory=list)

    def add(self, right: int, known: int) -> None:
        """Count a draft."""
        missing = known - len(self.known)
        self.right += [0] * missing
        self.known += [0] * missing
        for place in range(known):
            self.right[place] += place < right
            self.known[place] += 1

    def tokens(self) -> list[float]:
        """Tokens of a round by its number of drafts, from none on."""
        tokens, survival = [1.0], 1.0
        for right, known in zip(self.right, self.known, strict=True):
            survival *= right / known
            tokens.append(tokens[-1] + survival)
        return tokens


@dataclass(slots=True)
class Hindsight:
    """What the rounds of one answer did.

    Attributes:
        drafters: by place of the drafter.
        tokens: emitted.
        seconds: its share of its rounds, by the table.
    """

    drafters: list[Places]
    tokens: int = 0
    seconds: float = 0.0

    def regret(self, seconds: Sequence[Sequence[float]]) -> float | None:
        """The part of the best fixed length's speed that was not reached; below 0 beyond it.

        Args:
            seconds: for each drafter the seconds of a round by its number of drafts.

        Returns:
            None where nothing was emitted.
        """
        if not self.seconds:
            return None
        best = max(
            tokens / taken
            for places, row in zip(self.drafters, seconds, strict=True)
            for tokens, taken in zip(places.tokens(), row, strict=False)
        )
        return 1 - self.tokens / self.seconds / best
