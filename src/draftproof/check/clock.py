"""How long a stage may take, and how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much an audit does.

    Attributes:
        seconds: most it takes, about; a stage begins nothing when its part is over.
        prompts: prompts whose texts are compared.
        tokens: tokens of a text.
        rounds: rounds whose rows are kept and looked at.
        drafts: drafted tokens whose draws are tested.
        answers: answers whose law is tested, for each of ``laws`` prompts.
        laws: prompts whose next tokens' law is tested.
        cells: into which their answers are told apart, for each.
        runs: simulated audits behind each point of a power curve.
    """

    seconds: float
    prompts: int
    tokens: int
    rounds: int
    drafts: int
    answers: int
    laws: int
    cells: int
    runs: int = 100


QUICK = Extent(
    seconds=42, prompts=6, tokens=32, rounds=24, drafts=1000, answers=2000, laws=1, cells=16
)
FULL = Extent(
    seconds=520, prompts=48, tokens=96, rounds=80, drafts=20_000, answers=20_000, laws=3, cells=40
)


class Clock:
    """Runs for one stage.

    Args:
        seconds: of the stage.
        tell: called with the part of them that is over, from 0 to 1.
    """

    def __init__(self, seconds: float, tell: Callable[[float], None] = lambda part: None) -> None:
        self._seconds, self._tell = seconds, tell
        self._began = time.perf_counter()

    def left(self, part: float = 1.0) -> bool:
        """Whether this part of the seconds is not over yet."""
        over = (time.perf_counter() - self._began) / self._seconds
        self._tell(min(over, 1.0))
        return over < part
