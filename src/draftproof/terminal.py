"""What people see of an answer: coloured tokens, a statistics line, progress bars, notes.

Standard output carries the model's text and nothing else; all the rest goes to standard error and
only where that is a terminal. Colour follows the terminal, ``NO_COLOR`` and ``FORCE_COLOR``.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Self, TextIO

from rich.color import ColorSystem
from rich.console import Console, RenderableType
from rich.style import Style
from rich.text import Text

from draftproof.stats import Completion, Stats
from draftproof.types import Origin, Piece, Step

STYLES = {
    Origin.ACCEPTED: Style(color="green"),
    Origin.CORRECTION: Style(color="magenta", bold=True),
    Origin.BONUS: Style(color="cyan"),
    Origin.PLAIN: Style(),
    Origin.FORCED: Style(color="yellow"),
    Origin.PREDICTED: Style(color="blue"),
}
"""The sixteen colours of the terminal's own theme: legible on dark and on light."""

REJECTED = Style(color="red", strike=True)

_ESCAPES = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}


def printable(text: str) -> str:
    """Text that cannot steer a terminal: control characters are spelled out."""
    return text.translate(_ESCAPES)


def one_line(text: str) -> str:
    """A message on one line, whatever it quotes."""
    return printable(" ".join(text.split()))


def complain(message: str) -> None:
    """An error, for people and scripts alike; where it cannot be written, the exit code is left."""
    try:
        print(f"draftproof: error: {one_line(message)}", file=sys.stderr, flush=True)
    except OSError:
        discard(2)


def discard(descriptor: int) -> None:
    """Drop what is still written to a file descriptor that takes no more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


class Terminal:
    """Standard output for the text, standard error for what is said about it.

    Args:
        progress: whether bars may be shown, on a terminal.
    """

    def __init__(self, progress: bool = True) -> None:
        self._out = _console(sys.stdout)
        self._err = _console(sys.stderr)
        self._progress = progress and sys.stderr.isatty() and self._err.is_interactive
        self._coloured = self._out.color_system is not None
        self._escape = self._out.is_terminal or sys.stdout.isatty()
        self._held: list[str] | None = None  # notices, while a line of text is open

    def write(self, pieces: Iterable[Piece], rejected: str = "") -> None:
        """Show text at once, coloured by origin on a terminal; elsewhere exactly as it is.

        Args:
            pieces: the text.
            rejected: a rejected draft, struck through before its correction where there is colour.
        """
        if self._held is None and self._escape:
            self._held = []
        for piece in pieces:
            if rejected and self._coloured and piece.origin is Origin.CORRECTION:
                self._out.file.write(self._render(rejected, REJECTED))
            self._out.file.write(self._render(piece.text, STYLES[piece.origin]))
        self._out.file.flush()

    def _render(self, text: str, style: Style) -> str:
        # Not through the console: it would expand tabs and break lines.
        system = ColorSystem.STANDARD if self._coloured else None
        return style.render(printable(text) if self._escape else text, color_system=system)

    def line(self, text: str = "") -> None:
        """End the line that ``write`` began, or write a whole one, as it is."""
        self._out.file.write(text + "\n")
        self._out.file.flush()
        held, self._held = self._held or [], None
        for notice in held:
            self.notice(notice)

    def show(self, *report: RenderableType) -> None:
        """Write tables, and lines that the terminal may break."""
        for part in report:
            self._out.print(part, soft_wrap=isinstance(part, Text))

    def notice(self, text: str) -> None:
        """A line on standard error, terminal or not; text that is being written is not broken."""
        if self._held is not None:
            self._held.append(text)
        else:
            self._err.print(Text(f"draftproof: {one_line(text)}"), soft_wrap=True)

    def note(self, text: str) -> None:
        """Say something to a person; nothing where standard error is not a terminal."""
        if self._err.is_terminal:
            self._err.print(Text(printable(text), style="dim"))

    def statistics(self, completion: Completion) -> None:
        """The legend, where the text was coloured, and the statistics line."""
        if not self._err.is_terminal:
            return
        if self._coloured:
            self._err.print(_legend(completion.stats))
        self.note(statistics_line(completion))

    def explain(self, steps: Iterable[Step]) -> None:
        """What was expected of each round, and what it did."""
        for step in steps:
            if step.tokens:
                self.notice(round_line(step))

    def bar(self, description: str) -> Bar:
        """A progress bar, to be used in a ``with``."""
        return Bar(self._err if self._progress else None, description)


class Notices(logging.Handler):
    """What the library logs, for a terminal."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self._terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        kind = "warning: " if record.levelno >= logging.WARNING else ""
        self._terminal.notice(kind + record.getMessage())


class Bar:
    """A progress bar that leaves nothing behind.

    Args:
        console: where it is drawn; None draws nothing.
        description: what is going on.
    """

    def __init__(self, console: Console | None, description: str) -> None:
        self._progress = None
        if console is not None:
            from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn

            columns = (SpinnerColumn(), "{task.description}", BarColumn(), TaskProgressColumn())
            self._progress = Progress(*columns, console=console, transient=True)
            self._task = self._progress.add_task(description, total=1.0)

    def update(self, part: float) -> None:
        """Show the part done, from 0 to 1."""
        if self._progress:
            self._progress.update(self._task, completed=part)

    def stop(self) -> None:
        """Take it away. May be called twice."""
        if self._progress:
            self._progress.stop()

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Interrupt:
    """Within a ``with``, the first Ctrl-C only sets ``asked``; the second raises as usual."""

    def __init__(self) -> None:
        self.asked = False

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)


def statistics_line(completion: Completion) -> str:
    """What an answer took, in one line."""
    stats = completion.stats
    parts = [f"{_count(stats.completion_tokens, 'token')} in {_count(stats.rounds, 'round')}"]
    if stats.rounds:
        parts += [
            f"{stats.acceptance_length:.2f} per target pass",
            _drafts(stats),
            f"{stats.tokens_per_second:.1f} tokens/s",
            f"first after {stats.ttft:.2f} s",
        ]
    if stats.cached_tokens:
        parts.append(f"{stats.cached_tokens} of {stats.prompt_tokens} prompt tokens cached")
    ends = {"length": "cut off by length", "cancelled": "interrupted"}
    return ", ".join([*parts, *filter(None, [ends.get(completion.finish_reason)])])


def round_line(step: Step) -> str:
    """What was expected of a round, and what it did, in one line."""
    seconds, forecast = step.seconds, step.forecast
    taken = 1000 * (seconds.draft + seconds.verify + seconds.other)
    did = (
        f"round {step.round}: {len(step.drafted)} drafted, {step.accepted} accepted, "
        f"{_count(len(step.tokens), 'token')} in {taken:.3g} ms"
    )
    if forecast is None:
        return did
    probe = "; a probe" if forecast.probe else ""
    return f"{did}; expected {forecast.tokens:.2f} in {1000 * forecast.seconds:.3g} ms{probe}"


def _drafts(stats: Stats) -> str:
    if stats.acceptance_rate is None:
        return "no drafts"
    return f"drafts {stats.accepted} of {stats.evaluated} accepted ({stats.acceptance_rate:.0%})"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _legend(stats: Stats) -> Text:
    """How many tokens came from where, each in its colour."""
    counts = {
        Origin.ACCEPTED: f"{stats.accepted} accepted",
        Origin.CORRECTION: _count(stats.correction, "correction"),
        Origin.BONUS: f"{stats.bonus} bonus",
        Origin.PLAIN: f"{stats.plain} plain",
        Origin.FORCED: f"{stats.forced} forced",
        Origin.PREDICTED: f"{stats.predicted} predicted",
    }
    present = [Text(text, STYLES[origin]) for origin, text in counts.items() if text[0] != "0"]
    return Text(" + ").join(present)


def _console(stream: TextIO) -> Console:
    """Rich leaves bold and dim under NO_COLOR; here it means no escape codes."""
    return Console(
        file=stream,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )
