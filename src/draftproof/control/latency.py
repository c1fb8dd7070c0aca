"""What passes of models take, learned from those that were run: no straight line is assumed.

Kernels work in tiles, so the seconds of a pass over n tokens have steps. They are kept as medians
per number of tokens and of sequences. What was not measured lies between its measured neighbours.
A machine speeds up and slows down as a whole: one scale is common to all tables, which then hold
the seconds of a machine at scale 1, and only their ratios decide anything.

Not here: running passes (``calibration.py``), reading a clock, and deciding (``control.py``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Mapping
from itertools import accumulate
from statistics import median

MEASURED = 3  # passes after which an entry tells the machine's scale, instead of learning from it
MEMORY = 15  # passes an entry remembers; the scale must follow sooner, see RECENT
RECENT = 5  # passes the scale looks back
REFRESH = 8  # passes between two looks at the tables
SLOPE = 0.1  # of one token's seconds: a further token, where nothing else is known


class Scale:
    """How slow the machine is at present: 1 when the tables were begun."""

    def __init__(self) -> None:
        self.value = 1.0
        self._ratios: deque[float] = deque(maxlen=RECENT)

    def add(self, ratio: float) -> None:
        """Count the seconds of a pass over those that the table gives at scale 1."""
        self._ratios.append(ratio)
        if len(self._ratios) == RECENT:
            self.value = median(self._ratios)


class Latency:
    """The seconds of one model's passes, at scale 1.

    Args:
        scale: the machine's.
    """

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._entries: dict[int, dict[int, deque[float]]] = {}  # by sequences, by tokens
        self._curves: dict[int, list[float]] = {}
        self._since = 0
        self._cold = True

    def observe(self, tokens: int, sequences: int, seconds: float) -> None:
        """Count a pass over ``tokens`` of ``sequences`` together, in seconds of the clock.

        The very first is left out: libraries and caches warm up in it.
        """
        if self._cold:
            self._cold = False
            return
        entries = self._entries.setdefault(sequences, {})
        entry = entries.setdefault(tokens, deque(maxlen=MEMORY))
        if len(entry) >= MEASURED and (usual := _usual(entry)) > 0:
            self._scale.add(seconds / usual)
        entry.append(seconds / self._scale.value)
        self._since += 1
        if len(entry) <= MEASURED or self._since >= REFRESH:
            self._curves.clear()
            self._since = 0

    def known(self, sequences: int) -> bool:
        """Whether any pass of so many sequences was measured, by a clock that runs."""
        return any(median(entry) > 0 for entry in self._of(sequences).values())

    def seconds(self, tokens: int, sequences: int) -> float:
        """The seconds of a pass, at scale 1; 0 where nothing was ever measured."""
        return self.row(tokens, sequences, 0)[0]

    def row(self, tokens: int, sequences: int, more: int) -> list[float]:
        """The seconds of passes over ``tokens`` to ``tokens + more``, never falling."""
        curve = self._curves.get(sequences, [])
        if len(curve) <= tokens + more:
            curve = self._curve(sequences, 2 * (tokens + more) + 1)
            self._curves[sequences] = curve
        return curve[tokens : tokens + more + 1]

    def _curve(self, sequences: int, size: int) -> list[float]:
        """Seconds by number of tokens, from 0 to ``size - 1``.

        A curve of several sequences follows the shape of that of one, and that a slight slope,
        both stretched to go through what was measured.
        """
        if sequences == 1:
            shape: Callable[[int], float] = _slope
        else:
            shape = self.row(0, 1, size - 1).__getitem__
            if not self.known(1):
                shape = _slope
        points = _rising({n: (_usual(e), len(e)) for n, e in self._of(sequences).items()})
        if not points:
            return [shape(n) * (self.known(1) and sequences > 1) for n in range(size)]
        places = sorted(points)
        ratios = [points[n] / (shape(n) if n < size else _slope(n)) for n in places]
        return list(accumulate((shape(n) * _between(places, ratios, n) for n in range(size)), max))

    def _of(self, sequences: int) -> dict[int, deque[float]]:
        return self._entries.get(sequences, {})

    def table(self) -> dict[int, float]:
        """What was measured well for one sequence: seconds at scale 1 by tokens."""
        return {n: median(e) for n, e in sorted(self._of(1).items()) if len(e) >= MEASURED}

    def adopt(self, table: Mapping[int, float]) -> None:
        """Begin with a table of one sequence, each entry as good as measured."""
        self._cold = False
        self._entries[1] = {n: deque([s] * MEASURED, MEMORY) for n, s in table.items()}
        self._curves.clear()


def _usual(seconds: Collection[float]) -> float:
    """What a pass takes: of a few the shortest, as a busy machine only adds to it."""
    return median(seconds) if len(seconds) >= MEASURED else min(seconds)


def _slope(tokens: int) -> float:
    return 1 + SLOPE * (tokens - 1)


def _between(places: list[int], values: list[float], at: int) -> float:
    """The value at a place, on straight lines between known ones, constant outside."""
    index = bisect_left(places, at)
    if index == 0 or index == len(places):
        return values[min(index, len(places) - 1)]
    low, high = places[index - 1], places[index]
    part = (at - low) / (high - low)
    return values[index - 1] * (1 - part) + values[index] * part


def _rising(points: Mapping[int, tuple[float, int]]) -> dict[int, float]:
    """Values that never fall, nearest to the given (value, weight): pool adjacent violators."""
    blocks: list[tuple[float, float, list[int]]] = []
    for place in sorted(points):
        value, weight, places = points[place][0], float(points[place][1]), [place]
        while blocks and blocks[-1][0] > value:
            before, others, pooled = blocks.pop()
            value = (value * weight + before * others) / (weight + others)
            weight, places = weight + others, pooled + places
        blocks.append((value, weight, places))
    return {place: value for value, _, places in blocks for place in places}
