"""A benchmark's document for people: tables for a terminal, and a page with plots.

Everything is read from the document that ``Results.to_json`` makes, so a saved one shows the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from draftproof.bench.arms import PLAIN
from draftproof.machine import in_words
from draftproof.pages import figure, page, svg, table
from draftproof.terminal import one_line

HEADER = ("arm", "speedup", "tokens/s", "accepted", "a round", "drafted", "plain")
LATENCY_HEADER = ("arm", "TTFT p50", "p90", "p99", "TPOT p50", "p90", "p99")
COLOURS = ("#1f77b4", "#d95f02", "#2ca02c", "#c2409b", "#8c6d31", "#17a2b8", "#7570b3", "#d62728")


def report(document: dict[str, Any]) -> list[RenderableType]:
    """The tables and remarks, for a terminal."""
    found = document["summary"]
    parts: list[RenderableType] = [rich_table(HEADER, _overall(found)), Text()]
    parts += [rich_table(LATENCY_HEADER, _latency(found)), Text()]
    if len(found["categories"]) > 1:
        parts += [rich_table(_category_header(found), _by_category(found)), Text()]
    return [*parts, *(Text(one_line(line)) for line in _remarks(document))]


def rich_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    """A table for a terminal; all columns but the first are set to the right."""
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for number, name in enumerate(header):
        side: Any = "right" if number else "left"
        shown.add_column(name, justify=side, overflow="fold", no_wrap=number > 0)
    for row in rows:
        shown.add_row(*map(one_line, row))
    return shown


def _overall(found: dict[str, Any]) -> list[tuple[str, ...]]:
    return [(arm, *_cells(each["overall"])) for arm, each in found["arms"].items()]


def _cells(block: dict[str, Any]) -> Iterator[str]:
    yield times(block["speedup"])
    yield _number(block["tokens_per_second"], ".1f")
    yield _number(block["acceptance_rate"], ".0%")
    yield _number(block["acceptance_length"], ".2f")
    yield _number(block["mean_draft_length"], ".2f")
    yield _number(block["plain_rounds"], ".0%")


def _latency(found: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (arm, *_milliseconds(each["overall"]["ttft"]), *_milliseconds(each["overall"]["tpot"]))
        for arm, each in found["arms"].items()
    ]


def times(interval: dict[str, float | None] | None) -> str:
    """A speedup with its interval."""
    if interval is None:
        return "-"
    bounds = "" if interval["low"] is None else f" [{interval['low']:.2f}, {interval['high']:.2f}]"
    return f"{interval['value']:.2f}x{bounds}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _milliseconds(percentiles: dict[str, float] | None) -> list[str]:
    if percentiles is None:
        return ["-"] * 3
    return [f"{1e3 * value:.2f}" for value in percentiles.values()]


def _category_header(found: dict[str, Any]) -> tuple[str, ...]:
    return ("speedup", *_drafted(found))


def _drafted(found: dict[str, Any]) -> list[str]:
    return [arm for arm in found["arms"] if arm != PLAIN]


def _by_category(found: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            *(times(found["arms"][arm]["categories"][name]["speedup"]) for arm in _drafted(found)),
        )
        for name in found["categories"]
    ]


def _remarks(document: dict[str, Any]) -> Iterator[str]:
    found, options = document["summary"], document["options"]
    yield (
        f"{len(document['prompts'])} prompts, {options['repeats']} repeats, on "
        f"{in_words(document['machine'])}; speedups are medians over prompts with their 95 % "
        "bootstrap interval, TTFT and TPOT are milliseconds, per token"
    )
    if document["interrupted"]:
        yield f"interrupted: these are the {len(document['rows'])} answers measured by then"
    if found["differences"] is None:
        yield "texts are not compared: they were drawn without a seed"
        return
    apart = found["differences"]
    yield (
        f"texts: {found['texts_compared'] - len(apart)} of {found['texts_compared']} equal plain "
        "decoding's"
    )
    for one in apart[:5]:
        yield (
            f"prompt {one['prompt'] + 1} ({one['category']}), {one['arm']}: from token "
            f"{one['position'] + 1} on {one['text']!r} instead of {one['plain']!r}"
        )
    if len(apart) > 5:
        yield f"and {len(apart) - 5} more, in the JSON document"
    if apart:
        yield "draftproof check tells near ties from mistakes"


def html(document: dict[str, Any]) -> str:
    """The page, complete in itself.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    found = document["summary"]
    parts = [f"<p>{escape(line)}</p>" for line in _remarks(document)]
    parts += ["<h2>Arms</h2>", table(HEADER, _overall(found))]
    if _drafted(found):
        parts += [
            *("<h2>By category</h2>", svg(_speedups(found))),
            table(_category_header(found), _by_category(found)),
        ]
    parts += ["<h2>Latency</h2>", svg(_latencies(found))]
    parts += ["<p>Milliseconds.</p>", table(LATENCY_HEADER, _latency(found))]
    parts += ["<h2>What was run</h2>", table(("option", "value"), _settings(document))]
    return page(f"Benchmark of {document['options']['target']}", parts)


def _settings(document: dict[str, Any]) -> list[tuple[str, str]]:
    about = {**document["options"], **document["machine"], **document["versions"]}
    about |= {"commit": document["commit"], "started": document["started"]}
    return [(name, "-" if value is None else str(value)) for name, value in about.items()]


def _speedups(found: dict[str, Any]) -> Any:
    """Dots with intervals: a row for each category, a colour for each arm."""
    names, arms = ["overall", *found["categories"]], _drafted(found)
    drawn = figure(8, 1.2 + 0.22 * len(names) * (len(arms) + 1))
    axes = drawn.subplots()
    for number, arm in enumerate(arms):
        each = found["arms"][arm]
        blocks = [each["overall"], *(each["categories"][name] for name in names[1:])]
        shift = 0.7 * ((number + 0.5) / len(arms) - 0.5)
        points = [(i + shift, b["speedup"]) for i, b in enumerate(blocks) if b["speedup"]]
        colour = COLOURS[number % len(COLOURS)]
        _dots(axes, points, colour, arm)
    axes.axvline(1.0, color="gray", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("speedup over plain decoding")
    axes.set_title("Speedup by category")
    drawn.legend(loc="outside lower center", ncols=3, frameon=False)
    return drawn


def _dots(axes: Any, points: list[tuple[float, dict[str, Any]]], colour: str, label: str) -> None:
    values = [one["value"] for _, one in points]
    heights = [height for height, _ in points]
    axes.plot(values, heights, "o", color=colour, label=label, markersize=4)
    for height, one in points:
        if one["low"] is not None:
            axes.hlines(height, one["low"], one["high"], color=colour, linewidth=1.5)


def _latencies(found: dict[str, Any]) -> Any:
    """Percentiles of the time to first token and of the time per token, for each arm."""
    arms = list(found["arms"])
    drawn = figure(8, 1.2 + 0.35 * len(arms))
    both = drawn.subplots(1, 2, sharey=True)
    kinds = (("ttft", "first token"), ("tpot", "each further token"))
    for axes, (key, title) in zip(both, kinds, strict=True):
        for number, arm in enumerate(arms):
            found_here = found["arms"][arm]["overall"][key]
            if found_here:
                values = [1e3 * value for value in found_here.values()]
                axes.plot(values, [number] * len(values), "-", color="gray", linewidth=1)
                for value, colour in zip(values, COLOURS, strict=False):
                    axes.plot([value], [number], "o", color=colour, markersize=5)
        axes.set_yticks(range(len(arms)), arms)
        axes.set_xlabel("milliseconds")
        axes.set_title(title)
    both[0].invert_yaxis()
    for name, colour in zip(("50 %", "90 %", "99 %"), COLOURS, strict=False):
        both[1].plot([], [], "o", color=colour, label=name)
    both[1].legend(loc="best", frameon=False)
    return drawn
