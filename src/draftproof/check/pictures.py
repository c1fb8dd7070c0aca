"""The pictures of an audit, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from draftproof.check.findings import Stage
from draftproof.check.near_ties import Tie
from draftproof.pages import figure, svg

BLUE, ORANGE, GRAY = "#3b8bd9", "#e0762f", "#8a8a8a"


def pictures(stage: Stage) -> Iterator[str]:
    """Those that belong to a stage."""
    data = stage.data
    if data.get("rows"):
        yield svg(_errors(data["rows"]))
    if data.get("bins"):
        yield svg(_bins(data["bins"]))
    for number, (chances, counts) in enumerate(data.get("laws", ()), 1):
        yield svg(_law(chances, counts, number))
    if data.get("curve"):
        yield svg(_power(data["curve"]))
    if data.get("ties"):
        yield svg(_ties(data["ties"]))


def _axes(title: str, x: str, y: str, height: float = 3.0) -> tuple[Any, Any]:
    drawn = figure(7, height)
    axes = drawn.subplots()
    axes.set_title(title, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    return drawn, axes


def _legend(axes: Any) -> None:
    """Beside the title, where nothing is drawn."""
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 0.99), ncols=2)


def _errors(errors: Sequence[float]) -> Any:
    drawn, axes = _axes("How far each row is from the identity", "largest error", "rows")
    floor = np.maximum(errors, 1e-17)
    axes.hist(floor, bins=np.logspace(-17, 0, 35), color=BLUE)
    axes.axvline(1e-6, color=ORANGE, label="what is allowed")
    axes.set_xscale("log")
    _legend(axes)
    return drawn


def _bins(counts: Sequence[int]) -> Any:
    drawn, axes = _axes(
        "Drafted tokens in their rows",
        "share of the row's mass, from the most probable token on",
        "drafted tokens",
    )
    expected = sum(counts) / len(counts)
    places = (np.arange(len(counts)) + 0.5) / len(counts)
    axes.bar(places, counts, 0.9 / len(counts), color=BLUE, label="drawn")
    axes.axhline(expected, color=ORANGE, label="if drawn from their rows")
    _legend(axes)
    return drawn


def _law(chances: Sequence[float], counts: Sequence[int], number: int) -> Any:
    """Chances as bars, frequencies as dots with two standard deviations."""
    total = max(1, sum(counts))
    order = np.argsort(chances)[::-1]
    p, share = np.asarray(chances)[order], np.asarray(counts)[order] / total
    drawn, axes = _axes(
        f"Target and text, prompt {number}",
        "beginnings of the answer, the most probable first",
        "probability",
        3.4,
    )
    places = np.arange(len(p))
    axes.bar(places, p, color=BLUE, alpha=0.55, label="target")
    spread = 2 * np.sqrt(p * (1 - p) / total)
    axes.errorbar(
        places, share, yerr=spread, fmt="o", ms=4, color=ORANGE, label="emitted", linewidth=1
    )
    axes.set_xticks([])
    _legend(axes)
    return drawn


def _power(curve: Sequence[tuple[float, float]]) -> Any:
    drawn, axes = _axes(
        "What so many draws find",
        "total variation from the right distribution",
        "chance to find it",
    )
    axes.plot(*zip(*curve, strict=True), "o-", color=BLUE, ms=4)
    axes.axhline(0.99, color=GRAY, linewidth=1, linestyle="--")
    axes.set_xscale("log")
    ticks = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(-0.03, 1.05)
    return drawn


def _ties(ties: Sequence[Tie]) -> Any:
    drawn, axes = _axes(
        "Near ties: where the texts part",
        "how far two logits must move against each other",
        "",
        1.4 + 0.28 * len(ties),
    )
    places = np.arange(len(ties))
    bounds = [tie.bound for tie in ties]
    axes.barh(places, bounds, color=BLUE, alpha=0.4, label="what rounding explains")
    axes.plot([tie.gap for tie in ties], places, "o", color=ORANGE, label="gap")
    axes.set_yticks(places, [f"token {tie.position}" for tie in ties])
    axes.invert_yaxis()
    _legend(axes)
    return drawn
