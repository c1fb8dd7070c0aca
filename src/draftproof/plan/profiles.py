"""What passes take on a machine: measured, or estimated from its data sheet; kept in a file.

A profile is JSON: ``kind``, ``machine``, ``model``, ``context``, ``source``, and either
``passes``, rows of [tokens in the pass, sequences, seconds], or ``roofline``, from which the
passes are computed. Not here: measuring (``measure.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from draftproof.checks import is_int, is_number
from draftproof.errors import ParameterError

MEASURED, ROOFLINE = "measured", "roofline estimate"
WIDEST = 17  # tokens of a sequence in one pass: sixteen drafts and the newest token
ROOFLINE_SEQUENCES = (1, 2, 4, 8, 16, 32, 64)


class Pass(NamedTuple):
    """What a target pass takes.

    Attributes:
        tokens: in the pass, over all sequences.
        sequences: in the pass.
        seconds: the median.
        low: the lower end of its interval, None where that is not known.
        high: the upper end.
    """

    tokens: int
    sequences: int
    seconds: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The costs of a model on a machine.

    Attributes:
        kind: "measured" or "roofline estimate".
        machine: in words.
        model: the target.
        context: tokens in the cache of each sequence when it was measured.
        source: where the numbers come from.
        passes: the latency table; it holds a plain step for each number of sequences.
        drafts: seconds a drafted token, by drafter and number of sequences.
    """

    kind: str
    machine: str
    model: str
    context: int
    source: str
    passes: tuple[Pass, ...]
    drafts: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    @property
    def sequences(self) -> list[int]:
        """The batch sizes it knows."""
        return sorted({one.sequences for one in self.passes})

    def longest(self, sequences: int) -> int:
        """Most drafts a sequence can have in its table: nothing is guessed beyond it."""
        return max(p.tokens for p in self.passes if p.sequences == sequences) // sequences - 1

    def verify(self, tokens: int, sequences: int) -> float:
        """Seconds of a pass; between measured ones on a straight line."""
        rows = sorted(p for p in self.passes if p.sequences == sequences)
        assert rows[0].tokens <= tokens <= rows[-1].tokens
        return float(np.interp(tokens, [p.tokens for p in rows], [p.seconds for p in rows]))

    def plain(self, sequences: int) -> float:
        """Seconds of a plain step of so many sequences."""
        return self.verify(sequences, sequences)

    def to_json(self) -> dict[str, Any]:
        """What a file holds."""
        return {
            "kind": self.kind,
            "machine": self.machine,
            "model": self.model,
            "context": self.context,
            "source": self.source,
            "passes": [list(one) for one in self.passes],
            "drafts": {
                name: {str(size): seconds for size, seconds in costs.items()}
                for name, costs in self.drafts.items()
            },
        }


def shipped() -> list[str]:
    """The names of the profiles that come along."""
    folder = files("draftproof") / "data" / "profiles"
    return sorted(one.name.removesuffix(".json") for one in folder.iterdir())


def save_profile(profile: Profile, path: Path) -> None:
    """Write a profile."""
    path.write_text(json.dumps(profile.to_json(), indent=1) + "\n", encoding="utf-8")


def load_profile(name: str) -> Profile:
    """A profile from a file, or one of those that come along, by its name.

    Raises:
        ParameterError: there is none, or the file is no profile.
    """
    if name in shipped():
        data = (files("draftproof") / "data" / "profiles" / f"{name}.json").read_bytes()
    else:
        try:
            data = Path(name).expanduser().read_bytes()
        except OSError as error:
            raise ParameterError(
                f"the profile {name} cannot be read ({error.strerror or error}): give a file of "
                f"--save-profile, or one of {', '.join(shipped())}"
            ) from None
    try:
        return profile_of(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ParameterError(
            f"{name} is no profile ({reason}): make one with plan --save-profile"
        ) from None


def profile_of(data: dict[str, Any]) -> Profile:
    """A profile from what a file holds.

    Raises:
        ValueError, KeyError, TypeError: something is wrong with it.
    """
    kind = data["kind"]
    if kind not in (MEASURED, ROOFLINE):
        raise ValueError(f"it is of kind {kind!r}")
    rows = roofline(data["context"], **data["roofline"]) if kind == ROOFLINE else data["passes"]
    passes = tuple(_pass(row) for row in rows)
    if not passes:
        raise ValueError("it holds no passes")
    for size in {one.sequences for one in passes}:
        if not any(one.tokens == one.sequences == size for one in passes):
            raise ValueError(f"it holds no plain step of {size} sequences")
    texts = {name: str(data[name]) for name in ("machine", "model", "source")}
    drafts = {
        name: {int(size): float(seconds) for size, seconds in costs.items()}
        for name, costs in data.get("drafts", {}).items()
    }
    return Profile(kind=kind, context=int(data["context"]), passes=passes, drafts=drafts, **texts)


def _pass(row: Any) -> Pass:
    one = Pass(*row)
    if not (is_int(one.tokens) and is_int(one.sequences) and 1 <= one.sequences <= one.tokens):
        raise ValueError(f"{row!r} is no pass")
    if not (is_number(one.seconds) and one.seconds > 0):
        raise ValueError(f"{row!r} has no seconds")
    return one


def roofline(
    context: int,
    weight_bytes: float,
    flops_per_token: float,
    cache_bytes_per_token: float,
    bandwidth: float,
    flops: float,
) -> list[Pass]:
    """Passes at the limits of memory and arithmetic, whichever is slower.

    A pass reads all weights once and every sequence's cache; no pass of a real machine is faster
    (Williams, Waterman and Patterson, "Roofline", CACM 2009).

    Args:
        context: tokens in each cache.
        weight_bytes: of the model.
        flops_per_token: floating point operations a token, twice the parameters.
        cache_bytes_per_token: keys and values of a token.
        bandwidth: bytes a second.
        flops: operations a second.
    """

    def seconds(tokens: int, sequences: int) -> float:
        memory = (weight_bytes + sequences * context * cache_bytes_per_token) / bandwidth
        return max(memory, tokens * flops_per_token / flops)

    return [
        Pass(width * size, size, seconds(width * size, size))
        for size in ROOFLINE_SEQUENCES
        for width in range(1, WIDEST + 1)
    ]
