"""A model whose logits have the same bits however a text is cut into passes.

It stands in front of any other: each pass, plain ones too, is padded to one class of widths that
was found to give the same bits (``widths.py``), behind the real tokens and forgotten at once, and
holds one sequence. So a text is the same bit for bit with and without speculation, with any draft
length, in any batch, and whatever of it was cached. It costs speed, which is measured and told.

Not here: what is the same on another machine, or with another number of threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import NamedTuple

from draftproof.errors import ModelError, ModelLoadError
from draftproof.models import Capabilities, Chunk, Model
from draftproof.models.widths import (
    STRETCH,
    Widths,
    copy,
    find,
    holds,
    joined,
    places,
    read,
    sample,
)
from draftproof.text import Tokenizer
from draftproof.types import Array

VERIFIED = 5  # tokens of the verification that is timed: four drafts and one more
PROMPT = 128  # tokens of the prompt that is timed
_REPEATS = 3  # the fastest counts

_logger = logging.getLogger("draftproof")


class Seconds(NamedTuple):
    """What a pass takes: in the ordinary mode, and in this one."""

    ordinary: float
    exact: float

    @property
    def ratio(self) -> float:
        """How many times longer it takes."""
        return self.exact / self.ordinary


@dataclass(frozen=True, slots=True)
class Cost:
    """What bit-exact mode costs, as measured when the model was loaded.

    Attributes:
        widths: the class that passes are padded to.
        step: one token.
        verify: ``VERIFIED`` tokens.
        prompt: ``PROMPT`` tokens, or as many as the context holds.
    """

    widths: Widths
    step: Seconds
    verify: Seconds
    prompt: Seconds

    def __str__(self) -> str:
        return (
            f"bit-exact: passes of {self.widths}; one-token step {self.step.ratio:.2f}x, "
            f"verification of {VERIFIED - 1} drafts {self.verify.ratio:.2f}x, "
            f"prompts {self.prompt.ratio:.2f}x the ordinary time"
        )


class BitExactModel:
    """See ``models.Model``.

    Whenever a text is twice as long as where the class was tried last, it is tried again there.

    Args:
        model: the model that runs; it is closed together with this one.
        context_length: most entries of a sequence, if fewer than it holds.

    Raises:
        ModelLoadError: it cannot be rolled back, or gives the same bits with no class of widths.
    """

    def __init__(self, model: Model, context_length: int | None = None) -> None:
        has = model.capabilities
        if not has.rollback:
            raise ModelLoadError(
                f"{model.name} cannot be run bit-exactly, which needs rollback "
                f"({has.no_rollback_reason}): leave bit-exact mode out"
            )
        self._model = model
        self.widths = find(model)
        length = has.context_length - has.context_length % self.widths.align
        self._capabilities = replace(has, context_length=min(length, context_length or length))
        self._texts: list[list[int]] = [[] for _ in range(has.max_sequences)]
        self._tried = places(has.context_length)[-1] + STRETCH
        self._no_rows = copy(model.forward([Chunk(0, [0], 1)])[0])[:0]
        self.cost = self._measure()
        _logger.info("%s: %s", model.name, self.cost)

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model.name

    @property
    def path(self) -> str | None:
        """The model's file, if it is one."""
        return getattr(self._model, "path", None)

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return self._capabilities

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer and chat template."""
        return self._model.tokenizer

    def forward(self, chunks: Sequence[Chunk]) -> list[Array]:
        """See ``Model.forward``; a pass holds one sequence, and the logits stay valid.

        Raises:
            ModelError: a sequence would pass the context, a pass failed, or the class does not
                hold for texts this long. The chunks before that one are appended.
            ClosedError: the model is closed.
        """
        return [self._append(chunk) for chunk in chunks]

    def length(self, seq: int) -> int:
        """Entries of a sequence; what of them is not cached is read with what comes next."""
        return len(self._texts[seq])

    def truncate(self, seq: int, length: int) -> None:
        """See ``Model.truncate``."""
        self._model.truncate(seq, length)
        del self._texts[seq][length:]

    def close(self) -> None:
        """Free everything. May be called twice."""
        self._model.close()

    def _append(self, chunk: Chunk) -> Array:
        """Read one sequence's tokens; their logits, [chunk.logits, V]."""
        known, limit = self._texts[chunk.seq], self._capabilities.context_length
        text = [*known, *chunk.tokens]
        assert 0 <= chunk.logits <= len(chunk.tokens) > 0
        if len(text) > limit:
            raise ModelError(
                f"{self.name} holds {limit} tokens a sequence, and {len(text)} were given: "
                "shorten the text, or load the model with a longer context"
            )
        try:
            if len(known) >= 2 * self._tried:
                self._try_again(chunk.seq, known)
            passes = read(self._model, self.widths, chunk.seq, text, len(text) - chunk.logits)
            parts = [copy(rows) for rows in passes]
        except BaseException:  # a Ctrl-C too
            self._model.truncate(chunk.seq, len(known))
            raise
        self._texts[chunk.seq] = text
        return parts[0] if len(parts) == 1 else joined([self._no_rows, *parts])

    def _try_again(self, seq: int, known: Sequence[int]) -> None:
        """Try the class behind a text, which may take other kernels than the short ones.

        Raises:
            ModelError: it does not hold.
        """
        text = [*known, *sample(self._model, STRETCH)][: self._model.capabilities.context_length]
        if not holds(self._model, self.widths, text, len(known), (seq,) * 3):
            raise ModelError(
                f"{self.name}: at {len(known)} tokens passes of {self.widths} no longer give the "
                f"same bits: load it with a context length of {self._tried}, or leave bit-exact "
                "mode out"
            )
        self._model.truncate(seq, len(known))
        self._tried = len(known)

    def _measure(self) -> Cost:
        text = sample(self._model, PROMPT)
        middle = len(text) // 2
        step = self._time(text[: middle + 1], middle, 1, _REPEATS)
        several = text[: middle + VERIFIED]
        verify = self._time(several, middle, len(several) - middle, _REPEATS)
        prompt = self._time(text, 0, 1, 1)
        self._model.truncate(0, 0)
        return Cost(self.widths, step, verify, prompt)

    def _time(self, text: Sequence[int], start: int, logits: int, repeats: int) -> Seconds:
        """Time to read a text from ``start`` on, with the logits of its last tokens."""
        model, widths = self._model, self.widths

        def ordinary() -> Array:
            return model.forward([Chunk(0, text[start:], logits)])[0]

        def exact() -> Array:
            return list(read(model, widths, 0, text, len(text) - logits))[-1]

        model.truncate(0, 0)
        list(read(model, widths, 0, text[:start], start))
        times: dict[Callable[[], Array], list[float]] = {ordinary: [], exact: []}
        for _ in range(repeats):
            for way, seconds in times.items():
                model.truncate(0, start)
                began = perf_counter()
                float(way()[-1, 0])  # waits for a device
                seconds.append(perf_counter() - began)
        return Seconds(min(times[ordinary]), min(times[exact]))
