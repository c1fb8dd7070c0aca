"""``draftproof check``: is the text of a pair the target's own?"""

from __future__ import annotations

import copy
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from draftproof.check import FULL, OPTIONS, QUICK, Audit, audit
from draftproof.check.check_report import html, report
from draftproof.commands.shared import (
    LOADING,
    NewFile,
    names,
    prompt_options,
    refuse_idle,
    taken,
)
from draftproof.errors import ParameterError
from draftproof.models.describe import describe
from draftproof.options import pick
from draftproof.pages import figure
from draftproof.params import SamplingParams
from draftproof.prompts import BUILT_IN, Task, choose, read_tasks
from draftproof.terminal import Notices, Terminal
from draftproof.types import ModelOptions, Speculation

CONTEXT = 1024  # tokens, unless asked otherwise: an audit's texts are short


@click.command("check")
@click.argument("target")
@click.argument("draft")
@click.option("--quick", is_flag=True, help="Look at less: under a minute, not ten.")
@click.option(
    "--seed",
    "own_seed",
    type=int,
    show_default="drawn",
    help="Of the audit's own coins: the same seed repeats it.",
)
@click.option(
    "--draft-length", type=click.IntRange(min=1), default=4, help="Tokens to propose per round."
)
@prompt_options(None, "all")
@click.option("--raw", is_flag=True, help="Take prompts as plain text, without the chat template.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document.")
@click.option(
    "--html", "html_file", type=NewFile(), metavar="FILE", help="Write a page with pictures."
)
@click.pass_context
def check(
    context: click.Context,
    /,
    target: str,
    draft: str,
    as_json: bool,
    html_file: Path | None,
    **options: Any,
) -> int:
    """Audit that what DRAFT speeds up is still TARGET's own text.

    Seven stages: the rules on this pair's own rows, the honesty of the drafts, greedy texts, the
    law of the next tokens, texts with a seed, the caches, and texts that run together. Exit code 0
    where no fault was found, 1 where one was.
    """
    if draft == "none":
        raise ParameterError("nothing is drafted by none, so there is nothing to check")
    refuse_idle(context, target, draft)
    if html_file is not None:
        figure(1, 1)  # a missing library is told before the work
    terminal = Terminal()
    logging.basicConfig(level=logging.WARNING, handlers=[Notices(terminal)])
    found = _audit(target, draft, terminal, options)
    if html_file is not None:
        html_file.write_text(html(found), "utf-8", "replace")
    if as_json:
        terminal.line(json.dumps(found.to_json()))
    else:
        terminal.show(*report(found))
    return 0 if found.passed else 1


def _audit(target: str, draft: str, terminal: Terminal, options: dict[str, Any]) -> Audit:
    with terminal.bar("checking") as bar:
        return audit(
            target,
            draft,
            params=pick(SamplingParams, options),
            speculation=pick(Speculation, options),
            options=_loading(target, pick(ModelOptions, options)),
            cross_vocabulary=options["cross_vocabulary"],
            tasks=_tasks(options),
            raw=options["raw"],
            seed=options["own_seed"],
            extent=QUICK if options["quick"] else FULL,
            progress=bar.update,
        )


def _loading(target: str, options: ModelOptions) -> ModelOptions:
    """A context that is long enough, and not the longest of a target made for books."""
    if options.context_length is not None:
        return options
    return replace(options, context_length=min(CONTEXT, describe(target, options).context_length))


def _tasks(options: dict[str, Any]) -> list[Task] | None:
    """The prompts asked for; None for those built in."""
    asked = names(options["categories"]), options["limit"]
    if options["prompts"] == BUILT_IN and not any(asked):
        return None
    return choose(read_tasks(options["prompts"]), *asked)


def _changed(name: str, **settings: Any) -> click.Parameter:
    """An option of ``generate`` with another default or text."""
    (option,) = map(copy.copy, taken(name))
    for setting, value in settings.items():
        setattr(option, setting, value)
    return option


check.params += [
    *taken("rule", "cross_vocabulary"),
    _changed("temperature", default=1.0, help="Of the stages that sample; 0 leaves them out."),
    *taken(*OPTIONS[1:]),
    _changed("context_length", show_default=f"the target's own, {CONTEXT} at most"),
    *taken(*LOADING[1:]),
]
