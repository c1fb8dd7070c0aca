"""A plan for people: tables, the answer in a sentence, a picture and a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from draftproof.bench.report import COLOURS, rich_table, times
from draftproof.pages import figure, page, svg, table
from draftproof.plan import OVERALL, Plan, pays
from draftproof.plan.profiles import Profile
from draftproof.terminal import one_line

HEADER = ("k", "accepted", "a round", "draft", "verify", "speedup", "formula")


@dataclass(frozen=True, slots=True)
class Findings:
    """All that is shown.

    Attributes:
        target: its spec.
        plans: one for each drafter.
        profile: the machine planned for.
        prompts: how many were traced.
        notes: what else is to be said.
        settings: command lines to paste, by tool.
    """

    target: str
    plans: Sequence[Plan]
    profile: Profile
    prompts: int
    notes: Sequence[str]
    settings: dict[str, list[str]]

    def to_json(self) -> dict[str, Any]:
        """The document of ``draftproof plan --json``."""
        return {
            "target": self.target,
            "answer": answer(self.plans, self.profile),
            "best": best(self.plans).drafter,
            "draft_length": best(self.plans).best().k,
            "prompts": self.prompts,
            "notes": list(self.notes),
            "settings": self.settings,
            "plans": [plan.to_json() for plan in self.plans],
            "profile": self.profile.to_json(),
        }


def best(plans: Sequence[Plan]) -> Plan:
    """The drafter that promises most, for one sequence at a time."""
    return max(plans, key=lambda plan: plan.best().speedup.value)


def answer(plans: Sequence[Plan], profile: Profile) -> str:
    """Whether it pays, with which drafter and length, at which batch sizes, for which text."""
    plan = best(plans)
    found, where = plan.best(), f"on {profile.machine}"
    if pays(found):
        begin = (
            f"Speculation pays {where}: {plan.drafter} with a draft length of {found.k} gives "
            f"{times(found.speedup.to_json())}; {_sizes(plan)}"
        )
    else:
        most = max(plan.estimates[1][OVERALL][1:], key=lambda one: one.speedup.value)
        begin = (
            f"Speculation does not pay {where} over all kinds of text: the best draft length, "
            f"{most.k} of {plan.drafter}, gives {times(most.speedup.to_json())}"
        )
    kinds = _kinds(plan)
    return f"{begin}; {kinds}." if kinds else f"{begin}."


def _sizes(plan: Plan) -> str:
    good = [str(size) for size in plan.estimates if pays(plan.best(size))]
    bad = [str(size) for size in plan.estimates if not pays(plan.best(size))]
    if len(plan.estimates) == 1:
        return "planned for one sequence at a time"
    return f"at batch sizes {', '.join(good)}" + (f", not at {', '.join(bad)}" if bad else "")


def _kinds(plan: Plan) -> str:
    names = [name for name in plan.estimates[1] if name != OVERALL]
    if len(names) < 2:
        return ""
    good = [name for name in names if pays(plan.best(1, name))]
    bad = [name for name in names if name not in good]
    good.sort(key=lambda name: -plan.best(1, name).speedup.value)
    shown = [
        f"{name} ({plan.best(1, name).speedup.value:.2f}x with {plan.best(1, name).k})"
        for name in good
    ]
    parts = [f"it pays for {', '.join(shown)}"] if good else []
    return ", ".join([*parts, *([f"not for {', '.join(bad)}"] if bad else [])])


def report(found: Findings) -> list[RenderableType]:
    """All of it, for a terminal."""
    parts: list[RenderableType] = []
    for plan in found.plans:
        parts += [Text(f"{found.target} with {one_line(plan.drafter)}"), Text()]
        parts += [rich_table(HEADER, rows(plan)), Text()]
        parts += [rich_table(kinds_header(plan), kinds_rows(plan)), Text()]
    parts += [Text(one_line(line)) for line in (answer(found.plans, found.profile), *found.notes)]
    for tool, lines in found.settings.items():
        parts += [Text(), Text(f"{tool}:"), *(Text(f"  {line}") for line in lines)]
    return parts


def rows(plan: Plan) -> list[tuple[str, ...]]:
    """A row for each draft length, for one sequence at a time; costs are in plain steps."""
    return [
        (
            str(one.k),
            "-" if one.acceptance_rate is None else f"{one.acceptance_rate:.0%}",
            f"{one.tokens_per_round:.2f}",
            f"{one.draft_cost:.2f}",
            f"{one.verify_cost:.2f}",
            times(one.speedup.to_json()),
            f"{one.formula:.2f}x",
        )
        for one in plan.estimates[1][OVERALL]
    ]


def kinds_header(plan: Plan) -> tuple[str, ...]:
    """A column for each batch size."""
    return ("best length", *(f"batch {size}" for size in plan.estimates))


def kinds_rows(plan: Plan) -> list[tuple[str, ...]]:
    """For each kind of text the best length at each batch size and what it gives."""
    names = list(plan.estimates[1])
    chosen = {name: [plan.best(size, name) for size in plan.estimates] for name in names}
    return [
        (name, *(f"{one.k}: {one.speedup.value:.2f}x" for one in every))
        for name, every in chosen.items()
    ]


def draw(found: Findings) -> Any:
    """Speedup by draft length for each drafter, and what a pass over n tokens takes.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    drawn = figure(9, 4)
    left, right = drawn.subplots(1, 2)
    for plan, colour in zip(found.plans, COLOURS, strict=False):
        _curve(left, plan, colour)
    left.axhline(1, color="gray", linewidth=1)
    left.set_xlabel("draft length k")
    left.set_ylabel("speedup over plain decoding")
    left.set_title("Expected speedup")
    left.legend(frameon=False, fontsize="small")
    for size, colour in zip(found.plans[0].estimates, COLOURS, strict=False):
        every = found.plans[0].estimates[size][OVERALL]
        costs = [one.verify_cost for one in every]
        right.plot([one.k + 1 for one in every], costs, ".-", color=colour, label=f"batch {size}")
    right.set_xlabel("tokens of each sequence in a pass")
    right.set_ylabel("plain steps")
    right.set_title("What a pass takes")
    right.legend(frameon=False, fontsize="small")
    return drawn


def _curve(axes: Any, plan: Plan, colour: str) -> None:
    every = plan.estimates[1][OVERALL]
    ks, values = [one.k for one in every], [one.speedup.value for one in every]
    axes.plot(ks, values, ".-", color=colour, label=plan.drafter)
    if every[0].speedup.low is not None:
        bounds = [[one.speedup[i] for one in every] for i in (1, 2)]
        axes.fill_between(ks, *bounds, color=colour, alpha=0.2, linewidth=0)
    formula = [one.formula for one in every]
    axes.plot(ks, formula, "--", color=colour, linewidth=1, label=f"{plan.drafter}, by the formula")


def save_png(found: Findings, path: Path) -> None:
    """The picture."""
    draw(found).savefig(path, format="png", dpi=150)


def html(found: Findings) -> str:
    """The page, complete in itself."""
    return page(f"Plan for {found.target}", list(_parts(found)))


def _parts(found: Findings) -> Iterator[str]:
    yield f"<p><strong>{escape(answer(found.plans, found.profile))}</strong></p>"
    yield svg(draw(found))
    for plan in found.plans:
        yield f"<h2>{escape(plan.drafter)}</h2>"
        yield table(HEADER, rows(plan))
        yield table(kinds_header(plan), kinds_rows(plan))
    yield "<h2>Settings</h2>"
    for tool, lines in found.settings.items():
        yield f"<p>{escape(tool)}</p><pre>{escape(chr(10).join(lines))}</pre>"
    yield "<h2>How it was found</h2>"
    yield from (f"<p>{escape(note)}</p>" for note in found.notes)
