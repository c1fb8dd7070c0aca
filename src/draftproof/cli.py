"""The command line: arguments become dataclasses, and each command is one call of the library.

Run ``draftproof --help``. Standard output carries the answer alone; errors are one line on
standard error. Exit codes: 0, 1 a failure while running (or the "no" of ``inspect``), 2 something
to put right, 130 Ctrl-C.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from importlib import import_module
from typing import Any, BinaryIO

import click

from draftproof import __version__
from draftproof.chat import Chat, answer, encode, has_template
from draftproof.engine import Engine
from draftproof.errors import DraftproofError, ParameterError, PromptError, UserError
from draftproof.inputs import read_text
from draftproof.inspect import inspect
from draftproof.options import pick, refuse_idle_options, scores, shared_options
from draftproof.params import SamplingParams
from draftproof.report import report
from draftproof.sampling import choices
from draftproof.sampling_options import Text
from draftproof.stats import Completion
from draftproof.terminal import Notices, Terminal, complain, discard
from draftproof.types import DTYPES, Message, ModelOptions, Speculation

LATER = ("bench", "check", "explain", "plan", "serve")
"""Commands that lie in ``commands/`` and are imported when asked for: their libraries take time."""


class Commands(click.Group):
    """The commands, those of ``LATER`` included."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See ``click.Group``."""
        return sorted([*super().list_commands(ctx), *LATER])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See ``click.Group``."""
        if cmd_name not in LATER:
            return super().get_command(ctx, cmd_name)
        command = getattr(import_module(f"draftproof.commands.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(__version__, message="draftproof %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Exact speculative decoding: the target model's own text, faster.

    On a terminal tokens are coloured by their origin: drafted and accepted, correction after a
    rejected draft, bonus after a draft that was accepted whole, or plain. NO_COLOR turns colours
    off, FORCE_COLOR on.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@cli.command()
@click.argument("prompt", required=False, type=Text())
@click.option(
    "--prompt-file",
    type=click.File("rb"),
    metavar="FILE",
    show_default="standard input, if no PROMPT is given",
    help="Read the prompt from a file, - for standard input; one line end behind it is dropped.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Write one JSON document: text, tokens and statistics; with --n a list of choices.",
)
@click.option(
    "--n",
    "count",
    type=click.IntRange(min=1),
    default=1,
    help="Answers to give, one after another; with a seed each has its own.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Tell on standard error what each round was expected to bring, and what it brought.",
)
@shared_options
@scores
@click.pass_context
def generate(
    context: click.Context,
    /,
    prompt: str | None,
    prompt_file: BinaryIO | None,
    as_json: bool,
    count: int,
    explain: bool,
    **options: Any,
) -> int:
    """Answer PROMPT, or the text of a file or of standard input."""
    messages = [*_system(options), {"role": "user", "content": _prompt(prompt, prompt_file)}]
    terminal, params = Terminal(not options["verbose"]), pick(SamplingParams, options)
    with _engine(context, terminal) as engine:
        raw = options["raw"] or not has_template(engine, options["system"], terminal)
        tokens = encode(engine, messages, raw)
        done: list[Completion] = []
        for one in choices(params, count):
            done.append(
                answer(
                    *(engine, tokens, one, terminal),
                    *(not as_json, options["show_rejected"], explain),
                )
            )
            if not as_json:
                terminal.statistics(done[-1])
            if done[-1].finish_reason == "cancelled":
                break
    if as_json:
        documents = [completion.to_json() for completion in done]
        terminal.line(json.dumps(documents[0] if count == 1 else {"choices": documents}))
    return 130 if done[-1].finish_reason == "cancelled" else 0


@cli.command()
@shared_options
@click.pass_context
def chat(context: click.Context, /, **options: Any) -> int:
    """Talk with a model; lines piped in are answered one by one.

    Ctrl-C stops an answer, /help lists the commands, Ctrl-D leaves.
    """
    terminal, params = Terminal(not options["verbose"]), pick(SamplingParams, options)
    with _engine(context, terminal) as engine:
        raw = options["raw"] or not has_template(engine, options["system"], terminal)
        return Chat(
            *(engine, params, terminal, _system(options)), raw, options["show_rejected"]
        ).run()


@cli.command("inspect")
@click.argument("target")
@click.argument("draft", default="none")
@click.option(
    "--context-length",
    type=int,
    show_default="the target's own",
    help="Most tokens of prompt and answer together.",
)
@click.option(
    "--parallel", type=click.IntRange(min=1), default=1, help="Sequences held at once.", metavar="N"
)
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    show_default="its own",
    help="What a Hugging Face checkpoint is to be loaded in.",
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document.")
def inspect_(target: str, draft: str, parallel: int, as_json: bool, **options: Any) -> int:
    """Tell what TARGET is, what it needs with DRAFT, and whether the two can work together.

    Only headers are read, nothing is loaded. Exit code 0 where they can work, 1 where they cannot.
    """
    found = inspect(target, draft, ModelOptions(max_sequences=parallel, **options))
    if as_json:
        Terminal().line(json.dumps(found.to_json()))
    else:
        Terminal().show(*report(found))
    return 0 if found.works else 1


def _system(options: dict[str, Any]) -> list[Message]:
    """The messages before the first turn."""
    text = options["system"]
    return [] if text is None else [{"role": "system", "content": text}]


def _prompt(prompt: str | None, file: BinaryIO | None) -> str:
    if prompt is not None and file is not None:
        raise ParameterError("two prompts: leave out PROMPT, or --prompt-file")
    if prompt is None and file is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise PromptError("no prompt: give it as an argument, with --prompt-file, or by a pipe")
        file = sys.stdin.buffer
    if file is not None:
        prompt = read_text(file, "standard input" if file.name == "<stdin>" else file.name)
    if not (prompt and prompt.strip()):
        raise PromptError("the prompt is empty: give it some text")
    return prompt


def _engine(context: click.Context, terminal: Terminal) -> Engine:
    """The engine the options ask for, once they are known to fit together."""
    options = context.params
    level = logging.INFO if options["verbose"] else logging.WARNING
    logging.basicConfig(level=level, handlers=[Notices(terminal)])
    refuse_idle_options(context)
    speculation = pick(Speculation, options)
    speculation.rule_for(pick(SamplingParams, options))
    with terminal.bar("loading") as bar:
        engine = Engine(
            options["target"],
            options["draft"],
            speculation=speculation,
            options=pick(ModelOptions, options),
            progress=bar.update,
            cross_vocabulary=options["cross_vocabulary"],
        )
    if options["bit_exact"]:
        terminal.note(str(getattr(engine.target, "cost", "")))
    return engine


def main(args: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit code.
    """
    sys.stdout = sys.stdout or io.StringIO()  # None where it was closed
    sys.stderr = sys.stderr or io.StringIO()
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8
    try:
        return int(cli.main(args, prog_name="draftproof", standalone_mode=False) or 0)
    except click.Abort:
        return 130
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "draftproof"
        complain(f"{error.format_message().rstrip('.')} (see {path} --help)")
        return 2
    except DraftproofError as error:
        complain(str(error))
        return 2 if isinstance(error, UserError) else 1
    except OSError as error:
        complain(str(error))
        discard(1)
        return 1
