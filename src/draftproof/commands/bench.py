"""``draftproof bench``: arms in turns on the same prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from draftproof.bench import Results, run
from draftproof.bench.arms import drafters_of, parse_arms
from draftproof.bench.load import Arms
from draftproof.bench.report import html, report
from draftproof.commands.shared import (
    LOADING,
    SAMPLING,
    NewFile,
    names,
    prompt_options,
    refuse_idle,
    taken,
)
from draftproof.intervals import require_scipy
from draftproof.options import pick
from draftproof.pages import figure
from draftproof.params import SamplingParams
from draftproof.prompts import choose, encode, read_tasks
from draftproof.terminal import Terminal
from draftproof.types import ModelOptions

STDOUT = Path("-")


@click.command("bench")
@click.argument("target")
@click.option(
    "--arm",
    "arms",
    multiple=True,
    required=True,
    metavar="SPEC",
    help="What to measure beside plain decoding: DRAFTER@K with a draft length, DRAFTER@auto or "
    "DRAFTER with one that follows the measurements; drafters as of generate. For a target "
    "hf:FOLDER also transformers, transformers:lookup@K or transformers:hf:FOLDER@K. May be given "
    "several times.",
)
@prompt_options(None, "all")
@click.option("--raw", is_flag=True, help="Take prompts as plain text, without the chat template.")
@click.option(
    "--max-tokens", type=click.IntRange(min=2), default=128, help="Tokens of an answer, at most."
)
@click.option(
    "--repeats", type=click.IntRange(min=1), default=3, help="Answers to each prompt in each arm."
)
@click.option("--order-seed", type=int, default=0, help="Of the order in which the arms run.")
@click.option(
    "--json",
    "document",
    type=NewFile(),
    metavar="FILE",
    help="Write everything as one JSON document; - for standard output, instead of the tables.",
)
@click.option(
    "--html", "html_file", type=NewFile(), metavar="FILE", help="Write a report with plots."
)
@click.pass_context
def bench(
    context: click.Context,
    /,
    target: str,
    arms: tuple[str, ...],
    document: Path | None,
    html_file: Path | None,
    **options: Any,
) -> int:
    """Measure how fast TARGET answers with different drafters.

    The arms take turns on every prompt, in random order and from cold caches. Ctrl-C ends the
    measuring and keeps what there is.
    """
    specs = parse_arms(arms)
    refuse_idle(context, target, ",".join(drafters_of(specs)) or "none")
    require_scipy()
    if html_file is not None:
        figure(1, 1)
    tasks = choose(read_tasks(options["prompts"]), names(options["categories"]), options["limit"])
    params, terminal = pick(SamplingParams, options), Terminal()
    with terminal.bar("loading") as bar:
        loaded = Arms(target, specs, pick(ModelOptions, options), bar.update)
    with loaded:
        tasks = encode(tasks, loaded.target, options["max_tokens"], options["raw"])
        with terminal.bar("measuring") as bar:
            results = run(
                *(loaded.every, tasks, params, options["repeats"], options["order_seed"]),
                bar.update,
            )
        asked = {"target": target, "arms": list(arms), **options}
        found = results.to_json(asked, loaded.target.tokenizer)
    _write(found, terminal, document, html_file)
    return _exit_code(results)


bench.params += taken(*SAMPLING, "ignore_eos", *LOADING)


def _exit_code(results: Results) -> int:
    return 130 if results.interrupted else 0


def _write(
    found: dict[str, Any], terminal: Terminal, document: Path | None, html_file: Path | None
) -> None:
    text = json.dumps(found)
    if document not in (None, STDOUT):
        document.write_text(text + "\n", encoding="utf-8")
    if html_file is not None:
        html_file.write_text(html(found), "utf-8", "replace")
    if document == STDOUT:
        terminal.line(text)
    else:
        terminal.show(*report(found))
