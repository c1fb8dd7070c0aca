"""Tokens by the bytes they stand for: what two tokenizers have in common.

``Vocabulary`` writes bytes in a model's tokens; ``Retelling`` keeps the committed tokens in the
draft model's own. Not here: drafting.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from itertools import groupby

from draftproof.drafters import DraftRequest, Record
from draftproof.errors import PromptError
from draftproof.models import Model
from draftproof.text import all_pieces

WINDOW = 24
"""Tokens before new text that are encoded again with it: it may merge with the last few."""


class Vocabulary:
    """A model's tokens by their bytes.

    Attributes:
        tokenizer: the model's.
        pieces: the bytes of every token that has logits; empty for control tokens and padding.
        special: how control tokens are written.
        by_bytes: one token for each string of bytes.
    """

    def __init__(self, model: Model) -> None:
        self.tokenizer = model.tokenizer
        size = model.capabilities.vocabulary
        named = min(len(self.tokenizer.vocabulary()), size)
        self.pieces = all_pieces(self.tokenizer, size)
        self.special = {
            token: self.tokenizer.special_text(token)
            for token in range(named)
            if not self.pieces[token]
        }
        self.by_bytes = self._distinct()
        self._longest = max(map(len, self.by_bytes), default=0)
        self._controls = {text: token for token, text in self.special.items()}

    def _distinct(self) -> dict[bytes, int]:
        """Of tokens with the same bytes the one the tokenizer writes.

        Else the last: in SentencePiece the 256 bytes come before the letters they repeat.
        """
        found: dict[bytes, int] = {}
        for token, piece in enumerate(self.pieces):
            if piece and not (piece in found and self._encode(piece) == [found[piece]]):
                found[piece] = token
        return found

    def control(self, text: str) -> int | None:
        """The control token that is written so, if there is one."""
        return self._controls.get(text) if text else None

    def join(self, tokens: Sequence[int]) -> bytes:
        """The bytes tokens stand for."""
        return b"".join(self.pieces[token] for token in tokens)

    def write(self, data: bytes) -> list[int | None]:
        """The tokenizer's own tokens of just these bytes, None for a byte that no token has.

        The beginning of a character at the end is spelled, with the token before it where both
        together are a token.
        """
        whole, rest = split(data)
        tokens = self._write(whole)
        last = tokens[-1] if tokens else None
        if rest and last is not None and self.pieces[last] + rest in self.by_bytes:
            return [*tokens[:-1], self.by_bytes[self.pieces[last] + rest]]
        return [*tokens, *self.spell(rest)]

    def _write(self, data: bytes) -> list[int | None]:
        """The longest token that fits comes next, where the tokenizer does not keep the bytes."""
        # White space is written by what follows it, which hardly ever is the end of the text.
        text = data + (b" a" if data.endswith(b" ") else b"a" if data[-1:].isspace() else b"")
        tokens = self._encode(text)
        written = self.join(tokens)
        if not written.endswith(text):
            return list(self.spell(data))
        start = len(written) - len(text)  # a space that some tokenizers put in front
        return list(self._cut(tokens, start, start + len(data)))

    def _cut(self, tokens: Sequence[int | None], start: int, end: int) -> Iterator[int | None]:
        """What of the tokens lies between two bytes; one that stands across either is spelled."""
        place = 0
        for token in tokens:
            piece = b"?" if token is None else self.pieces[token]
            inside = piece[max(0, start - place) : max(0, end - place)]
            if piece and inside == piece:
                yield token
            else:
                yield from self.spell(inside)
            place += len(piece)

    def _encode(self, data: bytes) -> list[int]:
        """Tokens of a text; none where the bytes are no text the tokenizer can read."""
        try:
            tokens = self.tokenizer.encode(data.decode())
        except (UnicodeDecodeError, PromptError):
            return []
        # A tokenizer may have more tokens than its model.
        return tokens if max(tokens, default=0) < len(self.pieces) else []

    def spell(self, data: bytes) -> Iterator[int | None]:
        """Bytes by the longest token that fits, None for a byte that no token has."""
        at = 0
        while at < len(data):
            longest = min(len(data), at + self._longest)
            ends = (end for end in range(longest, at, -1) if data[at:end] in self.by_bytes)
            end = next(ends, at + 1)
            yield self.by_bytes.get(data[at:end])
            at = end

    def tail(self, tokens: Sequence[int], floor: int = 0) -> int:
        """Where the last few tokens begin: at a whole character, behind control tokens."""
        start = len(tokens)
        while start > floor and self.pieces[tokens[start - 1]]:
            start -= 1
            if len(tokens) - start >= WINDOW and self.pieces[tokens[start]][0] & 0xC0 != 0x80:
                break
        return start

    def go_on(self, tokens: Sequence[int], data: bytes) -> list[int]:
        """Tokens of ``data`` behind ``tokens``, as the tokenizer writes both together.

        Tokens that are there stay as they are: where one would have merged with what follows, the
        rest of it is spelled. All ends at the first byte that no token has.
        """
        before = self.join(tokens[self.tail(tokens) :])
        written = self.write(before + data)
        found: list[int] = []
        for token in self._cut(written, len(before), len(before) + len(data)):
            if token is None:
                break
            found.append(token)
        return found


def split(data: bytes) -> tuple[bytes, bytes]:
    """Bytes up to the last whole character, and the beginning of the next.

    Bytes that are no text in the middle already are not split.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(data)
    except UnicodeDecodeError:
        return data, b""
    rest = decoder.getstate()[0]
    return data[: len(data) - len(rest)], rest


class Retelling:
    """One sequence's committed tokens, written in the draft model's own.

    Ordinary tokens are joined to text and encoded again; of what is there only the last
    ``WINDOW`` tokens are, up to the first place where old and new tokens meet, so that a round
    costs the same however long the text is. Bytes of a character that is not whole are spelled
    for the time being, where the draft model has tokens for them.

    A control token becomes the one that is written the same; an end token otherwise the draft
    model's own; the BOS the draft model's own, if it wants one; others are left out.

    Attributes:
        tokens: the text so far, in the draft model's tokens.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self._target, self._draft = target, draft
        self._taken = Record()
        self._begin()

    def _begin(self) -> None:
        bos = self._draft.tokenizer.bos
        self.tokens: list[int] = [] if bos is None else [bos]
        self._floor = len(self.tokens)  # behind the last control token
        self._unwritten = b""  # the beginning of a character that no tokens can spell
        self._kept = 0

    def update(self, request: DraftRequest) -> int:
        """Take in what has been committed.

        Returns:
            How many of the tokens, from the first on, are as they were before.
        """
        before, self._kept = self.tokens, len(self.tokens)
        if self._taken.agree(request) < len(self._taken.tokens):  # another conversation
            self._taken.cut(0)
            self._begin()
        new = request.tokens[len(self._taken.tokens) :]
        self._taken.tokens.extend(new)
        for control, tokens in groupby(new, key=lambda token: not self._target.pieces[token]):
            if control:
                for token in tokens:
                    self._control(token)
            else:
                self._text(self._target.join(list(tokens)))
        return self._kept if self.tokens is before else _agreement(before, self.tokens)

    def _control(self, token: int) -> None:
        theirs, ours = self._target.tokenizer, self._draft.tokenizer
        begin = [] if ours.bos is None else [ours.bos]
        mine = self._draft.control(self._target.special.get(token, ""))
        if mine is None and token in theirs.end_tokens:
            mine = ours.eos
        if mine is None or (self.tokens == begin and (token == theirs.bos or [mine] == begin)):
            return
        self.tokens.append(mine)
        self._floor, self._unwritten = len(self.tokens), b""

    def _text(self, data: bytes) -> None:
        start = self._draft.tail(self.tokens, self._floor)
        old = self.tokens[start:]
        whole, rest = split(self._draft.join(old) + self._unwritten + data)
        self._unwritten = rest if None in self._draft.spell(rest) else b""
        written = self._draft.write(whole if self._unwritten else whole + rest)
        new = [token for token in written if token is not None]
        if start > self._floor:
            new = self._meet(old, new)
        self._kept = min(self._kept, start + _agreement(old, new))
        self.tokens[start:] = new

    def _meet(self, old: list[int], new: list[int]) -> list[int]:
        """``old`` up to the first token that both have at the same byte, from there on ``new``.

        The beginning of ``new`` may be written otherwise only because it is a beginning.
        """
        place, places = 0, dict[int, int]()
        for i, token in enumerate(old):
            places[place] = i
            place += len(self._draft.pieces[token])
        place = 0
        for i, token in enumerate(new):
            met = places.get(place)
            if met is not None and old[met] == token:
                return [*old[:met], *new[i:]]
            place += len(self._draft.pieces[token])
        return new


def _agreement(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common prefix."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
