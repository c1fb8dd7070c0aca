"""The tokenizer beside a checkpoint, through ``tokenizers``.

Not here: applying chat templates, and decoding across tokens (``text.py``).

Two ways of writing bytes in a vocabulary are known: the alphabet of byte-level BPE (GPT-2), where
each character is a byte; and SentencePiece's, where ``▁`` is a space and ``<0x0A>`` a single byte.
Which one holds is read from the tokenizer's own decoder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from draftproof.errors import ModelLoadError, PromptError

_LETTERS = {letter: bytes([byte]) for byte, letter in bytes_to_unicode().items()}
_ENTRIES = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


class HfTokenizer:
    """See ``text.Tokenizer``.

    Args:
        tokenizer: a fast tokenizer of transformers; it is left as it is.
        model: the model, whose configurations name more end tokens.
        width: V, the rows of its head. The vocabulary is padded or cut to it.
        name: what to call the model in messages.

    Raises:
        ModelLoadError: its tokens are not bytes, or it begins texts with several tokens.
    """

    def __init__(self, tokenizer: Any, model: Any, width: int, name: str) -> None:
        self._backend = _backend(tokenizer, name)
        self._width, self._name = width, name
        self._added = self._backend.get_added_tokens_decoder()
        self._spell = _spelling(self._backend, name)
        self._pieces: dict[int, bytes] = {}
        self.bos: int | None = self._prefix()
        self.eos: int | None = next(self._valid(tokenizer), None)
        configs = (tokenizer, model.config.get_text_config(), model.generation_config)
        self.end_tokens = frozenset(token for c in configs for token in self._valid(c))
        template = tokenizer.chat_template
        self.chat_template: str | None = (
            template.get("default") if isinstance(template, dict) else template
        )

    def _valid(self, settings: Any) -> Iterator[int]:
        """The end tokens that settings name: one, several or none."""
        named = getattr(settings, "eos_token_id", None)
        for token in named if isinstance(named, list | tuple) else [named]:
            if token is not None and 0 <= token < self._width:
                yield int(token)

    def _prefix(self) -> int | None:
        """The token the tokenizer puts before a text, which it need not call BOS."""
        bare = self._backend.encode("a", add_special_tokens=False).ids
        full = self._backend.encode("a", add_special_tokens=True).ids
        ends = range(len(full) - len(bare) + 1)
        prefix = next((full[:end] for end in ends if full[end : end + len(bare)] == bare), [])
        if len(prefix) > 1:
            raise ModelLoadError(
                f"{self._name} begins every text with {len(prefix)} tokens, which is not "
                "supported: give another model"
            )
        return prefix[0] if prefix else None

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, special tokens written in it recognised, no BOS or EOS added.

        Raises:
            PromptError: the tokenizer makes a token that the model has not.
        """
        text = text.encode("utf-8", "replace").decode("utf-8")  # no lone surrogates
        tokens: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        if tokens and max(tokens) >= self._width:
            strange = self._backend.id_to_token(max(tokens))
            raise PromptError(
                f"the prompt has {strange!r}, which the tokenizer knows and {self._name} does not: "
                "leave it out"
            )
        return tokens

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; empty for control tokens. May be part of a character."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._render(token)
        return piece

    def _render(self, token: int) -> bytes:
        assert 0 <= token < self._width, f"no token {token} in a vocabulary of {self._width}"
        added = self._added.get(token)
        if added is not None:
            return b"" if added.special else added.content.encode()
        text = self._backend.id_to_token(token)
        return b"" if text is None else self._spell(text)

    def special_text(self, token: int) -> str:
        """How a token is written in a template, control tokens too."""
        added = self._added.get(token)
        return added.content if added else self.piece(token).decode("utf-8", "replace")

    def vocabulary(self) -> list[str]:
        """The V token texts as the tokenizer has them; ``[PAD7]`` where the model has more rows."""
        name = self._backend.id_to_token
        return [name(token) or f"[PAD{token}]" for token in range(self._width)]


def _backend(tokenizer: Any, name: str) -> Tokenizer:
    """The tokenizer of the ``tokenizers`` library; a copy where it would cut or pad texts."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ModelLoadError(
            f"{name} has a tokenizer without a fast version, which is not supported: save the "
            "model with a tokenizer.json"
        )
    if backend.truncation or backend.padding:
        backend = Tokenizer.from_str(backend.to_str())
        backend.no_truncation()
        backend.no_padding()
    return backend


def _spelling(backend: Tokenizer, name: str) -> Callable[[str], bytes]:
    """From the text of a token, as the vocabulary has it, to its bytes."""
    parts = list(_decoders(json.loads(backend.decoder.__getstate__()) if backend.decoder else {}))
    kinds = {part["type"] for part in parts}
    if "ByteLevel" in kinds:
        return _from_letters
    spaces = [
        part.get("replacement") or part["pattern"].get("String")
        for part in parts
        if part["type"] == "Metaspace" or (part["type"] == "Replace" and part["content"] == " ")
    ]
    if not spaces and "ByteFallback" not in kinds:
        raise ModelLoadError(
            f"{name} has a tokenizer whose tokens are not bytes "
            f"({', '.join(sorted(kinds)) or 'it has no decoder'}): "
            "give a model with byte-level BPE or SentencePiece"
        )
    entries = _ENTRIES if "ByteFallback" in kinds else {}

    def spell(text: str) -> bytes:
        single = entries.get(text)
        if single is not None:
            return single
        for space in spaces:
            text = text.replace(space, " ")
        return text.encode()

    return spell


def _decoders(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A decoder's steps."""
    if state.get("type") == "Sequence":
        for part in state["decoders"]:
            yield from _decoders(part)
    elif state:
        yield state


def _from_letters(text: str) -> bytes:
    return b"".join(_LETTERS.get(letter) or letter.encode() for letter in text)
