"""Structured output: which tokens may come next, so that the answer fits a grammar.

llguidance does the parsing. What is allowed is a matter of bytes alone: a token may follow if the
text so far and its bytes begin some text of the grammar, however else a tokenizer would have cut
that text. So the rows do not depend on ``encode``, which may put spaces in front of a text.

Not here: reading a schema, regex or grammar (``grammar_text.py``), putting the rows to use on
logits, and ending an answer that is complete.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import DraftproofError, MissingExtraError, ModelError
from draftproof.grammar_text import LIMITS, Kind, can_be_compiled, lark, line_of, refusal
from draftproof.text import Tokenizer

MAX_FORCED = 512  # bytes, more than a draft has use for
MARK = b"\xff"  # begins what llguidance takes for special tokens; no text has this byte
KEPT = 32  # states; draft model and target ask for the same ones within a round


class _State(NamedTuple):
    """What is known behind an answer: the tokens that may follow, and whether it must end."""

    allowed: NDArray[np.bool_]  # [V]
    complete: bool


class Constraint:
    """The grammar of one request, as a pure function of the answer's tokens.

    Answers may be asked for in any order. What costs time is where an answer differs from the one
    before: the parser is rolled back to their common beginning and reads the rest.

    JSON is written on one line, with or without a space behind commas and colons, unless the
    schema's own ``x-guidance`` says otherwise; properties come in the schema's order. A regex must
    match the whole answer, in Rust's syntax: no lookaround and no back-references. A grammar is
    llguidance's kind of Lark, without special tokens, ``max_tokens``, ``temperature`` and ``stop``.

    Args:
        kind: how ``text`` is to be read.
        text: the schema, regex or grammar; 2^17 characters at most.
        tokenizer: the target's.
        width: V.

    Raises:
        ParameterError: it is malformed, too complex, allows nothing that this vocabulary can
            write, or has a feature that would not be kept exactly.
        MissingExtraError: llguidance is not installed.
    """

    def __init__(self, kind: Kind, text: str, tokenizer: Tokenizer, width: int) -> None:
        self._vocabulary = _vocabulary(tokenizer, width)
        self._grammar = lark(kind, text)
        if not can_be_compiled(self._grammar):
            raise refusal(kind, "it is too complex")
        self._bits = np.empty((1, (self._vocabulary.size + 31) // 32), dtype=np.int32)
        self._restart()
        if self._matcher.is_error():
            raise refusal(kind, line_of(self._matcher.get_error()))
        try:
            self._state(())
        except ModelError as error:
            reason = "there is no text of this model's tokens that fits it"
            raise refusal(kind, reason) from error

    def _restart(self) -> None:
        # A copy of one compiled before would share its lexer, and errors with it.
        self._matcher = self._vocabulary.matcher(self._grammar)
        self._tokens: list[int] = []  # what it has read
        self._states: dict[int, _State] = {}  # by the length of a beginning of those

    def allowed(self, answer: Sequence[int]) -> NDArray[np.bool_]:
        """Which tokens may follow, [V], read-only and never all False.

        The end tokens exactly where the grammar accepts. Everything, where nothing that follows
        can be emitted: behind a token that the grammar refuses, as in a draft, and behind a
        complete answer of a model without end tokens.

        Raises:
            ModelError: no token of this vocabulary goes on, or the grammar is too complex here.
        """
        return self._state(answer).allowed

    def complete(self, answer: Sequence[int]) -> bool:
        """Whether the answer fits and nothing may follow it but its end.

        Raises:
            ModelError: as for ``allowed``.
        """
        return self._state(answer).complete

    def forced(self, answer: Sequence[int]) -> tuple[int, ...]:
        """Tokens that write what must come next, as the tokenizer would; () if that is open.

        Each is allowed, though another way to cut the same text may be too. The end of the forced
        text is left out where what follows it could change the tokens.

        Raises:
            ModelError: the grammar is too complex here.
        """
        answer = list(answer)
        if not self._move(answer, self._agreed(answer)):
            return ()
        text = self._matcher.compute_ff_bytes()[:MAX_FORCED]
        tokens: list[int] = self._vocabulary.tokenizer.tokenize_partial(text, answer[-1:])[0]
        return tuple(tokens[: self._matcher.validate_tokens(tokens)])

    def _state(self, answer: Sequence[int]) -> _State:
        answer = list(answer)
        agreed = self._agreed(answer)
        if agreed == len(answer) and agreed in self._states:
            return self._states[agreed]
        if not self._move(answer, agreed):
            return self._vocabulary.beyond
        while len(self._states) >= KEPT:
            del self._states[next(iter(self._states))]
        state = self._states[len(answer)] = self._read()
        return state

    def _agreed(self, answer: list[int]) -> int:
        """Length of the common beginning with what the parser has read."""
        length = min(len(answer), len(self._tokens))
        if answer[:length] == self._tokens[:length]:  # the usual case, and far quicker
            return length
        pairs = zip(answer, self._tokens, strict=False)
        return next(i for i, (a, b) in enumerate(pairs) if a != b)

    def _move(self, answer: list[int], agreed: int) -> bool:
        """Bring the parser behind the answer; False if the grammar refuses one of its tokens."""
        self._matcher.rollback(len(self._tokens) - agreed)
        del self._tokens[agreed:]
        self._states = {length: s for length, s in self._states.items() if length <= agreed}
        new = answer[agreed:]
        taken = self._matcher.try_consume_tokens(new)
        self._require()
        self._tokens += new[:taken]
        return bool(taken == len(new))

    def _read(self) -> _State:
        """The state behind the tokens that have been read."""
        from llguidance.numpy import fill_next_token_bitmask

        fill_next_token_bitmask(self._matcher, self._bits)
        self._require()
        return self._vocabulary.state(self._bits)

    def _require(self) -> None:
        """An error stays in the matcher: leave it with it."""
        if self._matcher.is_error():
            reason = line_of(self._matcher.get_error())
            self._restart()
            raise ModelError(f"the grammar cannot go on here ({reason}): simplify it")


class _Vocabulary:
    """A tokenizer as llguidance takes it."""

    def __init__(self, tokenizer: Tokenizer, width: int) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self._width = width
        ends = sorted(token for token in tokenizer.end_tokens if token < width)
        self._ends = ends or [width]  # llguidance needs one
        wrapped = _Wrapped(tokenizer, width, self._ends)
        self.size = len(wrapped.tokens)
        self.tokenizer = LLTokenizer(TokenizerWrapper(wrapped), eos_token=self._ends)
        self.beyond = _State(np.ones(width, dtype=np.bool_), False)
        self.beyond.allowed.setflags(write=False)

    def matcher(self, grammar: str) -> Any:
        """A parser of a Lark grammar."""
        from llguidance import LLMatcher, LLParserLimits

        source, limits = LLMatcher.grammar_from_lark(grammar), LLParserLimits(**LIMITS)
        return LLMatcher(self.tokenizer, source, limits=limits, log_level=0)

    def state(self, bits: NDArray[np.int32]) -> _State:
        """From llguidance's bits [1, size / 32]."""
        every = np.unpackbits(bits.view(np.uint8)[0], count=self.size, bitorder="little")
        complete = bool(every[self._ends[0]]) and np.count_nonzero(every) == len(self._ends)
        if complete and self._ends[0] == self._width:
            return self.beyond._replace(complete=True)
        every.setflags(write=False)
        return _State(every[: self._width].view(np.bool_), complete)


class _Wrapped:
    """What llguidance asks of a tokenizer. Tokens without bytes are never allowed.

    The tokenizer is held weakly: it is the key of the cache that holds this.
    """

    def __init__(self, tokenizer: Tokenizer, width: int, ends: Sequence[int]) -> None:
        self._tokenizer = weakref.ref(tokenizer)
        self.eos_token_id = ends[0]
        self.bos_token_id = None
        self.tokens = [tokenizer.piece(token) for token in range(width)]
        self.tokens += [b""] * (ends[0] == width)
        for token, piece in enumerate(self.tokens):
            if token in ends or piece.startswith(MARK):
                self.tokens[token] = b""

    def __call__(self, text: bytes) -> list[int]:
        """The tokenizer's own way to write a text; nothing where it writes another one."""
        tokenizer = self._tokenizer()
        try:
            tokens = tokenizer.encode(text.decode()) if tokenizer else []
        except DraftproofError:  # a character it does not know, or a closed model
            return []
        return tokens if b"".join(self.tokens[token] for token in tokens) == text else []


_vocabularies: weakref.WeakKeyDictionary[Tokenizer, dict[int, _Vocabulary]]
_vocabularies = weakref.WeakKeyDictionary()


def _vocabulary(tokenizer: Tokenizer, width: int) -> _Vocabulary:
    """Made once: 49,000 tokens take a fifth of a second."""
    widths = _vocabularies.setdefault(tokenizer, {})
    if width not in widths:
        try:
            widths[width] = _Vocabulary(tokenizer, width)
        except ImportError as error:
            raise MissingExtraError("structured output", "grammar") from error
    return widths[width]
