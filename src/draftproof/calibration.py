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
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median

from platformdirs import user_cache_dir

from draftproof.control.latency import Latency
from draftproof.errors import ModelError
from draftproof.models import Chunk, Model

logger = logging.getLogger("draftproof")

WIDTHS = (1, 5, 2, 9, 3, 17, 4, 7, 6, 8, 13)  # most telling first
REPEATS = 3
SECONDS = 1.0  # after which no further pass is begun
CONTEXT = 32  # tokens in the cache meanwhile
LOOK = 256  # rounds
VERSION = 1
DIFFERENT = 1.25  # what a table and the measurements may differ by, apart from a common factor


class Calibration:
    """The table of one model, from the cache or measured.

    Args:
        model: one that is a file; for others there is none.
        latency: what the table is for.
    """

    def __init__(self, model: Model, latency: Latency) -> None:
        self._model, self._latency = model, latency
        self._kept: dict[int, float] | None = None  # as it lies in the cache
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
        if table:
            self._latency.adopt(table)
        return measured

    def keep(self) -> None:
        """Write the table anew, if now and then it is found to have another shape."""
        self._rounds += 1
        path = _file(self._model) if self._kept and self._rounds % LOOK == 0 else None
        if path is not None and self._kept and _differ(self._kept, self._latency.table()):
            self._kept = self._latency.table()
            _write(path, self._kept)


def _differ(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Whether two tables have different shapes."""
    ratios = [other[n] / one[n] for n in one.keys() & other.keys()]
    common = median(ratios) if ratios else 1.0
    return not all(common / DIFFERENT < ratio < common * DIFFERENT for ratio in ratios)


def measure(model: Model, clock: Callable[[], float] = time.perf_counter) -> dict[int, float]:
    """Run passes of some widths, for a second at most, and forget them again.

    Returns:
        Median seconds by width, for those there was time for.
    """
    context, vocabulary = CONTEXT, model.capabilities.vocabulary
    if model.capabilities.context_length < CONTEXT + max(WIDTHS):
        return {}
    tokens = [(i * 7919 + 11) % vocabulary for i in range(CONTEXT + max(WIDTHS))]
    seconds: dict[int, list[float]] = {}
    try:
        model.truncate(0, 0)
        model.forward([Chunk(0, tokens[:context], 0)])
        end = clock() + SECONDS
        for width in WIDTHS * REPEATS:
            if clock() >= end:
                break
            began = clock()
            model.forward([Chunk(0, tokens[context : context + width], width)])
            seconds.setdefault(width, []).append(clock() - began)
            model.truncate(0, context)
    except ModelError as error:
        logger.info("%s could not be measured: %s", model.name, error)
        return {}
    finally:
        model.truncate(0, 0)
    return {width: median(taken) for width, taken in sorted(seconds.items())}


def _file(model: Model) -> Path | None:
    """Where the table lies; None where it is no file."""
    path = getattr(model, "path", None)
    if path is None:
        return None
    stat = os.stat(path)
    machine = (platform.node(), platform.machine(), platform.processor(), os.cpu_count())
    threads = getattr(model, "threads", None)
    key = repr((VERSION, machine, os.path.abspath(path), stat.st_size, stat.st_mtime_ns, threads))
    folder = Path(os.environ.get("DRAFTPROOF_CACHE") or user_cache_dir("draftproof"))
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return folder / f"passes-{digest}.json"


def _read(path: Path) -> dict[int, float] | None:
    """None where there is none, or anything is wrong with it."""
    try:
        table = {int(n): float(s) for n, s in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    good = table and all(n > 0 and 0 < s < float("inf") for n, s in table.items())
    return table if good else None


def _write(path: Path, table: Mapping[int, float]) -> None:
    """Write beside it, then rename: nobody reads half a file."""
    if not table:
        return
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(".part", path.stem, path.parent)
        with os.fdopen(handle, "w") as stream:
            json.dump({str(n): s for n, s in table.items()}, stream)
        os.replace(part, path)
    except OSError as error:
        logger.info("the table of passes cannot be kept: %s", error)
    finally:
        if part is not None:
            with suppress(OSError):
                os.unlink(part)
