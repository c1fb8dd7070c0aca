"""What an audit finds: faults, stages, and the document they make."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Any

ALPHA = 1e-6
"""Most that any test on chance may raise a false alarm, however often it is looked at."""

QUESTIONS = {
    "rules": "does accepted mass plus rejected mass times correction equal p?",
    "drafts": "is every draft drawn from the distribution it is said to come from?",
    "greedy": "is the greedy text the same with and without speculation?",
    "law": "do the next tokens together have the target's own distribution?",
    "seeds": "is a seed's text the same with and without speculation?",
    "caches": "do the caches hold the committed text, no more and no less?",
    "batch": "are texts that run together the texts they are alone?",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that must not happen.

    Attributes:
        what: in one line.
        prompt: the token ids it was seen behind.
        text: the same as text.
        position: of the token in question, counted from the start of the prompt.
    """

    what: str
    prompt: tuple[int, ...] = ()
    text: str = ""
    position: int | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Smaller is easier to look at."""
        return len(self.prompt), self.position or 0

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        return {
            "what": self.what,
            "prompt": list(self.prompt),
            "text": self.text,
            "position": self.position,
        }


@dataclass(slots=True, kw_only=True)
class Stage:
    """What one stage of an audit saw.

    Attributes:
        name: what it is called.
        checked: what was looked at.
        detectable: what it would have caught.
        skipped: why it could not be done; empty where it was.
        numbers: what was counted and measured.
        faults: what must not happen.
        data: what the pictures are drawn from.
    """

    name: str
    checked: str = ""
    detectable: str = ""
    skipped: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def question(self) -> str:
        """What it asks."""
        return QUESTIONS[self.name]

    @property
    def status(self) -> str:
        """``failed``, ``passed`` or ``not applicable``."""
        if self.faults:
            return "failed"
        return "not applicable" if self.skipped else "passed"

    @property
    def worst(self) -> Fault | None:
        """The fault with the smallest prompt."""
        return min(self.faults, key=lambda fault: fault.size, default=None)

    def to_json(self) -> dict[str, Any]:
        """All but the pictures' data; of the faults the three smallest, and their number."""
        return {
            "name": self.name,
            "status": self.status,
            "checked": self.checked,
            "detectable": self.detectable,
            "skipped": self.skipped,
            "numbers": {name: _finite(value) for name, value in self.numbers.items()},
            "fault_count": len(self.faults),
            "faults": [fault.to_json() for fault in sorted(self.faults, key=lambda f: f.size)[:3]],
        }


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    return None if isinstance(value, float) and not isfinite(value) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """All of it.

    Attributes:
        target, drafter: names of the pair.
        options: sampling and speculation, by name.
        seed: repeats the audit's own coins.
        seconds: how long it took.
        stages: in order.
    """

    target: str
    drafter: str
    options: dict[str, Any]
    seed: int
    seconds: float
    stages: tuple[Stage, ...]

    @property
    def passed(self) -> bool:
        """Whether no stage found a fault."""
        return not any(stage.faults for stage in self.stages)

    def to_json(self) -> dict[str, Any]:
        """The document ``draftproof check --json`` prints."""
        return {
            "passed": self.passed,
            "target": self.target,
            "drafter": self.drafter,
            "options": self.options,
            "seed": self.seed,
            "alpha": ALPHA,
            "seconds": round(self.seconds, 3),
            "stages": [stage.to_json() for stage in self.stages],
        }
