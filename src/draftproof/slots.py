"""What the sequences of a target's cache hold, shared by all engines of that target.

Engines that take turns on one target go on from what the others have read, as far as their texts
begin the same. Not here: the cache itself (``models``), and running sequences (``rounds.py``).
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from typing import Protocol

from draftproof.models import Model


class User(Protocol):
    """What runs sequences in the slots."""

    def park(self) -> None:
        """Another is about to use the target: write down what the slots hold now."""


class Slots:
    """The tokens that each slot's leading entries were computed from.

    Args:
        target: whose cache it is.
    """

    def __init__(self, target: Model) -> None:
        self._target = target
        self._held: list[list[int]] = [[] for _ in range(target.capabilities.max_sequences)]
        self._user: weakref.ref[User] | None = None

    def claim(self, user: User) -> bool:
        """Let a user have the target; whether another has had it since."""
        last = self._user() if self._user else None
        if last is user:
            return False
        if last is not None:
            last.park()
        self._user = weakref.ref(user)
        return True

    def hold(self, slot: int, tokens: list[int]) -> None:
        """Write down what the first entries of a slot were computed from."""
        self._held[slot] = tokens

    def known(self, slot: int, tokens: Sequence[int]) -> int:
        """How many leading tokens are in a slot's cache."""
        held = self._held[slot][: self._target.length(slot)]
        pairs = zip(held, tokens, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(held), len(tokens)))

    def free(self, taken: Collection[int]) -> list[int]:
        """The other slots."""
        return [slot for slot in range(len(self._held)) if slot not in taken]

    def best(self, free: Collection[int], tokens: Sequence[int]) -> tuple[int, int]:
        """A free slot, and how many leading tokens are in its cache: as many as possible.

        Between equals the one goes whose entries are the smallest loss.
        """
        known = {slot: self.known(slot, tokens) for slot in free}
        slot = max(free, key=lambda slot: (known[slot], -len(self._held[slot])))
        return slot, known[slot]


# By the target's id; a target lives at least as long as what uses it, so no id stands for two.
_slots: weakref.WeakValueDictionary[int, Slots] = weakref.WeakValueDictionary()


def slots_of(target: Model) -> Slots:
    """The slots of a target, the same for all who ask as long as one of them lives."""
    slots = _slots.get(id(target))
    if slots is None:
        slots = _slots[id(target)] = Slots(target)
    return slots
