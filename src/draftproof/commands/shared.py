"""What the commands that measure share: options of the others, files to write, the prompts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from draftproof.options import refuse_idle_options, shared_options
from draftproof.prompts import BUILT_IN

Command = TypeVar("Command", bound=Callable[..., Any])

LOADING = ("context_length", "threads", "gpu_layers", "device", "dtype")
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")


def taken(*names: str) -> list[click.Parameter]:
    """Options that ``generate`` has too, by their names."""
    every = {one.name: one for one in click.command()(shared_options(lambda: None)).params}
    return [every[name] for name in names]


class NewFile(click.ParamType[Path]):
    """A file that is written at the end: that it can be is known before work starts."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """See ``click.ParamType``."""
        path = Path(value).expanduser()
        if path.is_dir():
            self.fail(f"{path} is a folder: give a file", param, ctx)
        if not path.parent.is_dir():
            self.fail(f"{path.parent} is no folder: make it first", param, ctx)
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            self.fail(f"{path} cannot be written: give another file", param, ctx)
        return path


def prompt_options(limit: int | None, limit_text: str) -> Callable[[Command], Command]:
    """Which prompts are measured on."""

    def add(command: Command) -> Command:
        for option in reversed(
            (
                click.option(
                    "--prompts",
                    default=BUILT_IN,
                    metavar="FILE",
                    help='Prompts, one JSON object a line: {"category": "...", "turns": ["..."]}; '
                    "the first turn is asked.",
                ),
                click.option(
                    "--categories",
                    metavar="NAME,...",
                    show_default="all",
                    help="Take the prompts of these categories only.",
                ),
                click.option(
                    "--limit",
                    type=click.IntRange(min=1),
                    default=limit,
                    metavar="N",
                    show_default=limit_text,
                    help="Take the first N prompts of each category.",
                ),
            )
        ):
            command = option(command)
        return command

    return add


def names(text: str | None) -> list[str]:
    """The names in a list with commas."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def refuse_idle(context: click.Context, target: str, draft: str) -> None:
    """An option is used or refused: as of ``generate``, whose other options are not given here."""
    missing = {"target": target, "draft": draft, "rule": None, "draft_length": None, "raw": False}
    context.params = {**missing, **context.params, "target": target, "draft": draft}
    refuse_idle_options(context)
