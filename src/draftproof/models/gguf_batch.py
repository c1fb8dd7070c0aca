"""The arrays behind a ``llama_batch``, allocated once and filled in place: this is the hot path."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from draftproof.models.llama import lib


class Batch:
    """Tokens of one pass, each with its position, its sequence, and whether its logits are wanted.

    Args:
        capacity: most tokens it can hold.
    """

    def __init__(self, capacity: int) -> None:
        self._tokens: Any = (ctypes.c_int32 * capacity)()
        self._positions: Any = (ctypes.c_int32 * capacity)()
        self._sequences: Any = (ctypes.c_int32 * capacity)()
        self._wanted: Any = (ctypes.c_int8 * capacity)()
        # One sequence a token, always: the pointers to the sequence numbers never change.
        self._ones = np.ones(capacity, np.int32)
        offsets = np.arange(capacity, dtype=np.uintp) * 4
        self._pointers = offsets + ctypes.addressof(self._sequences)
        self._first = self._at(0)

    def put(self, at: int, tokens: Sequence[int], position: int, seq: int, logits: int) -> int:
        """Write one chunk from index ``at`` on; the index after it."""
        count = len(tokens)
        if count == 1:  # the usual case of a draft model, and three times as fast
            self._tokens[at], self._positions[at] = tokens[0], position
            self._sequences[at], self._wanted[at] = seq, logits
            return at + 1
        end = at + count
        self._tokens[at:end] = tokens
        self._positions[at:end] = range(position, position + count)
        self._sequences[at:end] = (seq,) * count
        self._wanted[at:end] = (0,) * (count - logits) + (1,) * logits
        return end

    def window(self, start: int, count: int) -> Any:
        """The ``llama_batch`` of ``count`` tokens from index ``start`` on."""
        batch = self._at(start) if start else self._first
        batch.n_tokens = count
        return batch

    def rows(self, start: int, count: int) -> int:
        """How many of those want logits."""
        return sum(self._wanted[start : start + count])

    def _at(self, start: int) -> Any:
        types = dict(lib.llama_batch._fields_)

        def pointer(field: str, base: int, size: int) -> Any:
            return ctypes.cast(base + start * size, types[field])

        return lib.llama_batch(
            token=pointer("token", ctypes.addressof(self._tokens), 4),
            pos=pointer("pos", ctypes.addressof(self._positions), 4),
            n_seq_id=pointer("n_seq_id", self._ones.ctypes.data, 4),
            seq_id=pointer("seq_id", self._pointers.ctypes.data, ctypes.sizeof(ctypes.c_void_p)),
            logits=pointer("logits", ctypes.addressof(self._wanted), 1),
        )
