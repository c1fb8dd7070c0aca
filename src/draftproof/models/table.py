"""The exact model: a table of conditional probabilities on a handful of tokens.

Tests, documentation and the figures use it: it is instant, and its distribution is known.
Tokens are written as the letters a, b, c, ...; the end token, if there is one, is not written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from draftproof.errors import ClosedError, ModelError, ModelLoadError, PromptError
from draftproof.models import Capabilities, Chunk
from draftproof.types import Array, ModelOptions

Table = Mapping[tuple[int, ...], Sequence[float]]


class LetterTokenizer:
    """One letter per token, from a on."""

    bos: int | None = None
    chat_template: str | None = None

    def __init__(self, size: int, end: int | None = None) -> None:
        self._letters = [chr(ord("a") + i) for i in range(size)]
        self.eos = end
        self.end_tokens = frozenset(() if end is None else (end,))

    def encode(self, text: str) -> list[int]:
        """Letters to tokens; white space around the text is dropped.

        Raises:
            PromptError: a character that is not one of the model's letters.
        """
        strange = set(text.strip()) - set(self._letters)
        if strange:
            raise PromptError(
                f"this model knows the letters {self._letters[0]} to {self._letters[-1]} only, "
                f"not {min(strange)!r}"
            )
        return [self._letters.index(letter) for letter in text.strip()]

    def piece(self, token: int) -> bytes:
        """The letter, nothing for the end token."""
        return b"" if token in self.end_tokens else self._letters[token].encode()

    def special_text(self, token: int) -> str:
        """The letter."""
        return self._letters[token]

    def vocabulary(self) -> list[str]:
        """All letters."""
        return list(self._letters)


class TableModel:
    """p(next | last tokens) looked up in a table.

    Args:
        table: maps the last tokens to a row of V probabilities. The longest ending of the
            sequence that is in the table counts; the empty ending must be there.
        name: for messages.
        end: the end token, if any.
        options: context length (64 if not given) and number of sequences.
    """

    def __init__(
        self,
        table: Table,
        name: str = "table",
        end: int | None = None,
        options: ModelOptions | None = None,
    ) -> None:
        options = options or ModelOptions()
        size = len(table[()])
        self.name = name
        self.tokenizer = LetterTokenizer(size, end)
        self.capabilities = Capabilities(
            context_length=options.context_length or 64,
            vocabulary=size,
            max_sequences=options.max_sequences,
        )
        self._order = max(map(len, table))
        self._logits = {ending: self._row(row) for ending, row in table.items()}
        self._cache: list[list[int]] | None = [[] for _ in range(options.max_sequences)]

    def _row(self, probabilities: Sequence[float]) -> Array:
        """Logits [V] of a row of probabilities."""
        with np.errstate(divide="ignore"):
            return np.log(np.asarray(probabilities, dtype=np.float64))

    def forward(self, chunks: Sequence[Chunk]) -> list[Array]:
        """See ``Model.forward``."""
        return [self._append(chunk) for chunk in chunks]

    def _append(self, chunk: Chunk) -> Array:
        cached = self._sequences()[chunk.seq]
        if len(cached) + len(chunk.tokens) > self.capabilities.context_length:
            raise ModelError(f"{self.name} was run past its context")
        cached.extend(chunk.tokens)
        ends = range(len(cached) - chunk.logits + 1, len(cached) + 1)
        rows = [self._lookup(cached[max(0, end - self._order) : end]) for end in ends]
        return np.stack(rows) if rows else np.empty((0, self.capabilities.vocabulary))

    def _lookup(self, ending: list[int]) -> Array:
        tails = (tuple(ending[i:]) for i in range(len(ending) + 1))
        return next(self._logits[tail] for tail in tails if tail in self._logits)

    def _sequences(self) -> list[list[int]]:
        if self._cache is None:
            raise ClosedError(f"{self.name} is closed: load it again")
        return self._cache

    def length(self, seq: int) -> int:
        """See ``Model.length``."""
        return len(self._sequences()[seq])

    def truncate(self, seq: int, length: int) -> None:
        """See ``Model.truncate``."""
        del self._sequences()[seq][length:]

    def close(self) -> None:
        """See ``Model.close``."""
        self._cache = None


# Small Markov chains on a, b, c, d, where d ends the text.
_TARGET: Table = {
    (): (0.5, 0.25, 0.25, 0.0),
    (0,): (0.125, 0.75, 0.0625, 0.0625),
    (1,): (0.25, 0.0625, 0.625, 0.0625),
    (2,): (0.625, 0.25, 0.0625, 0.0625),
}
_DRAFT: Table = {
    (): (0.25, 0.25, 0.25, 0.25),
    (0,): (0.25, 0.5, 0.125, 0.125),
    (1,): (0.25, 0.25, 0.375, 0.125),
    (2,): (0.5, 0.25, 0.125, 0.125),
}
TABLES = {"markov": _TARGET, "markov-draft": _DRAFT}


def load(name: str, options: ModelOptions) -> TableModel:
    """A table by its name.

    Raises:
        ModelLoadError: no such table.
    """
    if name not in TABLES:
        raise ModelLoadError(f"no table is called {name!r}: take one of {', '.join(TABLES)}")
    return TableModel(TABLES[name], f"table:{name}", 3, options)
