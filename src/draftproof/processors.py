"""What changes a request's logits by the tokens before them: a pure function of those tokens.

Each drafted position is adjusted for the *hypothetical* prefix: what has been committed and the
drafts before it. That alone makes an option exact under speculation, custom ones included: a
processor may be any function of (tokens, logits), as long as it keeps nothing from call to call.
Target and draft model go through the same ``Processors``.

Order: logit bias, end tokens before ``min_tokens``, bad words, grammar, repetition penalty,
presence and frequency penalty, custom processors.

Not here: temperature and the filters, which look at one row alone (``sampling.py``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from math import inf
from typing import TYPE_CHECKING

from array_api_compat import array_namespace

from draftproof.checks import require
from draftproof.errors import DraftproofError, ParameterError
from draftproof.params import BAN, GRAMMARS, Processor, SamplingParams
from draftproof.text import Tokenizer, all_pieces
from draftproof.types import Array

if TYPE_CHECKING:
    from draftproof.grammar import Constraint

_Change = Callable[[Array, Sequence[int]], None]
"""Changes a row of logits [V] in place, for tokens drafted behind the committed ones."""


class Processors:
    """All that acts on one request's logits.

    Args:
        params: its options.
        tokens: its committed tokens, a list that grows.
        tokenizer: the target's.
        width: of a row, V.
        ends: tokens that would end the answer.
        constraint: the grammar, if there is one.

    Raises:
        ParameterError: an option names a token that does not exist.
    """

    def __init__(
        self,
        params: SamplingParams,
        tokens: list[int],
        tokenizer: Tokenizer,
        width: int,
        ends: Iterable[int],
        constraint: Constraint | None,
    ) -> None:
        prompt = len(tokens)
        _require_tokens("logit_bias", dict(params.logit_bias), width)
        _require_tokens("stop_token_ids", params.stop_token_ids, width)
        self._changes: list[_Change] = []
        if params.logit_bias:
            self._changes.append(_bias(dict(params.logit_bias)))
        if params.min_tokens:
            self._changes.append(_min_tokens(params.min_tokens, sorted(ends), tokens, prompt))
        if params.bad_words:
            self._changes.append(BadWords(params.bad_words, tokens, tokenizer, width))
        if constraint is not None:
            self._changes.append(_grammar(constraint, tokens, prompt))
        if params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty:
            self._changes.append(Penalties(params, tokens, prompt))
        self._changes += [_custom(processor, tokens) for processor in params.processors]

    def __bool__(self) -> bool:
        return bool(self._changes)

    def apply(self, logits: Array, drafted: Sequence[int]) -> tuple[Array, DraftproofError | None]:
        """A changed copy of logits [n, V], up to the first row that has no distribution.

        Args:
            logits: the last row predicts what follows all of ``drafted``, the one before it what
                follows all but the last of them, and so on.
            drafted: tokens behind the committed ones.

        Returns:
            The rows; and the error that position ends in, should it be reached: nothing is left
            there, or a custom processor failed. Its row, the last one, is then without meaning; so
            it is behind a draft that the options exclude, which is never reached.
        """
        logits = array_namespace(logits).asarray(logits, copy=True)
        count = logits.shape[0]
        before = len(drafted) + 1 - count
        for i in range(count):
            row, prefix = logits[i], drafted[: before + i]
            try:
                self._change(row, prefix)
            except DraftproofError as error:
                row[...] = 0
                return logits[: i + 1], error
            if i + 1 < count and row[drafted[before + i]] == -inf:
                return logits[: i + 2], None
        return logits, None

    def _change(self, row: Array, drafted: Sequence[int]) -> None:
        for change in self._changes:
            change(row, drafted)
        if row[row.argmax()] == -inf:
            raise ParameterError(
                "the options exclude every token: loosen logit_bias, bad_words, the grammar or "
                "the custom processors"
            )


def constraint_for(params: SamplingParams, tokenizer: Tokenizer, width: int) -> Constraint | None:
    """The grammar of a request, if it has one.

    Raises:
        ParameterError: it cannot be used.
        MissingExtraError: llguidance is not installed.
    """
    for kind in GRAMMARS:
        text = getattr(params, kind)
        if text is not None:
            from draftproof.grammar import Constraint  # it needs NumPy, and few requests need it

            return Constraint(kind, text, tokenizer, width)
    return None


def processors_for(
    params: SamplingParams,
    tokens: list[int],
    tokenizer: Tokenizer,
    width: int,
    ends: Iterable[int],
    constraint: Constraint | None,
) -> Processors | None:
    """What acts on a request's logits, None where nothing does. Arguments as of ``Processors``."""
    found = Processors(params, tokens, tokenizer, width, ends, constraint)
    return found or None


class Penalties:
    """Repetition, presence and frequency penalties, counted per token.

    Repetition looks at prompt and answer, as in transformers and vLLM; the other two at the
    answer alone, as in OpenAI's API and vLLM.

    Args:
        params: the request's options.
        tokens: its committed tokens, a list that grows.
        prompt: how many of them are the prompt.
    """

    def __init__(self, params: SamplingParams, tokens: list[int], prompt: int) -> None:
        self._repetition = params.repetition_penalty
        self._presence, self._frequency = params.presence_penalty, params.frequency_penalty
        self._tokens, self._read = tokens, prompt
        self._prompt = set(tokens)
        self._counts: Counter[int] = Counter()

    def __call__(self, row: Array, drafted: Sequence[int]) -> None:
        """Change a row [V] in place."""
        self._counts.update(self._tokens[self._read :])
        self._read = len(self._tokens)
        counts = self._counts + Counter(drafted) if drafted else self._counts
        if self._repetition != 1:
            seen = _indices(row, sorted(self._prompt.union(counts)))
            values = row[seen]
            xp, times = array_namespace(row), self._repetition
            row[seen] = xp.where(values > 0, values / times, values * times)
        if counts and (self._presence or self._frequency):
            ids = sorted(counts)
            amounts = [self._presence + self._frequency * counts[each] for each in ids]
            row[_indices(row, ids)] -= array_namespace(row).asarray(
                amounts, dtype=row.dtype, device=row.device
            )


class BadWords:
    """Excludes every token that would complete one of some texts in the answer.

    By bytes, so that no way of cutting the text into tokens gets around it.

    Args:
        words: the texts.
        tokens: the committed tokens, a list that grows.
        tokenizer: the target's.
        width: of a row, V.
    """

    def __init__(
        self, words: Sequence[str], tokens: list[int], tokenizer: Tokenizer, width: int
    ) -> None:
        self._tokens, self._prompt = tokens, len(tokens)
        self._pieces = all_pieces(tokenizer, width)
        self._words = [word.encode() for word in words]
        self._longest = max(map(len, self._words))
        self._sorted = sorted(range(len(self._pieces)), key=self._pieces.__getitem__)
        self._completing: dict[bytes, list[int]] = {}  # rest of a word: tokens that begin with it
        each = enumerate(self._pieces)
        self._whole = [token for token, piece in each if any(word in piece for word in self._words)]

    def __call__(self, row: Array, drafted: Sequence[int]) -> None:
        """Change a row [V] in place."""
        banned = set(self._whole)
        tail = self._tail(drafted)
        for word in self._words:
            for cut in range(1, min(len(word) - 1, len(tail)) + 1):
                if tail.endswith(word[:cut]):
                    banned.update(self._beginning(word[cut:]))
        if banned:
            row[_indices(row, sorted(banned))] = -inf

    def _tail(self, drafted: Sequence[int]) -> bytes:
        """The last bytes of the answer, as many as can be the beginning of a word."""
        tail = b""
        for token in self._backwards(drafted):
            tail = self._pieces[token] + tail
            if len(tail) >= self._longest:
                break
        return tail

    def _backwards(self, drafted: Sequence[int]) -> Iterator[int]:
        yield from reversed(drafted)
        for at in range(len(self._tokens) - 1, self._prompt - 1, -1):
            yield self._tokens[at]

    def _beginning(self, rest: bytes) -> list[int]:
        """Tokens that begin with the rest of a word: neighbours in alphabetical order."""
        if rest not in self._completing:
            start = bisect_left(self._sorted, rest, key=self._pieces.__getitem__)
            following = map(self._sorted.__getitem__, range(start, len(self._sorted)))
            self._completing[rest] = list(
                takewhile(lambda token: self._pieces[token].startswith(rest), following)
            )
        return self._completing[rest]


def _bias(values: dict[int, float]) -> _Change:
    def change(row: Array, drafted: Sequence[int]) -> None:
        xp = array_namespace(row)
        amounts = [-inf if value <= BAN else value for value in values.values()]
        row[_indices(row, list(values))] += xp.asarray(amounts, dtype=row.dtype, device=row.device)

    return change


def _min_tokens(least: int, ends: list[int], tokens: list[int], prompt: int) -> _Change:
    def change(row: Array, drafted: Sequence[int]) -> None:
        if ends and len(tokens) - prompt + len(drafted) < least:
            row[_indices(row, ends)] = -inf

    return change


def _grammar(constraint: Constraint, tokens: list[int], prompt: int) -> _Change:
    def change(row: Array, drafted: Sequence[int]) -> None:
        xp = array_namespace(row)
        allowed = constraint.allowed([*tokens[prompt:], *drafted])
        row[~xp.asarray(allowed, device=row.device)] = -inf

    return change


def _custom(processor: Processor, tokens: list[int]) -> _Change:
    name = getattr(processor, "__name__", type(processor).__name__)

    def change(row: Array, drafted: Sequence[int]) -> None:
        try:
            changed = processor([*tokens, *drafted], row)
            require(changed.shape == row.shape, f"it returned the shape {changed.shape}")
            row[:] = changed
        except Exception as error:  # somebody's function: anything may go wrong
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ParameterError(
                f"the logits processor {name} failed: {reason}; it takes (tokens, logits [V]) and "
                "returns logits [V]"
            ) from error

    return change


def _require_tokens(option: str, tokens: Iterable[int], width: int) -> None:
    for token in tokens:
        if token >= width:
            raise ParameterError(
                f"{option}: there is no token {token}, the model has {width}: give ids below that"
            )


def _indices(row: Array, ids: Sequence[int]) -> Array:
    """Token ids as an index into a row, on its device."""
    return array_namespace(row).asarray(ids, device=row.device)
