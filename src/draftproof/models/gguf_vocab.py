"""The tokenizer inside a GGUF file, through llama.cpp.

Not here: applying chat templates, and decoding across tokens (``text.py``).
"""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any

from draftproof.errors import ClosedError, PromptError
from draftproof.models.llama import lib

MAX_BYTES = 2**28  # llama.cpp counts bytes and tokens in int32


class GgufTokenizer:
    """See ``text.Tokenizer``. Lives as long as its model.

    Args:
        model: pointer to the ``llama_model``.
    """

    def __init__(self, model: Any) -> None:
        self._pointer = lib.llama_model_get_vocab(model)
        self._size = int(lib.llama_vocab_n_tokens(self._pointer))
        template = lib.llama_model_chat_template(model, None)
        self._template = None if template is None else template.decode("utf-8", "replace")
        self._pieces: dict[int, bytes] = {}

    @property
    def _vocab(self) -> Any:
        if self._pointer is None:
            raise ClosedError("the model of this tokenizer is closed: load it again")
        return self._pointer

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """Every token llama.cpp takes for an end of generation (EOS, EOT, ...); may be empty."""
        vocab = self._vocab
        return frozenset(t for t in range(self._size) if lib.llama_vocab_is_eog(vocab, t))

    @cached_property
    def bos(self) -> int | None:
        """The token every prompt begins with, or None if the file asks for none."""
        token = int(lib.llama_vocab_bos(self._vocab))
        return token if token >= 0 and lib.llama_vocab_get_add_bos(self._vocab) else None

    @cached_property
    def eos(self) -> int | None:
        """The file's EOS, or None."""
        token = int(lib.llama_vocab_eos(self._vocab))
        return token if token >= 0 else None

    @property
    def chat_template(self) -> str | None:
        """The Jinja template of the file, or None."""
        return self._template

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, special tokens written in it recognised, no BOS or EOS added.

        Raises:
            PromptError: the text is longer than llama.cpp can take.
        """
        data = text.encode("utf-8", "replace")
        if len(data) > MAX_BYTES:
            raise PromptError(f"the prompt is longer than {MAX_BYTES} bytes: shorten it")
        tokens, count = self._tokenize(data, len(data) + 16)
        if count < 0:  # it needs that many; spaces and rare characters can take several tokens
            tokens, count = self._tokenize(data, -count)
        return list(tokens[:count])

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; empty for control tokens. May be part of a character."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._render(token, special=False)
        return piece

    def special_text(self, token: int) -> str:
        """How a token is written in a template, control tokens too."""
        return self._render(token, special=True).decode("utf-8", "replace")

    def vocabulary(self) -> list[str]:
        """The V token texts as the file has them, to compare two vocabularies."""
        vocab, text = self._vocab, lib.llama_vocab_get_text
        return [text(vocab, t).decode("utf-8", "replace") for t in range(self._size)]

    def _tokenize(self, data: bytes, capacity: int) -> tuple[Any, int]:
        tokens = (ctypes.c_int32 * capacity)()
        size = len(data)
        return tokens, lib.llama_tokenize(self._vocab, data, size, tokens, capacity, False, True)

    def _render(self, token: int, special: bool) -> bytes:
        assert 0 <= token < self._size, f"no token {token} in a vocabulary of {self._size}"
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def close(self) -> None:
        """Let go of the vocabulary, which the model is about to free."""
        self._pointer = None
