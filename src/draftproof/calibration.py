"""What passes of a model take on this machine: measured when it is first used, and kept.

The table lies in the user's cache folder (or ``DRAFTPROOF_CACHE``), one file for each machine,
model file and number of threads. It is only a beginning: what rounds measure goes on from it, and
where they no longer agree with it, it is written anew. A file that cannot be read is measured
again, and one that cannot be written is done without.

Not here: the tables while they are in use (``latency.py``).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

from platformdirs import user_cache_dir

from draftproof.control.latency import Latency, Table
from draftproof.errors import ModelError
from draftproof.models import Chunk, Model

logger = logging.getLogger("draftproof")

WIDTHS = (1, 5, 2, 9, 3, 17, 4, 7, 6, 8, 13)  # most telling first
REPEATS = 3
SECONDS = 1.0  # after which no further pass is begun
READING = 2 * SECONDS  # that the deeper context may take
CONTEXT = 32  # tokens in the cache meanwhile
DEEP = 512  # more of them, to see what a context costs, unless reading them takes too long
DEEP_WIDTHS = (1, 9)
LOOK = 256  # rounds
VERSION = 2
DIFFERENT = 1.25  # what a table and the measurements may differ by, apart from a common factor


class Calibration:
    """The table of one model, from the cache or measured.

    Args:
        model: one that is a file; for others there is none.
        latency: what the table is for.
    """

    def __init__(self, model: Model, latency: Latency) -> None:
        self._model, self._latency = model, latency
        self._kept: Table | None = None  # as it lies in the cache
        self._rounds = 0

    def begin(self) -> bool:
        """Hand out the table, once; whether the model had to be measured for it.

        The model must be idle: what its first sequence has cached is then forgotten.
        """
        path = _file(self._model) if self._kept is None else None
        if path is None:
            return False
        table = _read(path)
        measured = table is None
        if table is None:
            table = measure(self._model)
            _write(path, table)
        self._kept = table
        if table.passes:
            self._latency.adopt(table)
        return measured

    def keep(self) -> None:
        """Write the table anew, if now and then it is found to have another shape."""
        self._rounds += 1
        if self._rounds % LOOK or not (self._kept and self._kept.passes):
            return
        path, table = _file(self._model), self._latency.table()
        if path is not None and _differ(self._kept.passes, table.passes):
            self._kept = table
            _write(path, table)


def _differ(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Whether two tables have different shapes."""
    ratios = [other[n] / one[n] for n in one.keys() & other.keys()]
    common = median(ratios) if ratios else 1.0
    return not all(common / DIFFERENT < ratio < common * DIFFERENT for ratio in ratios)


def measure(model: Model, clock: Callable[[], float] = time.perf_counter) -> Table:
    """Run passes of some widths, for about a second, and forget them again.

    Returns:
        Median seconds by width, for those there was time for, and what a context adds.
    """
    room = model.capabilities.context_length
    if room < CONTEXT + max(WIDTHS):
        return Table({})
    tokens = [(i * 7919 + 11) % model.capabilities.vocabulary for i in range(CONTEXT + DEEP)]
    try:
        model.truncate(0, 0)
        model.forward([Chunk(0, tokens[:CONTEXT], 0)])
        taken = _passes(model, tokens, WIDTHS, clock)
        widest = max(taken)
        reading = min(taken[widest]) * DEEP / widest
        if room < CONTEXT + DEEP + max(DEEP_WIDTHS) or reading > READING:
            return Table({width: median(seconds) for width, seconds in taken.items()})
        model.forward([Chunk(0, tokens[CONTEXT:], 0)])
        return _without_context(taken, _passes(model, tokens, DEEP_WIDTHS, clock))
    except ModelError as error:
        logger.info("%s could not be measured: %s", model.name, error)
        return Table({})
    finally:
        model.truncate(0, 0)


def _passes(
    model: Model, tokens: Sequence[int], widths: tuple[int, ...], clock: Callable[[], float]
) -> dict[int, list[float]]:
    """Seconds by width behind what is cached, for those there was time for."""
    context, seconds = model.length(0), dict[int, list[float]]()
    end = clock() + SECONDS
    for width in widths * REPEATS:
        if seconds and clock() >= end:
            break
        began = clock()
        model.forward([Chunk(0, tokens[:width], width)])
        seconds.setdefault(width, []).append(clock() - began)
        model.truncate(0, context)
    return dict(sorted(seconds.items()))


def _without_context(taken: Mapping[int, list[float]], deep: Mapping[int, list[float]]) -> Table:
    """Passes behind ``CONTEXT`` tokens and, of two widths, behind ``DEEP`` more.

    Of these the shortest are compared, as a busy machine only adds to them.
    """
    passes = {width: median(seconds) for width, seconds in taken.items()}
    more = {n: (min(deep[n]) - min(taken[n])) / DEEP for n in deep.keys() & taken.keys()}
    if len(more) < len(DEEP_WIDTHS):
        return Table(passes)
    narrow, wide = DEEP_WIDTHS
    each = max(0.0, (more[wide] - more[narrow]) / (wide - narrow))
    shared = max(0.0, more[narrow] - narrow * each)
    alone = {n: s - min(s / 2, CONTEXT * (each * n + shared)) for n, s in passes.items()}
    return Table(alone, each, shared)


def _file(model: Model) -> Path | None:
    """Where the table lies; None where it is no file."""
    path = getattr(model, "path", None)
    if path is None:
        return None
    try:
        stat = os.stat(path)
    except OSError:  # it was loaded, and is gone
        return None
    machine = (platform.node(), platform.machine(), platform.processor(), os.cpu_count())
    threads = getattr(model, "threads", None)
    key = repr((VERSION, machine, os.path.abspath(path), stat.st_size, stat.st_mtime_ns, threads))
    folder = Path(os.environ.get("DRAFTPROOF_CACHE") or user_cache_dir("draftproof"))
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return folder / f"passes-{digest}.json"


def _read(path: Path) -> Table | None:
    """None where there is none, or anything is wrong with it."""
    try:
        data = json.loads(path.read_bytes())
        passes = {int(n): float(s) for n, s in data["passes"].items()}
        each, shared = (float(data[name]) for name in ("each", "shared"))
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return None
    good = passes and all(n > 0 and 0 < s < float("inf") for n, s in passes.items())
    good = good and all(0 <= s < float("inf") for s in (each, shared))
    return Table(passes, each, shared) if good else None


def _write(path: Path, table: Table) -> None:
    """Write beside it, then rename: nobody reads half a file."""
    if not table.passes:
        return
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(".part", path.stem, path.parent)
        with os.fdopen(handle, "w") as stream:
            json.dump(table._asdict(), stream)
        os.replace(part, path)
    except OSError as error:
        logger.info("the table of passes cannot be kept: %s", error)
    finally:
        if part is not None:
            with suppress(OSError):
                os.unlink(part)
