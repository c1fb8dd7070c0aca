"""``draftproof plan``: whether speculation pays, and with which draft length."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from draftproof.commands.shared import (
    LOADING,
    SAMPLING,
    NewFile,
    names,
    prompt_options,
    refuse_idle,
    taken,
)
from draftproof.errors import ParameterError
from draftproof.intervals import require_scipy
from draftproof.options import pick
from draftproof.pages import figure
from draftproof.params import SamplingParams
from draftproof.plan import limit, speedup, tokens_per_round
from draftproof.plan.pair import Survey, Surveyed, model_files, survey
from draftproof.plan.profiles import load_profile, save_profile, shipped
from draftproof.plan.report import Findings, best, html, report, save_png
from draftproof.plan.settings import settings
from draftproof.prompts import choose, read_tasks
from draftproof.terminal import Terminal
from draftproof.types import ModelOptions

PAPER = ("alpha", "k", "draft_cost", "verify_cost")


@click.command("plan")
@click.argument("target", required=False)
@click.argument("drafts", nargs=-1)
@click.option("--alpha", type=float, help="On paper: the acceptance rate. No model is needed.")
@click.option("--k", type=click.IntRange(0, 1000), show_default="4", help="On paper: draft length.")
@click.option(
    "--draft-cost",
    type=float,
    show_default="0.1 on paper, else measured",
    help="Of a drafted token, in plain steps: on paper, or on the machine of --profile.",
)
@click.option(
    "--verify-cost",
    type=float,
    show_default="1",
    help="On paper: of the pass over all drafts, in plain steps.",
)
@click.option(
    "--batch-sizes",
    metavar="N,...",
    show_default="1,2,4,8",
    help="Sequences that are answered together.",
)
@click.option(
    "--profile",
    metavar="FILE",
    show_default="this machine",
    help="Plan for another machine: a file of --save-profile, or one that comes along: "
    f"{', '.join(shipped())}.",
)
@prompt_options(2, "2")
@click.option("--raw", is_flag=True, help="Take prompts as plain text, without the template.")
@click.option(
    "--max-tokens", type=click.IntRange(min=2), default=48, help="Tokens of an answer, at most."
)
@click.option(
    "--repeats", type=click.IntRange(min=1), default=5, help="Measurements of each latency."
)
@click.option("--save-profile", type=NewFile(), metavar="FILE", help="Keep this machine's costs.")
@click.option("--png", type=NewFile(), metavar="FILE", help="Write a picture.")
@click.option("--html", "html_file", type=NewFile(), metavar="FILE", help="Write a page.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document.")
@click.pass_context
def plan(
    context: click.Context,
    /,
    target: str | None,
    drafts: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> int:
    """Tell whether TARGET is faster with DRAFTS, and with which draft length.

    Measures the latencies of this machine and how long drafts survive in TARGET's own answers,
    and replays them for every length up to 16. With --alpha it is the formula alone. Above
    temperature 0 answers are drawn with seed 0 unless another is given, and a context is of 1024
    tokens at most unless a longer one is.
    """
    _refuse(context, target, drafts)
    if target is None:
        _paper(options, as_json)
        return 0
    refuse_idle(context, target, ",".join(drafts))
    require_scipy()
    if options["png"] or options["html_file"]:
        figure(1, 1)
    asked, terminal = _asked(target, drafts, options), Terminal()
    with terminal.bar("measuring") as bar:
        found = survey(replace(asked, progress=bar.update))
    _write(_findings(asked, found), terminal, options, as_json)
    return 0


plan.params += taken(*SAMPLING, *LOADING)


def _refuse(context: click.Context, target: str | None, drafts: Sequence[str]) -> None:
    """The formula and the measuring have options of their own."""
    source, given = context.get_parameter_source, context.params
    chosen = {name for name in given if source(name) is ParameterSource.COMMANDLINE}
    if given["alpha"] is None:
        if target is None or not drafts:
            raise ParameterError(
                "name a target and what drafts for it (draftproof plan demo lookup), or give "
                "--alpha for the formula alone"
            )
        paper = {"k", "verify_cost", *(() if given["profile"] else ("draft_cost",))}
        if idle := sorted(paper & chosen):
            raise ParameterError(f"{_flag(idle[0])} is measured here: leave it out")
        if given["profile"] and given["save_profile"]:
            raise ParameterError("--save-profile keeps this machine's costs: leave out --profile")
    elif idle := sorted(chosen - {*PAPER, "as_json"}):
        raise ParameterError(f"{_flag(idle[0])} means nothing with --alpha: leave one out")


def _flag(name: str) -> str:
    spelled = {"target": "TARGET", "html_file": "--html", "drafts": "DRAFT"}
    return spelled.get(name, "--" + name.replace("_", "-"))


def _paper(options: dict[str, Any], as_json: bool) -> None:
    """The formula."""
    defaults = {"k": 4, "draft_cost": 0.1, "verify_cost": 1.0}
    given = {name: options[name] for name in PAPER if options[name] is not None}
    values = defaults | given
    tokens, gain = tokens_per_round(values["alpha"], values["k"]), speedup(**values)
    if as_json:
        found = {**values, "tokens_per_round": tokens, "speedup": gain}
        Terminal().line(json.dumps(found))
    else:
        Terminal().line(f"{tokens:.2f} tokens a round, {gain:.2f}x plain decoding")


def _asked(target: str, drafts: Sequence[str], options: dict[str, Any]) -> Survey:
    params = pick(SamplingParams, options)
    if not params.greedy and params.seed is None:
        params = replace(params, seed=0)  # a trace needs one text
    tasks = choose(read_tasks(options["prompts"]), names(options["categories"]), options["limit"])
    profile = options["profile"]
    return Survey(
        target=target,
        drafters=drafts,
        tasks=tasks,
        params=params,
        options=pick(ModelOptions, options),
        sizes=_sizes(options["batch_sizes"]),
        profile=None if profile is None else load_profile(profile),
        draft_cost=options["draft_cost"],
        repeats=options["repeats"],
        raw=options["raw"],
    )


def _sizes(text: str | None) -> list[int] | None:
    if text is None:
        return None
    if not all(part.isdecimal() and int(part) for part in names(text)) or not names(text):
        raise ParameterError(f"batch sizes are whole numbers with commas, 1,2,4, not {text!r}")
    return [int(part) for part in names(text)]


def _findings(asked: Survey, found: Surveyed) -> Findings:
    chosen = best(found.plans)
    files = model_files(asked.target, asked.drafters)
    return Findings(
        asked.target,
        found.plans,
        found.profile,
        len(asked.tasks),
        list(_notes(asked, found)),
        settings(asked.target, chosen.drafter, chosen.best().k, files),
    )


def _notes(asked: Survey, found: Surveyed) -> Iterator[str]:
    params, profile = asked.params, found.profile
    how = "greedy" if params.greedy else f"temperature {params.temperature}, seed {params.seed}"
    yield (
        f"{len(asked.tasks)} prompts, {how}; costs are in plain steps, intervals (95 %) are over "
        "prompts, for one sequence at a time; the formula takes the mean acceptance and a draft "
        "in every round"
    )
    most, length = limit(profile)
    yield f"were drafts free and always right, {most:.2f}x would be the limit, with {length}"
    yield f"latencies: {profile.kind}, {profile.model} on {profile.machine}; {profile.source}"
    if asked.profile is not None and asked.draft_cost is None:
        own = [one for one in asked.drafters if one in asked.profile.drafts]
        others = [one for one in asked.drafters if one not in own]
        if others:
            yield (
                f"a draft of {', '.join(others)} is taken to cost as many plain steps as here; "
                "--draft-cost gives another number"
            )


def _write(found: Findings, terminal: Terminal, options: dict[str, Any], as_json: bool) -> None:
    for name, write in (
        ("save_profile", lambda path: save_profile(found.profile, path)),
        ("png", lambda path: save_png(found, path)),
        ("html_file", lambda path: path.write_text(html(found), "utf-8", "replace")),
    ):
        path: Path | None = options[name]
        if path is not None:
            write(path)
    if as_json:
        terminal.line(json.dumps(found.to_json()))
    else:
        terminal.show(*report(found))
