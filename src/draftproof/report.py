"""What ``draftproof inspect`` shows: a table of the models, what they need, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from draftproof.inspect import Comparison, Inspection, readable
from draftproof.models.describe import Description
from draftproof.terminal import one_line


def report(found: Inspection) -> list[RenderableType]:
    """All of it, for a terminal."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    for _ in (found.target, *found.drafts):
        table.add_column(overflow="fold")
    for name, *values in _rows(found):
        table.add_row(name, *(one_line(value) for value in values))
    return [table, Text(), *map(Text, _verdict(found))]


def _rows(found: Inspection) -> Iterator[tuple[str, ...]]:
    columns = [_column(one) for one in (found.target, *found.drafts)]
    for name in columns[0]:
        yield (name, *(column[name] for column in columns))
    if found.drafts:
        yield ("against the target", "", *map(_compared, found.comparisons))


def _column(one: Description) -> dict[str, str]:
    about = "about " if one.estimated else ""
    types = ", ".join(f"{kind} {readable(size)}" for kind, size in one.types.items())
    return {
        "model": one.spec,
        "file": one.path or "-",
        "architecture": one.architecture,
        "parameters": f"{one.parameters:,}",
        "layers": str(one.layers),
        "embedding": str(one.embedding),
        "heads": _heads(one),
        "sliding window": str(one.window or "-"),
        "vocabulary": f"{one.vocabulary:,}, {one.tokenizer}",
        "context": f"{one.context_length:,}",
        "weights": about + readable(one.weight_bytes),
        "stored as": about + types,
        "cache, 1k tokens": readable(1024 * one.cache_bytes),
    }


def _heads(one: Description) -> str:
    low, high = min(one.kv_heads, default=0), max(one.kv_heads, default=0)
    return f"{one.heads}, key-value {high if low == high else f'{low} to {high}'}"


def _compared(comparison: Comparison) -> str:
    return {
        "same": "same tokens",
        "padded": "same tokens, padded to another size",
        "different": f"other tokens: {comparison.token} is {comparison.draft!r}, "
        f"not {comparison.target!r}",
        "unknown": "unknown",
    }[comparison.result]


def _verdict(found: Inspection) -> Iterator[str]:
    sequences = "1 sequence" if found.sequences == 1 else f"{found.sequences} sequences"
    free = "" if found.free_bytes is None else f"; {readable(found.free_bytes)} are free"
    yield (
        f"{sequences} of {found.context_length:,} tokens: {readable(found.weight_bytes)} of "
        f"weights and {readable(found.cache_bytes)} of caches, "
        f"{readable(found.weight_bytes + found.cache_bytes)} in all{free}"
    )
    yield from (f"note: {one_line(note)}" for note in found.notes)
    yield from (f"cannot work: {one_line(problem)}" for problem in found.problems)
    if found.works:
        yield "can work"
