"""What passes of models take, learned from those that were run: no straight line is assumed.

Kernels work in tiles, so the seconds of a pass over n tokens have steps. They are kept as medians
per number of tokens and of sequences. What was not measured lies between its measured neighbours.
A machine speeds up and slows down as a whole: one scale is common to all tables, which then hold
the seconds of a machine at scale 1, and only their ratios decide anything. Tables hold what passes
take without a context; what that adds is a matter of ``attention.py``.

Not here: running passes (``calibration.py``), reading a clock, and deciding (``control.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from statistics import fmean, median
from typing import NamedTuple

from draftproof.control.attention import Attention

MEASURED = 3  # passes after which an entry tells the machine's scale, instead of learning from it
MEMORY = 15  # passes an entry remembers; the scale must follow sooner, see RECENT
RECENT = 9  # passes the scale looks back
REFRESH = 8  # passes between two looks at the tables
ODD = 0.5  # of the usual seconds: what differs more says nothing about contexts
LEAST = 0.1  # of a pass's seconds are not those of its context
SPARE = 32  # places of a curve that are computed beyond those asked for


class Scale:
    """How slow the machine is at present: 1 when the tables were begun."""

    def __init__(self) -> None:
        self.value = 1.0
        self._ratios: deque[float] = deque(maxlen=RECENT)

    def add(self, ratio: float) -> None:
        """Count the seconds of a pass over those that the table gives at scale 1."""
        self._ratios.append(ratio)
        if len(self._ratios) >= MEASURED:
            self.value = median(self._ratios)


class Table(NamedTuple):
    """Passes of one sequence, measured before.

    Attributes:
        passes: seconds without a context, by tokens.
        each: see ``Attention``.
        shared: see ``Attention``.
    """

    passes: Mapping[int, float]
    each: float = 0.0
    shared: float = 0.0


class Taken(NamedTuple):
    """A pass that was run.

    Attributes:
        seconds: at scale 1.
        context: cached entries of each sequence.
        clock: seconds of the clock.
    """

    seconds: float
    context: float
    clock: float


Entry = deque[Taken]


class Latency:
    """The seconds of one model's passes, at scale 1.

    Args:
        scale: the machine's.

    Attributes:
        attention: what contexts add.
    """

    def __init__(self, scale: Scale) -> None:
        self.attention = Attention()
        self._scale = scale
        self._adopted: dict[int, float] = {}  # of one sequence, by tokens
        self._entries: dict[int, dict[int, Entry]] = {}  # by sequences, by tokens
        self._curves: dict[int, list[float]] = {}
        self._since = 0
        self._cold = True

    def observe(self, tokens: int, sequences: int, seconds: float, context: float = 0.0) -> None:
        """Count a pass. The very first is left out: libraries and caches warm up in it.

        Args:
            tokens: of all sequences together.
            sequences: how many.
            seconds: of the clock.
            context: cached entries of each sequence, on average.
        """
        if self._cold:
            self._cold = False
            return
        usual = self._expected(tokens, sequences)
        if usual > 0:
            usual += self.attention.seconds(tokens, sequences, context)
            self._scale.add(seconds / usual)
        entries = self._entries.setdefault(sequences, {})
        entry = entries.setdefault(tokens, deque(maxlen=MEMORY))
        taken = Taken(seconds / self._scale.value, context, seconds)
        if entry:
            self._compare(tokens, sequences, entry, taken)
        entry.append(taken)
        self._since += 1
        if len(entry) <= MEASURED or self._since >= REFRESH:
            self._curves.clear()
            self._since = 0

    def _expected(self, tokens: int, sequences: int) -> float:
        """Seconds of a pass, where they are known well; else 0."""
        entry = self._of(sequences).get(tokens, ())
        if len(entry) >= MEASURED:
            return self._usual(tokens, sequences, entry)
        return self._adopted.get(tokens, 0.0) if sequences == 1 else 0.0

    def _compare(self, tokens: int, sequences: int, entry: Entry, taken: Taken) -> None:
        """Learn what the context does from a pass beside others of the same width.

        By the clock: the scale is found with the help of what is learned here, and each would
        confirm the other's mistakes.
        """
        usual = fmean(one.clock for one in entry)
        longer = taken.clock - usual
        if abs(longer) <= ODD * usual:
            context = taken.context - fmean(one.context for one in entry)
            self.attention.add(tokens, sequences, context, longer / self._scale.value)

    def _usual(self, tokens: int, sequences: int, entry: Collection[Taken]) -> float:
        """What a pass takes without a context.

        Of a few it is the shortest, as a busy machine only adds to it.
        """
        look = self.attention.seconds(tokens, sequences, 1.0)
        alone = [max(s - look * context, LEAST * s) for s, context, _ in entry]
        return median(alone) if len(alone) >= MEASURED else min(alone)

    def known(self, sequences: int) -> bool:
        """Whether any pass of so many sequences was measured, by a clock that runs."""
        if sequences == 1 and self._adopted:
            return True
        return any(max(entry).seconds > 0 for entry in self._of(sequences).values())

    def seconds(self, tokens: int, sequences: int, context: float = 0.0) -> float:
        """The seconds of a pass, at scale 1; 0 where nothing was ever measured."""
        (alone,) = self.row(tokens, sequences, 0)
        return alone + self.attention.seconds(tokens, sequences, context)

    def row(self, tokens: int, sequences: int, more: int) -> list[float]:
        """Seconds without a context, for ``tokens`` to ``tokens + more``; never falling."""
        curve = self._curves.get(sequences, [])
        if len(curve) <= tokens + more:
            curve = self._curve(sequences, tokens + more + SPARE)
            self._curves[sequences] = curve
        return curve[tokens : tokens + more + 1]

    def _curve(self, sequences: int, size: int) -> list[float]:
        """Seconds by number of tokens, from 0 to ``size - 1``; 0 where nothing was measured.

        It is a stretched copy of that of one sequence, or of the adopted one.
        """
        from draftproof.control.curves import stretched, through  # NumPy takes long to import

        if sequences > 1 and self.known(1):
            base = self.row(0, 1, size - 1)
        elif sequences == 1 and self._adopted:
            base = through({n: (s, MEASURED) for n, s in self._adopted.items()}, size)
        else:
            of = self._of(sequences)
            points = {n: (self._usual(n, sequences, e), len(e)) for n, e in of.items()}
            return through(points, size)
        measured = [
            (n, count, len(entry), self._usual(n, count, entry))
            for count, entries in self._entries.items()
            for n, entry in entries.items()
            if n < size and _comparable(count, sequences)
        ]
        return stretched(base, measured, sequences)

    def _of(self, sequences: int) -> dict[int, Entry]:
        return self._entries.get(sequences, {})

    def table(self) -> Table:
        """What is known well for one sequence."""
        well = {n: e for n, e in self._of(1).items() if len(e) >= MEASURED}
        measured = {n: self._usual(n, 1, e) for n, e in well.items()}
        passes = dict(sorted((self._adopted | measured).items()))
        return Table(passes, self.attention.each, self.attention.shared)

    def adopt(self, table: Table) -> None:
        """Begin with a table of one sequence."""
        self._cold = False
        self._adopted = dict(table.passes)
        self.attention.adopt(table.each, table.shared)
        self._curves.clear()


def _comparable(one: int, other: int) -> bool:
    """Whether passes of so many sequences tell about those of so many others."""
    return one == other or (1 < one <= 2 * other and 1 < other <= 2 * one)
