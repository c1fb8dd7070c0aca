"""Widths of passes that give the same bits: finding them, and reading a text with them.

How many tokens go through a model together decides which kernels run and in which order they
sum, so that the same token at the same place gets other bits from another width. Nothing is taken
from a file's type or a backend's name here: what is the same is measured, by reading a text in
different ways.

Not here: the model that keeps to what was found (``bit_exact.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, cycle, takewhile
from typing import TypeAlias

import numpy as np
from array_api_compat import array_namespace

from draftproof.errors import ModelLoadError
from draftproof.models import Chunk, Model
from draftproof.types import Array

NARROW = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
WIDE = (32, 48, 128, 256)  # mostly for prompts; they are tried behind a class of narrow ones
ALIGNED = 8  # width where places count too
PLACES = (0, 250, 505)  # a class is tried at the beginning, and across 256 and 512 entries
STRETCH = 24  # tokens that are read at each of them
_TYPICAL = range(1, 10)  # tokens of a pass, for choosing: one, and the verification of some drafts
_PASS = 4  # what a pass costs beside its tokens, in tokens

_Cut: TypeAlias = list[tuple[int, int]]
"""A way to read a text, over and over: tokens of it in a pass, and drafts that are rejected."""


@dataclass(frozen=True, slots=True)
class Widths:
    """A class of widths.

    Attributes:
        widths: ascending; each pass is padded to the next of them, and longer ones are cut.
        align: passes begin at multiples of it; 1 where they may begin anywhere.
    """

    widths: tuple[int, ...]
    align: int = 1

    def span(self, start: int, end: int, context: int) -> tuple[int, int, int]:
        """A pass that reads on from ``start``, at most to ``end``.

        Where padding would pass the context, the pass begins earlier and reads tokens again.

        Args:
            start: entries that are cached.
            end: where the text ends.
            context: most entries of a sequence.

        Returns:
            Where the pass begins, where the text in it ends, and how wide it is.
        """
        begin = start - start % self.align
        end = min(end, begin + self.widths[-1])
        width = next(width for width in self.widths if width >= end - begin)
        return min(begin, context - width), end, width

    @property
    def cost(self) -> float:
        """Of typical passes, in tokens. Not measured: the choice must be the same every time."""
        starts = range(self.align)
        return sum(self._cost(at, at + n) for at in starts for n in _TYPICAL) / self.align

    def _cost(self, at: int, end: int) -> int:
        total = 0
        while at < end:
            _, at, width = self.span(at, end, end + 2 * self.widths[-1])
            total += _PASS + width
        return total

    def __str__(self) -> str:
        first, last = self.widths[0], self.widths[-1]
        sizes = f"{first}..{last}" if last > first else f"{first}"
        return f"{sizes} tokens" + (f" from multiples of {self.align} on" * (self.align > 1))


def read(
    model: Model, widths: Widths, seq: int, text: Sequence[int], wanted: int, padding: int = 0
) -> Iterator[Array]:
    """Read a text on from what is cached of it, in passes of these widths; cached is the text then.

    A pass has logits for all of its tokens or for none: the head's width counts as well.

    Args:
        model: what reads.
        widths: how wide passes may be.
        seq: the sequence.
        text: all its tokens; what is cached are the first of them.
        wanted: position of the first token whose logits are wanted.
        padding: the token that fills passes up; its entries are forgotten.

    Yields:
        Logits of the tokens from ``wanted`` on, [n, V], valid until the next pass.
    """
    start = model.length(seq)
    while start < len(text):
        begin, end, width = widths.span(start, len(text), model.capabilities.context_length)
        model.truncate(seq, begin)
        tokens = [*text[begin:end], *[padding] * (begin + width - end)]
        (rows,) = model.forward([Chunk(seq, tokens, width if end > wanted else 0)])
        model.truncate(seq, end)
        if end > wanted:
            yield rows[max(start, wanted) - begin : end - begin]
        start = end


def find(model: Model) -> Widths:
    """The cheapest class of widths that holds wherever it is tried.

    Raises:
        ModelLoadError: there is none.
    """
    context = model.capabilities.context_length
    text = sample(model, PLACES[-1] + WIDE[-1])
    classes = [Widths(group) for group in _groups(model, text) if len(group) > 1]
    classes.append(Widths((min(ALIGNED, context),), min(ALIGNED, context)))
    sequences = (0, model.capabilities.max_sequences - 1, 0)
    for widths in sorted(classes, key=lambda widths: widths.cost):
        widths = _widened(model, widths, text)
        _forget(model, sequences)
        if all(holds(model, widths, text, place, sequences) for place in places(context)):
            _forget(model, sequences)
            return widths
    raise ModelLoadError(
        f"{model.name} cannot be run bit-exactly: passes of the same width over the same text gave "
        "different logits; leave bit-exact mode out"
    )


def places(context: int) -> list[int]:
    """Where a class is tried, ascending."""
    return sorted({min(place, max(0, context - STRETCH)) for place in PLACES})


def holds(
    model: Model, widths: Widths, text: Sequence[int], place: int, sequences: Sequence[int]
) -> bool:
    """Whether a text gets the same bits however it is cut: as prompt, as verified, as decoded.

    Args:
        model: what reads; of each sequence nothing but the beginning of the text may be cached.
        widths: the class.
        text: longer than ``place``.
        place: where logits are looked at from.
        sequences: three, which read the text one after the other.
    """
    text = text[: place + STRETCH]
    wanted: Array = None
    for seq, cut in zip(sequences, _cuts(widths), strict=True):
        rows = _read_cut(model, widths, seq, text, place, cut)
        if wanted is None:
            wanted = rows
        elif not _equal(wanted, rows):
            return False
    return True


def sample(model: Model, count: int) -> list[int]:
    """Arbitrary tokens, always the same; as many as the context holds at most."""
    count = min(count, model.capabilities.context_length)
    draws = np.random.default_rng(1).integers(0, model.capabilities.vocabulary, count)
    return [int(token) for token in draws]


def _cuts(widths: Widths) -> tuple[_Cut, _Cut, _Cut]:
    """As a prompt; as verified, with passes of every width; as decoded."""
    verified = [(min(1 + i % 3, width), width) for i, width in enumerate(3 * widths.widths)]
    return [(STRETCH, 1)], [(size, width - size) for size, width in verified], [(1, 0)]


def _read_cut(
    model: Model, widths: Widths, seq: int, text: Sequence[int], place: int, cut: _Cut
) -> Array:
    """Logits from ``place`` on, [n, V], read piece by piece."""
    model.truncate(seq, place)
    parts, at = [], place
    for size, rejected in cycle(cut):
        end = min(at + size, len(text))
        drafts = [0] * min(rejected, model.capabilities.context_length - end)
        rows = _read_all(model, widths, seq, [*text[:end], *drafts], at, padding=size % 2)
        model.truncate(seq, end)
        parts.append(rows[: end - at])
        at = end
        if at == len(text):
            break
    return joined(parts)


def _read_all(
    model: Model, widths: Widths, seq: int, text: Sequence[int], wanted: int, padding: int = 0
) -> Array:
    """What ``read`` yields, as one array that is kept, [n, V]."""
    return joined([copy(rows) for rows in read(model, widths, seq, text, wanted, padding)])


def _groups(model: Model, text: Sequence[int]) -> list[tuple[int, ...]]:
    """The narrow widths, parted into those that give the same bits at all places."""
    context = model.capabilities.context_length
    groups = [tuple(width for width in NARROW if width <= context)]
    for place in places(context):
        parts = [_parted(model, group, text, place) for group in groups if len(group) > 1]
        groups = [group for group in groups if len(group) == 1] + list(chain(*parts))
    return groups


def _parted(
    model: Model, group: Sequence[int], text: Sequence[int], place: int
) -> list[tuple[int, ...]]:
    """A group of widths, parted into those that give the same bits at this place."""
    parts: list[tuple[Array, list[int]]] = []
    for width in group:
        _reach(model, text, place)
        rows = _read_all(model, Widths((width,)), 0, text[: place + NARROW[-1]], place, width % 2)
        same = next((members for first, members in parts if _equal(first, rows)), None)
        if same is None:
            parts.append((rows, [width]))
        else:
            same.append(width)
    return [tuple(members) for _, members in parts]


def _widened(model: Model, widths: Widths, text: Sequence[int]) -> Widths:
    """A class with the wide ones that belong to it too."""
    context = model.capabilities.context_length
    wide = [width for width in WIDE if width <= context and widths.align == 1]
    _forget(model, [0])
    for place in places(context):
        belongs = partial(_belongs, model, widths, text, place)
        wide = list(takewhile(belongs, wide))
    return replace(widths, widths=(*widths.widths, *wide))


def _belongs(model: Model, widths: Widths, text: Sequence[int], place: int, wide: int) -> bool:
    """Whether one wide pass at a place gives the bits that passes of a class give."""
    text = text[: place + wide]
    _reach(model, text, place)
    wanted = _read_all(model, Widths((wide,)), 0, text, place)
    _reach(model, text, place)
    at = 0
    for rows in read(model, widths, 0, text, place, padding=1):
        if not _equal(rows, wanted[at : at + rows.shape[0]]):
            return False
        at += rows.shape[0]
    return True


def _reach(model: Model, text: Sequence[int], place: int) -> None:
    """Bring the first sequence to a place of the text; how does not matter where two compare."""
    model.truncate(0, place)
    if missing := text[model.length(0) : place]:
        model.forward([Chunk(0, missing, 0)])


def _forget(model: Model, sequences: Sequence[int]) -> None:
    for seq in sequences:
        model.truncate(seq, 0)


def joined(parts: Sequence[Array]) -> Array:
    """One array of several, along the first axis."""
    return array_namespace(*parts).concat(list(parts))


def copy(rows: Array) -> Array:
    """What stays valid when the next pass runs."""
    return array_namespace(rows).asarray(rows, copy=True)


def _equal(a: Array, b: Array) -> bool:
    return bool(array_namespace(a, b).all(a == b))
