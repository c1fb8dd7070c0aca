from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.drafters.lookup import LookupDrafter, SuffixIndex
from toys import ask


def longest_match(text: Sequence[int]) -> int:
    """Length of the longest ending that occurred before, by looking everywhere."""

    def occurred(ending: Sequence[int]) -> bool:
        starts = range(len(text) - len(ending))
        return any(text[i : i + len(ending)] == ending for i in starts)

    return next((m for m in range(len(text) - 1, 0, -1) if occurred(text[-m:])), 0)


@given(st.integers(1, 3).flatmap(lambda size: st.lists(st.integers(0, size), max_size=60)))
@settings(max_examples=300, deadline=None)
def test_the_index_equals_a_rescan(text: list[int]) -> None:
    index = SuffixIndex()
    for n, token in enumerate(text, 1):
        index.append(token)
        assert index.matched == longest_match(text[:n])
        start, end = index.source - index.matched, index.source
        assert index.matched == 0 or end < n
        assert text[start:end] == text[n - index.matched : n]


class Counted(dict):
    """A dictionary that counts how often it is looked into."""

    looks = 0

    def __getitem__(self, key: object) -> object:
        Counted.looks += 1
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        Counted.looks += 1
        return super().__contains__(key)

    def get(self, key: object, default: object = None) -> object:
        Counted.looks += 1
        return super().get(key, default)


@pytest.mark.parametrize("size", [2, 5, 1000])
@pytest.mark.parametrize("kind", ["random", "periodic", "nested"])
def test_a_token_costs_the_same_at_any_context_length(size: int, kind: str) -> None:
    rng = np.random.default_rng(0)
    text = {
        "random": rng.integers(0, size, 16_000).tolist(),
        "periodic": [i % size for i in range(16_000)],
        "nested": [(i & -i).bit_length() % size for i in range(1, 16_001)],
    }[kind]
    index, costs = SuffixIndex(), []
    index._next[0] = Counted()
    new_state = index._new_state
    index._new_state = lambda transitions, *rest: new_state(Counted(transitions), *rest)
    for start in (0, 8_000):
        Counted.looks = 0
        for token in text[start : start + 8_000]:
            index.append(token)
        costs.append(Counted.looks / 8_000)
    assert max(costs) < 10
    assert len(index._next) <= 2 * len(text)


def test_the_same_conversation_is_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, read = LookupDrafter(), []
    append = SuffixIndex.append
    monkeypatch.setattr(SuffixIndex, "append", lambda self, t: (read.append(t), append(self, t)))
    tokens = [1, 2, 3]
    for new in range(20):
        drafter.propose([ask(tokens)])
        tokens.append(new % 3)
    drafter.propose([ask(tokens, owner=1)])  # the next turn
    assert read == tokens


def test_lookup_copies_what_followed() -> None:
    drafter = LookupDrafter()
    (draft,) = drafter.propose([ask([7, 8, 9, 1, 2, 3, 7, 8], 3)])
    assert (draft.tokens, draft.rows) == ((9, 1, 2), None)


def test_lookup_prefers_the_longest_ending() -> None:
    (draft,) = LookupDrafter().propose([ask([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 1)])
    assert draft.tokens == (9,)


def test_a_repetition_runs_on_into_the_draft() -> None:
    (draft,) = LookupDrafter().propose([ask([5, 1, 2, 1, 2], 6)])
    assert draft.tokens == (1, 2, 1, 2, 1, 2)
    (draft,) = LookupDrafter().propose([ask([4, 4, 4], 5)])
    assert draft.tokens == (4,) * 5


@pytest.mark.parametrize("min_match", [1, 2, 3])
def test_short_matches_are_not_followed(min_match: int) -> None:
    (draft,) = LookupDrafter(min_match).propose([ask([1, 2, 9, 3, 1, 2], 1)])
    assert draft.tokens == ((9,) if min_match <= 2 else ())


def test_lookup_drafts_nothing_behind_an_end_token() -> None:
    (draft,) = LookupDrafter().propose([ask([1, 2, 3, 9, 4, 1, 2], 4, ends=frozenset([9]))])
    assert draft.tokens == (3, 9)


def test_lookup_reads_on_without_drafting() -> None:
    drafter = LookupDrafter()
    assert drafter.propose([ask([1, 2, 1, 2], 0)])[0].tokens == ()
    assert drafter.propose([ask([1, 2, 1, 2, 1], 1)])[0].tokens == (2,)


def test_another_conversation_in_the_slot_starts_afresh() -> None:
    drafter = LookupDrafter()
    drafter.propose([ask([1, 2, 3, 1, 2])])
    for owner, other_text in enumerate(([5, 1, 2], [1, 2], [1, 2, 3, 9, 1, 2]), 1):
        fresh = LookupDrafter().propose([ask(other_text)])
        assert drafter.propose([ask(other_text, owner=owner)]) == fresh


def test_slots_do_not_mix() -> None:
    drafter = LookupDrafter()
    one, two = drafter.propose([ask([1, 2, 3, 1, 2], 1, seq=0), ask([1, 2, 4, 1, 2], 1, seq=1)])
    assert (one.tokens, two.tokens) == ((3,), (4,))
