"""What ``draftproof check`` shows on a terminal, and the page it writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from draftproof.check.findings import ALPHA, Audit, Fault, Stage
from draftproof.check.pictures import pictures
from draftproof.pages import page, table
from draftproof.terminal import one_line

_STYLES = {"passed": "green", "failed": "bold red", "not applicable": "dim"}
_SHOWN = 240  # characters of a prompt on a terminal, the last ones


def report(audit: Audit) -> list[RenderableType]:
    """All of it, for a terminal."""
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("stage", "", "looked at", "would have caught"):
        shown.add_column(name, overflow="fold", no_wrap=name in ("stage", ""))
    for number, stage in enumerate(audit.stages, 1):
        verdict = Text(stage.status, _STYLES[stage.status])
        looked = one_line(stage.skipped or stage.checked)
        shown.add_row(f"{number} {stage.name}", verdict, looked, one_line(stage.detectable))
    faults = [Text(line) for stage in audit.stages for line in _fault_lines(stage)]
    return [shown, Text(), *faults, Text(verdict_line(audit))]


def _fault_lines(stage: Stage) -> Iterator[str]:
    fault = stage.worst
    if fault is None:
        return
    more = f" (and {len(stage.faults) - 1} more)" if len(stage.faults) > 1 else ""
    yield f"{stage.name}: {one_line(fault.what)}{more}"
    if fault.prompt:
        yield f"  shown by {_place(fault)}: {one_line(repr(fault.text[-_SHOWN:]))}"


def _place(fault: Fault) -> str:
    return f"{len(fault.prompt)} tokens, at position {fault.position}"


def verdict_line(audit: Audit) -> str:
    """The audit in one line."""
    failed = [stage.name for stage in audit.stages if stage.faults]
    pair = f"{audit.drafter} drafting for {audit.target}, {audit.seconds:.0f} s, seed {audit.seed}"
    if failed:
        return f"failed ({', '.join(failed)}): {pair}"
    return f"no fault found: {pair}"


def html(audit: Audit) -> str:
    """All of it, as a page."""
    kind = "bad" if not audit.passed else "good"
    options = [[name.replace("_", " "), str(value)] for name, value in audit.options.items()]
    rows = [
        [f"{number} {stage.name}", stage.status, stage.skipped or stage.checked, stage.detectable]
        for number, stage in enumerate(audit.stages, 1)
    ]
    return page(
        f"Is it the target's text? {audit.drafter} drafting for {audit.target}",
        [
            f'<p class="{kind}">{escape(verdict_line(audit))}</p>',
            table(["stage", "verdict", "looked at", "would have caught"], rows),
            *(part for stage in audit.stages for part in _section(stage)),
            "<h2>Options</h2>",
            table(["option", "value"], options),
            f"<p>{escape(_METHOD)}</p>",
        ],
    )


_METHOD = (
    "Tests on chance are e-processes: they may be looked at after every draw, and each raises a "
    f"false alarm with a probability of at most {ALPHA:g}, however long it runs (Ville's "
    "inequality; Ramdas, Grünwald, Vovk and Shafer, Game-theoretic statistics and safe "
    "anytime-valid inference, Statistical Science 2023). Everything else is computed, not tested. "
    "A text without a fault is evidence for what was looked at, and for no more."
)


def _section(stage: Stage) -> Iterator[str]:
    yield f"<h2>{escape(stage.name.capitalize())}: {escape(stage.question)}</h2>"
    if stage.skipped:
        yield f"<p>Not applicable: {escape(stage.skipped)}.</p>"
    for fault in sorted(stage.faults, key=lambda each: each.size)[:3]:
        yield f'<p class="bad">{escape(fault.what)}</p>'
        if fault.prompt:
            yield f"<p>Shown by {_place(fault)}:</p><pre>{escape(fault.text)}</pre>"
    yield from pictures(stage)
    numbers = list(_numbers(stage.numbers))
    if numbers:
        yield f"<details><summary>Numbers</summary>{table(['', 'value'], numbers)}</details>"


def _numbers(numbers: dict[str, Any]) -> Iterator[Sequence[object]]:
    for name, value in numbers.items():
        if value is not None and value != []:
            yield name.replace("_", " "), value if isinstance(value, float) else str(value)
