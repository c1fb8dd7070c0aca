"""The arms of a benchmark: what one is, how it is written, and one that runs an engine.

Not here: loading them (``load.py``) and the order in which they run (``bench.py``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from draftproof.checks import require
from draftproof.drafters import split_chain
from draftproof.engine import Engine
from draftproof.errors import ParameterError
from draftproof.params import SamplingParams
from draftproof.stats import Stats

PLAIN = "plain"
TRANSFORMERS = "transformers"


class ArmSpec(NamedTuple):
    """An arm, as it is asked for.

    Attributes:
        label: its text.
        drafter: what drafts, as ``load_drafter`` takes it; "none" for plain decoding.
        length: the draft length; None for auto.
    """

    label: str
    drafter: str
    length: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, and when its tokens came.

    Attributes:
        token_ids: the emitted tokens.
        rounds: for each target pass that emitted something, how many tokens and after how many
            seconds; the first one's are the time to first token.
        stats: what the engine counted; None where another library generated.
    """

    token_ids: tuple[int, ...]
    rounds: tuple[tuple[int, float], ...]
    stats: Stats | None


class Arm(Protocol):
    """Something that answers."""

    @property
    def label(self) -> str:
        """What to call it."""

    def answer(self, prompt: Sequence[int], params: SamplingParams) -> Answer:
        """Answer a prompt, and measure it."""


def parse_arm(text: str) -> ArmSpec:
    """An arm from its text: ``plain``, or DRAFTER, DRAFTER@K or DRAFTER@auto.

    Raises:
        ParameterError: the text is none of these.
    """
    drafter, at, length = text.rpartition("@")
    require(
        not (at and length[:1] in ("-", "+") and length[1:].isdecimal()),
        f"{length!r} is no draft length: write {drafter}@3 or {drafter}@auto",
    )
    if not at or not (length == "auto" or length.isdecimal()):  # a path may hold an @
        drafter, at, length = text, "", "auto"
    if drafter in ("", "none") or (drafter == PLAIN and at):
        raise ParameterError(
            f"an arm is plain, DRAFTER, DRAFTER@K or DRAFTER@auto, not {text!r}: write lookup@3, "
            "model.gguf@auto, ..."
        )
    if drafter == PLAIN:
        return ArmSpec(text, "none", 0)
    return ArmSpec(text, drafter, None if length == "auto" else int(length))


def drafters_of(specs: Iterable[ArmSpec]) -> list[str]:
    """The drafters of Draftproof's own arms, each once."""
    own = (spec.drafter for spec in specs if spec.drafter.partition(":")[0] != TRANSFORMERS)
    parts = (part for drafter in own if drafter != "none" for part in split_chain(drafter))
    return list(dict.fromkeys(parts))


def parse_arms(texts: Sequence[str]) -> list[ArmSpec]:
    """All arms, plain decoding first: it is what the others are compared with.

    Raises:
        ParameterError: one of them is not an arm, or is named twice.
    """
    specs = [parse_arm(text) for text in dict.fromkeys((PLAIN, *texts))]
    for text in texts:
        if texts.count(text) > 1:
            raise ParameterError(f"the arm {text} is named twice: leave one out")
    return specs


class EngineArm:
    """An arm that runs an engine.

    Args:
        label: what to call it.
        engine: what answers.
        cold: whether nothing of a prompt may be left in the caches by the answer before.
    """

    def __init__(self, label: str, engine: Engine, cold: bool = True) -> None:
        self.label = label
        self._engine = engine
        self._cold = cold

    def answer(self, prompt: Sequence[int], params: SamplingParams) -> Answer:
        """See ``Arm.answer``."""
        if self._cold:
            self._cool(prompt)
        rounds = []
        request = self._engine.submit(list(prompt), params)
        before = time.perf_counter()
        for step in self._engine.follow(request):
            if step.tokens:
                now = time.perf_counter()
                rounds.append((len(step.tokens), now - before))
                before = now
        done = self._engine.completion(request)
        assert sum(count for count, _ in rounds) == done.stats.completion_tokens
        return Answer(done.token_ids, tuple(rounds), done.stats)

    def _cool(self, prompt: Sequence[int]) -> None:
        """Another text, so that neither target nor drafter finds the prompt in its cache."""
        other = [int(prompt[0] == 0)]
        self._engine.generate(other, SamplingParams(max_tokens=1, ignore_eos=True))
