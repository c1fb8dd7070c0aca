"""A drafter for measuring: it knows the answer, and is wrong as often as it is told to be.

It takes no time and needs no second model, so engine and controller can be measured apart from any
draft model; the best draft length for its accuracy is known in closed form. Whatever it proposes,
the output is the target's. Its drafts are a function of its seed and of the recorded answers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from draftproof.checks import is_number, require
from draftproof.drafters import Drafter, DraftRequest
from draftproof.errors import ParameterError
from draftproof.params import SamplingParams
from draftproof.stats import Completion
from draftproof.types import Draft, Speculation

BURST = 8  # mean tokens that are wrong in a row


class Generator(Protocol):
    """What generates: the engine."""

    @property
    def drafter(self) -> Drafter | None:
        """What drafts for it."""

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        speculation: Speculation | None = None,
    ) -> Completion:
        """Answer a prompt."""


class ReplayDrafter:
    """Proposes the next tokens of answers that were recorded.

    Args:
        answers: the answer's tokens by the prompt's.
        accuracy: chance that a proposed token is right; at 0 all are wrong.
        burst: whether wrong tokens come in rows of ``BURST`` on average, or each by itself.
        seed: decides which tokens are wrong.

    Raises:
        ParameterError: the accuracy is not a probability.
    """

    def __init__(
        self,
        answers: Mapping[tuple[int, ...], Sequence[int]] | None = None,
        accuracy: float = 1.0,
        burst: bool = False,
        seed: int = 0,
    ) -> None:
        require(
            is_number(accuracy) and 0 <= accuracy <= 1,
            f"the accuracy of a replay must lie from 0 to 1, not {accuracy!r}",
        )
        self.name = f"replay:{accuracy:g}" + ":burst" * burst
        self._answers = {tuple(prompt): list(answer) for prompt, answer in (answers or {}).items()}
        self._accuracy, self._burst, self._seed = accuracy, burst, seed
        self._params: dict[tuple[int, ...], SamplingParams | None] = {}  # of what was recorded
        self._known: dict[int, tuple[int, _Recording | None]] = {}  # by sequence: owner, answer

    def record(
        self, engine: Generator, prompt: Sequence[int], params: SamplingParams | None = None
    ) -> None:
        """Generate an answer plainly and keep it, unless that with these options is known already.

        Raises:
            ParameterError: the answer would be another one next time.
        """
        if params is not None and not params.greedy and params.seed is None:
            raise ParameterError(
                "a replay needs an answer that repeats itself: give a seed, or temperature 0"
            )
        key = tuple(prompt)
        if key not in self._answers or self._params.get(key, params) != params:
            done = engine.generate(list(prompt), params, Speculation(draft_length=0))
            self._answers[key], self._params[key] = list(done.token_ids), params

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """See ``Drafter.propose``."""
        return [self._propose(request) for request in requests]

    def evidence(self, request: DraftRequest) -> int:
        """See ``FreeDrafter.evidence``: how many tokens it has had right in a row."""
        recording = self._recording(request)
        return recording.streak(len(request.tokens)) if recording else 0

    def _propose(self, request: DraftRequest) -> Draft:
        recording = self._recording(request) if request.length else None
        if recording is None:
            return Draft()
        tokens: list[int] = []
        for token in recording.following(len(request.tokens), request.length):
            tokens.append(token)
            if token in request.end_tokens:
                break
        return Draft(tuple(tokens))

    def _recording(self, request: DraftRequest) -> _Recording | None:
        """The answer to this request's prompt, looked up when the request is new."""
        owner, recording = self._known.get(request.seq, (-1, None))
        if owner != request.owner:
            recording = self._find(request.tokens)
            self._known[request.seq] = (request.owner, recording)
        return recording

    def _find(self, tokens: Sequence[int]) -> _Recording | None:
        """Of the prompts that the text begins with, the longest."""
        text = tuple(tokens)
        fitting = [prompt for prompt in self._answers if text[: len(prompt)] == prompt]
        if not fitting:
            return None
        prompt = max(fitting, key=len)
        answer = self._answers[prompt]
        coin = random.Random(f"{self._seed} {prompt}")
        return _Recording(len(prompt), answer, self._hits(len(answer), coin))

    def _hits(self, count: int, coin: random.Random) -> list[bool]:
        """Which tokens of an answer are right: a chain of two states, or coins apart."""
        right, hits = coin.random() < self._accuracy, []
        for _ in range(count):
            hits.append(right)
            if not self._burst:
                right = coin.random() < self._accuracy
            elif right:
                right = coin.random() >= (1 - self._accuracy) / (BURST * self._accuracy)
            else:
                right = self._accuracy > 0 and coin.random() < 1 / BURST
        return hits

    def close(self) -> None:
        """See ``Drafter.close``."""
        self._known.clear()


class _Recording:
    """An answer, and which of its tokens will be proposed rightly.

    Args:
        start: tokens of the prompt.
        answer: the tokens behind it.
        hits: one for each.
    """

    def __init__(self, start: int, answer: Sequence[int], hits: Sequence[bool]) -> None:
        self._start, self._hits = start, hits
        self._proposed = [
            token if hit else _other(token) for token, hit in zip(answer, hits, strict=True)
        ]

    def following(self, length: int, count: int) -> Sequence[int]:
        """What to propose behind ``length`` tokens of text."""
        at = length - self._start
        return self._proposed[at : at + count]

    def streak(self, length: int) -> int:
        """Right tokens in a row before the next."""
        at = streak = min(length - self._start, len(self._hits))
        while streak and self._hits[streak - 1]:
            streak -= 1
        return at - streak


def _other(token: int) -> int:
    """Another token of any vocabulary."""
    return token - 1 if token else 1


def record(engine: Generator, prompt: Sequence[int], params: SamplingParams | None = None) -> None:
    """Let the engine's drafters that replay, if any, know the answer to a prompt beforehand.

    Raises:
        ParameterError: the answer would be another one next time.
    """
    for drafter in getattr(engine.drafter, "drafters", (engine.drafter,)):
        if isinstance(drafter, ReplayDrafter):
            drafter.record(engine, prompt, params)


def parse(rest: str) -> ReplayDrafter:
    """The drafter of ``replay:ACCURACY`` or ``replay:ACCURACY:burst``; it has to record first.

    Raises:
        ParameterError: what follows ``replay:`` is something else.
    """
    number, _, burst = rest.partition(":")
    try:
        if burst not in ("", "burst"):
            raise ValueError
        return ReplayDrafter(accuracy=float(number), burst=bool(burst))
    except ValueError:
        raise ParameterError(
            f"replay takes a chance from 0 to 1 (replay:0.8, replay:0.8:burst), not {rest!r}"
        ) from None
