"""What options may be, and the one line that says so when they are something else."""

from __future__ import annotations

import math
import numbers

from draftproof.errors import ParameterError


def require(ok: bool, message: str) -> None:
    """Refuse an option.

    Raises:
        ParameterError: with the message, unless ``ok``.
    """
    if not ok:
        raise ParameterError(message)


def is_int(value: object) -> bool:
    """Whether it is a whole number, NumPy's included."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is a finite real number, NumPy's included."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False
