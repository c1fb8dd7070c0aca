"""A text the client expects, as a free draft: OpenAI's Predicted Outputs.

It pays where most of the answer is known before, as in an edited file. Not a ``Drafter``: each
request brings its own, and whatever else drafts is not asked while it is followed.
"""

from __future__ import annotations

from collections.abc import Sequence

ANCHOR = 3  # tokens by which a text that went another way is found again
SHORTEST, LONGEST = 4, 32  # of a draft: as many as have agreed since, between these


class Prediction:
    """Follows an answer through the predicted text.

    Args:
        tokens: the predicted text.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)
        self._read = 0  # tokens of the answer
        self._at = 0  # where the answer is in the text, or was last
        self._agreed = 0  # tokens since it was found there
        self._lost = False

    def propose(self, answer: Sequence[int], length: int) -> tuple[int, ...]:
        """What comes next in the text, ``length`` tokens at most; nothing where it is lost.

        Args:
            answer: the tokens so far; from call to call they only grow.
            length: most tokens to propose.
        """
        for end in range(self._read + 1, len(answer) + 1):
            self._follow(answer, end)
        self._read = len(answer)
        count = min(length, max(SHORTEST, min(LONGEST, self._agreed)))
        return () if self._lost else tuple(self._tokens[self._at : self._at + count])

    def _follow(self, answer: Sequence[int], end: int) -> None:
        if not self._lost and self._tokens[self._at : self._at + 1] == [answer[end - 1]]:
            self._at += 1
            self._agreed += 1
            return
        found = self._find(list(answer[max(0, end - ANCHOR) : end]))
        self._lost, self._agreed = found is None, 0
        self._at = self._at if found is None else found

    def _find(self, ending: list[int]) -> int | None:
        """Behind the next place where the text goes as the answer does, or else the first one."""
        if len(ending) < ANCHOR:
            return None
        last = len(self._tokens) - ANCHOR + 1
        places = (*range(self._at, last), *range(min(self._at, last)))
        return next(
            (at + ANCHOR for at in places if self._tokens[at : at + ANCHOR] == ending), None
        )
