"""Keys and values of many sequences in memory that is set aside once, and who looks at what.

A pass is *packed*: the chunks of all sequences lie one behind the other in a single row of
tokens, so that no layer works on padding. ``Cache`` writes each token to its place, ``Pass`` says
where the places are, and ``hf_attention.py`` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from typing import Any, NamedTuple

import torch
import transformers

from draftproof.models import Chunk

Tensor = Any  # torch.Tensor; mypy does not follow torch


class Span(NamedTuple):
    """One chunk's part of a pass.

    Attributes:
        seq: the sequence.
        start, end: positions of its first token, and behind its last.
        row: where its first token lies in the packed row.
    """

    seq: int
    start: int
    end: int
    row: int


class Pass:
    """The chunks of one call of ``forward``, packed.

    Args:
        chunks: what to append.
        lengths: entries cached for each sequence.
        context: most entries of a sequence.
        device: where the model is.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        lengths: Sequence[int] | Mapping[int, int],
        context: int,
        device: Any,
    ) -> None:
        self.spans: list[Span] = []
        self.context = context
        self.device = device
        tokens: list[int] = []
        positions: list[int] = []
        places: list[int] = []
        rows: list[int] = []
        for seq, part, logits in chunks:
            start, row = lengths[seq], len(tokens)
            end = start + len(part)
            self.spans.append(Span(seq, start, end, row))
            tokens.extend(part)
            positions.extend(range(start, end))
            places.extend(range(seq * context + start, seq * context + end))
            rows.extend(range(len(tokens) - logits, len(tokens)))
        self.tokens = self._tensor([tokens])  # [1, N]
        self.positions = self._tensor([positions])  # [1, N]
        self.places = self._tensor(places)  # [N], in the flat cache
        self.rows = self._tensor(rows)  # [R], those that want logits

    def _tensor(self, numbers: list[Any]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.device)

    @cached_property
    def causal(self) -> list[View]:
        """What each chunk looks at where every token sees all before it."""
        return [self._causal(span) for span in self.spans]

    def _causal(self, span: Span) -> View:
        count = span.end - span.start
        if count == 1 or not span.start:
            return self.view(span, 0, None, causal=count > 1)
        queries = torch.arange(span.start, span.end, device=self.device)
        return self.view(span, 0, torch.arange(span.end, device=self.device) <= queries[:, None])

    def view(self, span: Span, first: int, mask: Tensor | None, causal: bool = False) -> View:
        """A chunk's view of its sequence's entries from position ``first`` on."""
        base = span.seq * self.context
        rows = slice(span.row, span.row + span.end - span.start)
        return View(rows, slice(base + first, base + span.end), mask, causal, self.device)


class FixedPass(Pass):
    """A pass of a fixed shape, whose numbers change: what is in it is a function of its buffers.

    Args:
        running: the first pass of the shape.
        chunks: what it appends.
        reach: every token looks at that many entries, through a mask.
    """

    def __init__(self, running: Pass, chunks: Sequence[Chunk], reach: int) -> None:
        starts = {span.seq: span.start for span in running.spans}
        super().__init__(chunks, starts, running.context, running.device)
        self._reach = reach

    def fill(self, running: Pass) -> None:
        """Take over the numbers of another pass of this shape."""
        self.tokens.copy_(running.tokens)
        self.positions.copy_(running.positions)
        self.places.copy_(running.places)

    def views(self, mask_function: Callable[..., Tensor]) -> list[View]:
        """What each chunk looks at, by a function of positions."""
        return [self._view(span, mask_function) for span in self.spans]

    def _view(self, span: Span, mask_function: Callable[..., Tensor]) -> View:
        rows = slice(span.row, span.row + span.end - span.start)
        queries = self.positions[0, rows, None]
        entries = torch.arange(self._reach, device=self.device)[None]
        seen = mask_function(0, 0, queries, entries).expand(len(queries), self._reach)
        base = span.seq * self.context
        return View(rows, slice(base, base + self._reach), seen, False, self.device)


class View:
    """What the tokens of one chunk look at in one kind of layer.

    Attributes:
        rows: the chunk's tokens in the packed row, n of them.
        entries: their sequence's entries in the flat cache, T of them.
        mask: [n, T], True where a token looks at an entry; None where all look at all.
        causal: instead of a mask, where n = T: token i looks at the entries up to i.
    """

    __slots__ = ("_device", "_scores", "causal", "entries", "mask", "rows")

    def __init__(
        self, rows: slice, entries: slice, mask: Tensor | None, causal: bool, device: Any
    ) -> None:
        self.rows, self.entries, self.mask, self.causal = rows, entries, mask, causal
        self._device = device
        self._scores: dict[tuple[int, Any], Tensor] = {}

    def scores(self, repeats: int, dtype: Any) -> Tensor:
        """What to add to the scores, once per query head of a group, [repeats * n, T]."""
        scores = self._scores.get((repeats, dtype))
        if scores is None:
            seen = self._seen()
            scores = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
            scores = scores.masked_fill_(~seen, float("-inf")).repeat(repeats, 1)
            self._scores[repeats, dtype] = scores
        return scores

    def _seen(self) -> Tensor:
        if self.mask is not None:
            return self.mask
        count, entries = self.rows.stop - self.rows.start, self.entries.stop - self.entries.start
        seen = torch.ones(count, entries, dtype=torch.bool, device=self._device)
        return seen.tril() if self.causal else seen


current: ContextVar[Pass] = ContextVar("current")
"""The pass that is running; transformers has no argument to hand it through."""


class Cache(transformers.Cache):  # type: ignore[misc]
    """Keys and values, per layer [H, sequences * context, D], made when the layer is first used.

    Where a sequence's entries end is kept by the model, so that forgetting them costs nothing.

    Args:
        sequences: how many.
        context: most entries of each.
        clean: whether it begins with zeros, for passes that read behind a mask what nobody wrote.
    """

    def __init__(self, sequences: int, context: int, clean: bool = False) -> None:
        super().__init__(layers=[])
        self._clean = clean
        self.stores: dict[int, tuple[Tensor, Tensor]] = {}
        self._places = sequences * context

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Write a pass's keys and values [1, H, N, D] to their places; all there is, flat."""
        store = self.stores.get(layer_idx)
        if store is None:
            store = self._make(key_states), self._make(value_states)
            self.stores[layer_idx] = store
        keys, values = store
        places = current.get().places
        keys.index_copy_(1, places, key_states[0])
        values.index_copy_(1, places, value_states[0])
        return store

    def _make(self, states: Tensor) -> Tensor:
        _, heads, _, size = states.shape
        make = states.new_zeros if self._clean else states.new_empty
        return make((heads, self._places, size))

    def bytes_per_token(self) -> int:
        """What one token takes over all layers that were used."""
        parts = (part for store in self.stores.values() for part in store)
        return sum(part.element_size() * part.shape[0] * part.shape[2] for part in parts)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Nothing, as far as transformers is concerned: positions and masks come from us."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Length and offset of a mask over the packed row itself."""
        return query_length, 0
