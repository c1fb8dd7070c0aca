"""Table models whose tokens are any bytes, and drafters between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from draftproof import Drafter, ModelOptions, PromptError
from draftproof.drafters.cross import CrossVocabularyDrafter
from draftproof.models.table import TableModel
from exact import ExactTable, Weights
from toys import Pieces

TARGET = (b"a", b"b", b"ab", b"c")
DRAFT = (b"ba", b"c", b"a", b"abc", b"b")  # ba and abc are its own; ab is the target's own


class ByteTokenizer(Pieces):
    """Writes the longest token that fits. Bytes that no token has are refused.

    ``space`` puts one in front of every text, as SentencePiece does.
    """

    def __init__(self, pieces: Sequence[bytes], space: bool = False, **named: Any) -> None:
        super().__init__(pieces, **named)
        self.space = space

    def special_text(self, token: int) -> str:
        return self.pieces[token].decode("latin-1")

    def encode(self, text: str) -> list[int]:
        data, tokens = b" " * self.space + text.encode(), []
        while data:
            fitting = [t for t in range(len(self.pieces)) if data.startswith(self.piece(t) or b"#")]
            if not fitting:
                raise PromptError("no token for that")
            tokens.append(max(fitting, key=lambda t: len(self.pieces[t])))
            data = data[len(self.pieces[tokens[-1]]) :]
        return tokens


def speaking(model: TableModel, pieces: Sequence[bytes], **named: Any) -> TableModel:
    """The model with another tokenizer."""
    model.tokenizer = ByteTokenizer(pieces, **named)
    return model


def crossing(
    draft: Weights,
    method: str,
    pieces: tuple[Sequence[bytes], Sequence[bytes]] = (TARGET, DRAFT),
    ends: tuple[int | None, int | None] = (None, None),
    context_length: int | None = None,
) -> Callable[[TableModel], Drafter]:
    """Makes the drafter of an exact case, and lets its target speak in ``pieces`` too."""

    def make(target: TableModel) -> Drafter:
        speaking(target, pieces[0], end=ends[0])
        options = ModelOptions(
            max_sequences=target.capabilities.max_sequences, context_length=context_length
        )
        model = speaking(ExactTable(draft, "draft", options=options), pieces[1], end=ends[1])
        return CrossVocabularyDrafter(model, target, method)

    return make
