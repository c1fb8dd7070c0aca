"""Drafts copied from the text so far: what followed the longest earlier occurrence of its ending.

Prompt and output alike are searched. No second model, no training; it pays where the answer
repeats the prompt (editing, extraction, translation, code). The drafts are deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.drafters import DraftRequest, Record
from draftproof.types import Draft


class SuffixIndex:
    """A suffix automaton, grown token by token (Blumer et al., 1985).

    Each state is a set of substrings that end at the same places; ``link`` leads to the longest
    ending that also ends elsewhere. So the link of the newest state is the longest ending of the
    text that occurred before. A token costs constant time on average, whatever the length.
    """

    def __init__(self) -> None:
        self.matched = 0
        self.source = 0
        self._size = 0
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [0]  # where the latest occurrence met at this state ends
        self._last = 0

    def append(self, token: int) -> None:
        """Take in a token.

        Afterwards ``matched`` is the length of the longest ending that occurred before, and
        ``source`` is the position behind that occurrence.
        """
        self._size += 1
        state = self._new_state({}, self._last_length() + 1, self._size)
        link = self._link_of(token, state)
        self._link[state] = link
        self._last = state
        self.matched, self.source = self._length[link], self._end[link]
        self._end[link] = self._size

    def _last_length(self) -> int:
        return self._length[self._last]

    def _new_state(self, transitions: dict[int, int], length: int, end: int) -> int:
        self._next.append(transitions)
        self._length.append(length)
        self._end.append(end)
        self._link.append(0)
        return len(self._next) - 1

    def _link_of(self, token: int, state: int) -> int:
        """Add the transitions to the new state; find (or split off) the state it links to."""
        at = self._last
        while at >= 0 and token not in self._next[at]:
            self._next[at][token] = state
            at = self._link[at]
        if at < 0:
            return 0
        there = self._next[at][token]
        if self._length[there] == self._length[at] + 1:
            return there
        return self._split(at, token, there)

    def _split(self, at: int, token: int, there: int) -> int:
        """The shorter strings of ``there`` get a state of their own: they occur once more now."""
        copy = self._new_state(dict(self._next[there]), self._length[at] + 1, self._end[there])
        self._link[copy], self._link[there] = self._link[there], copy
        while at >= 0 and self._next[at].get(token) == there:
            self._next[at][token] = copy
            at = self._link[at]
        return copy


class LookupDrafter:
    """Proposes what followed the longest earlier occurrence of the current ending.

    Args:
        min_match: shortest ending worth following, in tokens.
    """

    name = "lookup"

    def __init__(self, min_match: int = 2) -> None:
        self._min_match = min_match
        self._records: dict[int, tuple[Record, SuffixIndex]] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """See ``Drafter.propose``."""
        return [self._propose(request) for request in requests]

    def evidence(self, request: DraftRequest) -> int:
        """See ``FreeDrafter.evidence``: tokens of the ending that occurred before."""
        return self._up_to_date(request)[1].matched

    def _propose(self, request: DraftRequest) -> Draft:
        record, index = self._up_to_date(request)
        if index.matched < self._min_match:
            return Draft()
        draft: list[int] = []
        for position in range(index.source, index.source + request.length):
            # A repetition may run on into the draft itself.
            inside = position - len(record.tokens)
            draft.append(record.tokens[position] if inside < 0 else draft[inside])
            if draft[-1] in request.end_tokens:
                break
        return Draft(tuple(draft))

    def _up_to_date(self, request: DraftRequest) -> tuple[Record, SuffixIndex]:
        record, index = self._records.get(request.seq, (Record(), SuffixIndex()))
        if record.agree(request) < len(record.tokens):
            # An index cannot forget: another conversation starts a new one.
            record, index = Record(), SuffixIndex()
            record.agree(request)
        for token in request.tokens[len(record.tokens) :]:
            record.tokens.append(token)
            index.append(token)
        self._records[request.seq] = (record, index)
        return record, index

    def close(self) -> None:
        """See ``Drafter.close``."""
        self._records.clear()
