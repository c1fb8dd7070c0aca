"""Between text and tokens: prompts, chat templates, incremental decoding, stop strings.

Not here: the vocabularies themselves; each backend brings its ``Tokenizer``.
"""

from __future__ import annotations

import codecs
import functools
import json
import weakref
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, cast

from draftproof.errors import MissingExtraError, PromptError
from draftproof.types import Message, Origin, Piece, Prompt

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.ext import Extension
    from jinja2.nodes import Node
    from jinja2.parser import Parser


class Tokenizer(Protocol):
    """A vocabulary, as it comes with the model's file."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens after which the model has nothing more to say; may be empty."""

    @property
    def bos(self) -> int | None:
        """The token every prompt begins with, or None if this model wants none."""

    @property
    def eos(self) -> int | None:
        """The end token that templates write, one of ``end_tokens``, or None."""

    @property
    def chat_template(self) -> str | None:
        """The Jinja template of the file, or None."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, special tokens written in it recognised, no BOS or EOS added."""

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; empty for control tokens. May be part of a character."""

    def special_text(self, token: int) -> str:
        """How a token is written in a template, control tokens too."""

    def vocabulary(self) -> list[str]:
        """The V token texts as the file has them, to compare two vocabularies."""


_pieces: weakref.WeakKeyDictionary[Tokenizer, list[bytes]] = weakref.WeakKeyDictionary()


def all_pieces(tokenizer: Tokenizer, width: int) -> list[bytes]:
    """The bytes of all tokens that have logits, V of them; empty for control tokens and padding.

    Kept, as asking for each takes a while.
    """
    if tokenizer not in _pieces:
        named = min(len(tokenizer.vocabulary()), width)
        found = [tokenizer.piece(token) for token in range(named)]
        _pieces[tokenizer] = found + [b""] * (width - named)
    return _pieces[tokenizer]


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt, vocabulary: int) -> list[int]:
    """Tokens of a prompt.

    Text is taken as it is, chat messages go through the file's template; both begin with exactly
    one BOS where the model wants one. Token ids are taken as they are.

    Raises:
        PromptError: the prompt is empty, of the wrong shape, or has ids outside the vocabulary.
    """
    if isinstance(prompt, str):
        tokens = _with_bos(tokenizer, tokenizer.encode(prompt)) if prompt else []
    elif _is_list(prompt) and prompt and all(isinstance(part, dict) for part in prompt):
        text = apply_template(tokenizer, cast(Sequence[Message], prompt))
        tokens = _with_bos(tokenizer, tokenizer.encode(text))
    else:
        tokens = checked_ids(prompt, vocabulary)
    if not tokens:
        raise PromptError("the prompt is empty: give it some text")
    return tokens


def _with_bos(tokenizer: Tokenizer, tokens: list[int]) -> list[int]:
    bos = tokenizer.bos
    return tokens if bos is None or tokens[:1] == [bos] else [bos, *tokens]


def _is_list(prompt: object) -> bool:
    return isinstance(prompt, Sequence) and not isinstance(prompt, bytes)


def checked_ids(prompt: Sequence[Any], vocabulary: int, what: str = "prompt") -> list[int]:
    """Token ids as they were given.

    Raises:
        PromptError: they are something else.
    """
    if not _is_list(prompt) or any(type(t) is not int or not 0 <= t < vocabulary for t in prompt):
        raise PromptError(
            f"a {what} is text, a list of messages, or a list of token ids "
            f"from 0 to {vocabulary - 1}"
        )
    return list(prompt)


def apply_template(tokenizer: Tokenizer, messages: Sequence[Message]) -> str:
    """The text a chat becomes, ready for the assistant's answer.

    The template is the file's own and runs in Jinja's sandbox, as in transformers.

    Raises:
        PromptError: no template, a message of the wrong shape, or the template's own refusal.
        MissingExtraError: Jinja is not installed.
    """
    if tokenizer.chat_template is None:
        raise PromptError("this model has no chat template: give the prompt as plain text (--raw)")
    for message in messages:
        if not all(isinstance(message.get(field), str) for field in ("role", "content")):
            raise PromptError(f"a message needs a role and a content, both text: {message!r}")
    try:
        return _compiled(tokenizer.chat_template).render(
            messages=list(messages),
            tools=None,
            documents=None,
            add_generation_prompt=True,
            **_special_texts(tokenizer),
        )
    except ImportError as error:
        raise MissingExtraError("a chat template", "gguf") from error
    except Exception as error:  # a template is a program: it may raise anything
        reason = " ".join(str(error).split())
        raise PromptError(f"the model's chat template refuses these messages: {reason}") from error


@functools.lru_cache(maxsize=8)
def _compiled(source: str) -> Template:
    """Jinja as transformers sets it up for templates."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _generation_tag()],
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    environment.filters["tojson"] = lambda value, **options: json.dumps(
        value, ensure_ascii=False, **options
    )
    return environment.from_string(source)


def _generation_tag() -> type[Extension]:
    """``{% generation %}``, which marks the assistant's words for training: its body, as it is."""
    from jinja2.ext import Extension
    from jinja2.nodes import Scope

    class GenerationTag(Extension):
        tags = {"generation"}  # noqa: RUF012  as Jinja declares it

        def parse(self, parser: Parser) -> Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return Scope(body, lineno=line)

    return GenerationTag


def _special_texts(tokenizer: Tokenizer) -> dict[str, str]:
    """What templates call their special tokens."""
    named = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos}
    return {
        name: "" if token is None else tokenizer.special_text(token)
        for name, token in named.items()
    }


class TextStream:
    """Tokens in, text out, as soon as it is certain.

    Bytes that are not yet a whole character wait for the next token. Text that may be the
    beginning of a stop string waits until it is not; a stop string itself never comes out.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self.stopped = False
        self._piece = tokenizer.piece
        self._stop = tuple(stop)
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._held: list[Piece] = []
        self._origin = Origin.PLAIN  # of the newest token

    def push(self, token: int, origin: Origin, stops: bool = True) -> list[Piece]:
        """The text that became certain with this token; sets ``stopped`` at a stop string.

        Args:
            token: the next token.
            origin: where it comes from.
            stops: whether stop strings count yet; once they do they go on to.
        """
        self._origin = origin
        text = self._decode(self._piece(token))
        if not stops:
            return [Piece(text, origin)] if text else []
        return self._release(text)

    def finish(self) -> list[Piece]:
        """What is left when the answer ends without a stop string."""
        pieces = self._release(self._decode(b"", True))
        held, self._held = self._held, []
        return pieces if self.stopped else [*pieces, *held]

    def _release(self, text: str) -> list[Piece]:
        if not text or self.stopped:
            return []
        if not self._stop:
            return [Piece(text, self._origin)]
        self._held.append(Piece(text, self._origin))
        whole = "".join(piece.text for piece in self._held)
        # The stop that is complete first, so that tokens may be cut anywhere.
        found = [(at + len(s), at) for s in self._stop if (at := whole.find(s)) >= 0]
        self.stopped = bool(found)
        return self._take(min(found)[1] if found else len(whole) - self._undecided(whole))

    def _undecided(self, text: str) -> int:
        """Length of the longest ending of ``text`` that a stop string begins with."""
        longest = min(len(text), max(map(len, self._stop)) - 1)
        endings = range(longest, 0, -1)
        return next((n for n in endings if any(s.startswith(text[-n:]) for s in self._stop)), 0)

    def _take(self, count: int) -> list[Piece]:
        """Remove the first ``count`` characters from what is held."""
        taken, held = [], []
        for piece in self._held:
            head, tail = piece.text[:count], piece.text[count:]
            count -= len(head)
            taken += [Piece(head, piece.origin)] if head else []
            held += [Piece(tail, piece.origin)] if tail else []
        self._held = held
        return taken
