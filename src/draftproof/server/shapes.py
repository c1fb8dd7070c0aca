"""Answers in the shapes of the OpenAI API: chats and completions, whole and in chunks.

A chunk may hold several tokens; with log-probabilities there is one entry for each of them, the
end token included. An entry's ``token`` is its text, or ``bytes:`` and the bytes' codes where these
are part of a character. The bytes of all entries are the text, up to a stop string.

Not here: counts (``usage.py``), and sending (``events.py``).
"""

from __future__ import annotations

import codecs
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

from draftproof.server.prepare import Job
from draftproof.text import Tokenizer
from draftproof.types import Step, TokenLogprob

LOWEST = -9999.0
"""What stands for a probability of 0: JSON has no infinity."""

Score: TypeAlias = TokenLogprob | int
"""What a token was given; a bare token has nothing before it."""


class Shape(ABC):
    """One HTTP request's answers.

    Args:
        model: its name, as it was asked for.
        tokenizer: the target's.
        scored: whether log-probabilities are wanted.
    """

    prefix = kind = chunk_kind = ""

    def __init__(self, model: str, tokenizer: Tokenizer, scored: bool) -> None:
        self._tokenizer, self._scored = tokenizer, scored
        self._head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }
        self._spelled: dict[int, str] = {}

    def document(self, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """The whole response."""
        return {**self._head, "object": self.kind, "choices": choices, **more}

    def chunk(self, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """A part of a stream."""
        return {**self._head, "object": self.chunk_kind, "choices": choices, **more}

    def told(self, number: int, step: Step) -> tuple[str, list[Score]]:
        """What a step adds to the text of a choice, and to its log-probabilities."""
        return step.text, list(step.logprobs)

    @abstractmethod
    def opening(self, number: int) -> dict[str, Any] | None:
        """The choice in its first chunk, before there is text."""

    @abstractmethod
    def part(self, number: int, text: str, scores: list[Score]) -> dict[str, Any]:
        """The choice in a chunk with text."""

    @abstractmethod
    def closing(self, number: int, reason: str) -> dict[str, Any]:
        """The choice in its last chunk."""

    @abstractmethod
    def whole(self, number: int, text: str, scores: list[Score], reason: str) -> dict[str, Any]:
        """The choice of a response in one."""

    def spelled(self, token: int) -> str:
        """A token as the API writes it."""
        if token not in self._spelled:
            self._spelled[token] = _spelled(self._tokenizer, token)
        return self._spelled[token]


class ChatShape(Shape):
    """``/v1/chat/completions``."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self, number: int) -> dict[str, Any]:
        """See ``Shape.opening``."""
        return self._chunked(number, {"role": "assistant", "content": ""})

    def part(self, number: int, text: str, scores: list[Score]) -> dict[str, Any]:
        """See ``Shape.part``."""
        return {**self._chunked(number, {"content": text}), "logprobs": self._entries(scores)}

    def closing(self, number: int, reason: str) -> dict[str, Any]:
        """See ``Shape.closing``."""
        return {**self._chunked(number, {}), "finish_reason": reason}

    def whole(self, number: int, text: str, scores: list[Score], reason: str) -> dict[str, Any]:
        """See ``Shape.whole``."""
        return {
            "index": number,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": self._entries(scores),
            "finish_reason": reason,
        }

    def _chunked(self, number: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}

    def _entries(self, scores: list[Score]) -> dict[str, Any] | None:
        if not self._scored:
            return None
        scored = [score for score in scores if isinstance(score, TokenLogprob)]
        entries = [
            {
                **self._entry(score.token, score.logprob),
                "top_logprobs": [self._entry(*each) for each in score.top],
            }
            for score in scored
        ]
        return {"content": entries, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self.spelled(token),
            "logprob": max(logprob, LOWEST),
            "bytes": list(self._tokenizer.piece(token)),
        }


class TextShape(Shape):
    """``/v1/completions``.

    Args:
        model: its name, as it was asked for.
        tokenizer: the target's.
        scored: whether log-probabilities are wanted.
        jobs: what was asked.
        echo: whether each text begins with its prompt.
    """

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(
        self, model: str, tokenizer: Tokenizer, scored: bool, jobs: Sequence[Job], echo: bool
    ) -> None:
        super().__init__(model, tokenizer, scored)
        self._echoes = {number: job.prompt for number, job in enumerate(jobs) if echo}
        self._prompts: dict[int, list[Score]] = {n: [p[0]] for n, p in self._echoes.items()}
        self._offsets = [_Offset() for _ in jobs]

    def told(self, number: int, step: Step) -> tuple[str, list[Score]]:
        """See ``Shape.told``; the prompt comes with the first tokens, when it has been read."""
        if number not in self._echoes:
            return super().told(number, step)
        self._prompts[number] += step.prompt_logprobs
        if not step.tokens:
            return "", []
        prompt = b"".join(map(self._tokenizer.piece, self._echoes.pop(number)))
        text, scores = super().told(number, step)
        return prompt.decode("utf-8", "replace") + text, self._prompts[number] + scores

    def opening(self, number: int) -> None:
        """See ``Shape.opening``; there is none."""

    def part(self, number: int, text: str, scores: list[Score]) -> dict[str, Any]:
        """See ``Shape.part``."""
        return self._choice(number, text, self._entries(number, scores), None)

    def closing(self, number: int, reason: str) -> dict[str, Any]:
        """See ``Shape.closing``."""
        return self._choice(number, "", None, reason)

    def whole(self, number: int, text: str, scores: list[Score], reason: str) -> dict[str, Any]:
        """See ``Shape.whole``."""
        return self._choice(number, text, self._entries(number, scores), reason)

    def _choice(
        self, number: int, text: str, scores: dict[str, Any] | None, reason: str | None
    ) -> dict[str, Any]:
        return {"index": number, "text": text, "logprobs": scores, "finish_reason": reason}

    def _entries(self, number: int, scores: list[Score]) -> dict[str, Any] | None:
        """The lists of the older API."""
        if not self._scored:
            return None
        tokens = [score if isinstance(score, int) else score.token for score in scores]
        offset = self._offsets[number]
        return {
            "tokens": [self.spelled(token) for token in tokens],
            "token_logprobs": [_logprob(score) for score in scores],
            "top_logprobs": [self._top(score) for score in scores],
            "text_offset": [offset.before(self._tokenizer.piece(token)) for token in tokens],
        }

    def _top(self, score: Score) -> dict[str, float] | None:
        """The best tokens and the one that was taken."""
        if isinstance(score, int):
            return None
        every = (*score.top, (score.token, score.logprob))
        return {self.spelled(token): max(logprob, LOWEST) for token, logprob in every}


class _Offset:
    """Where tokens begin in a text, in characters."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._count = 0

    def before(self, piece: bytes) -> int:
        """Characters that are complete before this token."""
        count = self._count
        self._count += len(self._decode(piece))
        return count


def _logprob(score: Score) -> float | None:
    return None if isinstance(score, int) else max(score.logprob, LOWEST)


def _spelled(tokenizer: Tokenizer, token: int) -> str:
    piece = tokenizer.piece(token)
    if not piece:
        return tokenizer.special_text(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
