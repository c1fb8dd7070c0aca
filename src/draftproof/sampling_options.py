"""The sampling options of the commands, read from ``SamplingParams``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from draftproof.params import SamplingParams

Command = TypeVar("Command", bound=Callable[..., Any])


class Text(click.ParamType[str]):
    """An argument that can be encoded: the shell passes on any bytes.

    Args:
        empty: whether it may be empty.
    """

    name = "text"

    def __init__(self, empty: bool = True) -> None:
        self._empty = empty

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See ``click.ParamType``."""
        try:
            value.encode()
        except UnicodeEncodeError:
            self.fail("it is not UTF-8 text", param, ctx)
        if not (value or self._empty):
            self.fail("it is empty: give it some text, or leave it out", param, ctx)
        return str(value)


def option_for(
    kind: type, name: str, text: str, flag: str | None = None, **settings: Any
) -> Callable[[Command], Command]:
    """The option for a field of a dataclass, with the field's default.

    Args:
        kind: the dataclass.
        name: of the field.
        text: the help.
        flag: what is typed; the field's name if left out.
        settings: as of ``click.option``.
    """
    default = next(field.default for field in fields(kind) if field.name == name)
    flag = flag or "--" + name.replace("_", "-")
    return click.option(flag, name, default=default, help=text, **settings)


class Bias(click.ParamType[tuple[int, float]]):
    """A token id and what to add to its logit, ``ID=VALUE``."""

    name = "bias"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        """See ``click.ParamType``."""
        token, _, amount = str(value).partition("=")
        try:
            return int(token), float(amount)
        except ValueError:
            self.fail(f"{value!r} is not ID=VALUE, as in 42=-100", param, ctx)


class TextOrFile(Text):
    """A text, or ``@FILE`` for what a file holds."""

    name = "text or @file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See ``click.ParamType``."""
        text = super().convert(value, param, ctx)
        if not text.startswith("@"):
            return text
        try:
            return super().convert(Path(text[1:]).expanduser().read_text("utf-8"), param, ctx)
        except OSError as error:
            self.fail(f"{text[1:]} cannot be read ({error.strerror})", param, ctx)
        except ValueError:
            self.fail(f"{text[1:]} is not UTF-8 text", param, ctx)


class Schema(TextOrFile):
    """A JSON schema, or ``@FILE``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See ``click.ParamType``."""
        text = super().convert(value, param, ctx)
        try:
            json.loads(text)
        except ValueError as error:
            self.fail(f"it is not JSON ({error}): give a schema, or @FILE", param, ctx)
        return text


SAMPLING = (
    option_for(
        SamplingParams,
        "temperature",
        "0 takes the most probable token; the options below up to --seed need more than 0.",
    ),
    option_for(
        SamplingParams, "top_k", "Keep the K most probable tokens; 0 keeps all.", metavar="K"
    ),
    option_for(
        SamplingParams, "top_p", "Keep the most probable tokens up to this mass; 1 keeps all."
    ),
    option_for(
        SamplingParams,
        "min_p",
        "Drop tokens less probable than this part of the most probable one; 0 keeps all.",
    ),
    option_for(
        SamplingParams,
        "typical_p",
        "Keep the tokens of the most typical surprise up to this mass; 1 keeps all.",
    ),
    option_for(
        SamplingParams,
        "seed",
        "The same seed gives the same text, whatever the drafter.",
        type=int,
        show_default="none, each run differs",
    ),
    option_for(
        SamplingParams,
        "repetition_penalty",
        "Make tokens of prompt and answer less likely: above 1; 1 is off.",
    ),
    option_for(
        SamplingParams,
        "presence_penalty",
        "Take this from the logit of every token that is in the answer.",
    ),
    option_for(
        SamplingParams,
        "frequency_penalty",
        "Take this from a token's logit for each time it is in the answer.",
    ),
    option_for(
        SamplingParams,
        "logit_bias",
        "Add to a token's logit, from -100 (never that token) to 100. May be given several times.",
        metavar="ID=VALUE",
        multiple=True,
        type=Bias(),
        show_default="none",
    ),
    option_for(
        SamplingParams,
        "bad_words",
        "A text that never appears in the answer. May be given several times.",
        flag="--bad-word",
        multiple=True,
        type=Text(empty=False),
        show_default="none",
    ),
    option_for(
        SamplingParams,
        "json_schema",
        "Answer with a JSON document of this schema.",
        metavar="SCHEMA|@FILE",
        type=Schema(empty=False),
        show_default="none",
    ),
    option_for(
        SamplingParams,
        "regex",
        "Answer with a text that matches this regular expression.",
        metavar="REGEX|@FILE",
        type=TextOrFile(empty=False),
        show_default="none",
    ),
    option_for(
        SamplingParams,
        "grammar",
        "Answer with a text of this Lark grammar.",
        metavar="LARK|@FILE",
        type=TextOrFile(empty=False),
        show_default="none",
    ),
    option_for(
        SamplingParams,
        "min_tokens",
        "Let the answer end by itself only after this many tokens.",
        type=click.IntRange(min=0),
    ),
    option_for(
        SamplingParams,
        "max_tokens",
        "End an answer after this many tokens.",
        type=click.IntRange(min=1),
    ),
    option_for(
        SamplingParams,
        "stop",
        "End an answer before this text. May be given several times.",
        multiple=True,
        type=Text(empty=False),
        show_default="none",
    ),
    option_for(
        SamplingParams,
        "stop_token_ids",
        "End an answer with this token. May be given several times.",
        flag="--stop-token",
        multiple=True,
        type=click.IntRange(min=0),
        metavar="ID",
        show_default="none",
    ),
    option_for(
        SamplingParams,
        "ignore_eos",
        "Go on past the model's end tokens (for measuring).",
        is_flag=True,
    ),
)
"""Decorators, in the order of the help text."""

SCORES = (
    option_for(
        SamplingParams,
        "logprobs",
        "Give the log-probability of every token and of its N best alternatives (with --json).",
        metavar="N",
        type=click.IntRange(min=0),
        show_default="none",
    ),
    option_for(
        SamplingParams,
        "prompt_logprobs",
        "The same for the tokens of the prompt (with --json).",
        metavar="N",
        type=click.IntRange(min=0),
        show_default="none",
    ),
)
"""What one answer can tell about its tokens."""
