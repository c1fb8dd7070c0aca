"""Bootstrap intervals, by SciPy: medians, and ratios of sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from draftproof.errors import MissingExtraError

LEVEL = 0.95
RESAMPLES = 2000


class Interval(NamedTuple):
    """An estimate with its bootstrap interval; no bounds where one observation is all there is."""

    value: float
    low: float | None = None
    high: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """The fields."""
        return self._asdict()

    def __str__(self) -> str:
        bounds = "" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.value:.2f}{bounds}"


def require_scipy() -> Any:
    """SciPy's bootstrap.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    try:
        from scipy.stats import bootstrap
    except ImportError as error:
        raise MissingExtraError("a bootstrap interval", "bench") from error
    return bootstrap


def median(values: Sequence[float]) -> Interval:
    """The median of independent observations, at least one."""
    return _interval((np.asarray(values, dtype=float),), np.median)


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Interval:
    """The sum of some over the sum of others, resampled in pairs."""
    pairs = (np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float))
    return _interval(pairs, lambda over, under, axis=-1: over.sum(axis) / under.sum(axis))


def _interval(data: tuple[Any, ...], statistic: Any) -> Interval:
    value = float(statistic(*data))
    if len(data[0]) < 2:
        return Interval(value)
    found = require_scipy()(
        data,
        statistic,
        paired=len(data) > 1,
        method="percentile",
        confidence_level=LEVEL,
        n_resamples=RESAMPLES,
        rng=0,
        vectorized=True,
    ).confidence_interval
    return Interval(value, float(found.low), float(found.high))
