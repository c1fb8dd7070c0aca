"""``draftproof serve``: an OpenAI-compatible server."""

from __future__ import annotations

import logging
from typing import Any

import click

from draftproof.commands.shared import taken
from draftproof.engine import Engine
from draftproof.errors import MissingExtraError
from draftproof.options import pick, refuse_idle_options
from draftproof.terminal import Notices, Terminal
from draftproof.types import ModelOptions, Speculation

OPTIONS = (
    *("target", "draft", "cross_vocabulary", "draft_length", "rule"),
    *("context_length", "threads", "gpu_layers", "device", "dtype", "bit_exact", "verbose"),
)


@click.command("serve", params=taken(*OPTIONS))
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    default=4,
    metavar="N",
    help="Answers that are generated at once. Each needs a context of memory.",
)
@click.option("--host", default="127.0.0.1", help="Where to listen; 0.0.0.0 is everywhere.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, help="The port; 0 takes a free one."
)
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    metavar="KEY",
    envvar="DRAFTPROOF_API_KEY",
    show_default="none is needed",
    help="Answer only those who send this key, also from DRAFTPROOF_API_KEY. May be given several "
    "times.",
)
@click.option(
    "--max-waiting",
    type=click.IntRange(min=0),
    default=256,
    metavar="N",
    help="Answers that may wait; more are refused with 429.",
)
@click.option(
    *("--model-name", "name"),
    metavar="NAME",
    show_default="the target's",
    help="What the model is called.",
)
@click.option(
    "--alias", "aliases", multiple=True, metavar="NAME", help="Another name of it. Several times."
)
@click.option(
    "--max-body",
    type=click.IntRange(min=1),
    default=2**21,
    metavar="BYTES",
    help="A request has no more bytes; larger ones are refused with 413.",
)
@click.pass_context
def serve(
    context: click.Context,
    /,
    target: str,
    parallel: int,
    host: str,
    port: int,
    verbose: bool,
    **options: Any,
) -> int:
    """Answer requests as the OpenAI API does, with speculation and a page that shows it.

    The first Ctrl-C or SIGTERM finishes what runs and refuses the rest; the second stops at once.
    """
    try:
        from draftproof.server.app import create_app
        from draftproof.server.run import address_of, listen, run
        from draftproof.server.settings import Settings
    except ImportError as error:
        raise MissingExtraError("the server", "server") from error
    terminal = _begin(context, verbose)
    speculation = pick(Speculation, options)
    with listen(host, port) as port_taken:
        with terminal.bar("loading") as bar:
            engine = Engine(
                *(target, options["draft"]),
                speculation=speculation,
                options=pick(ModelOptions, {**options, "max_sequences": parallel}),
                progress=bar.update,
                cross_vocabulary=options["cross_vocabulary"],
            )
        with engine:
            settings = pick(Settings, {"name": engine.target.name, **_given(options)})
            app = create_app(engine, settings, speculation)
            terminal.notice(f"{settings.name} is served at {address_of(port_taken)}")
            return run(app, port_taken, verbose)


def _begin(context: click.Context, verbose: bool) -> Terminal:
    """Refuse what would be ignored, and let the log be seen."""
    context.params = {"temperature": 1.0, "raw": False, **context.params}
    refuse_idle_options(context)
    terminal = Terminal(not verbose)
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, handlers=[Notices(terminal)])
    logging.getLogger("draftproof.server").setLevel(logging.INFO)
    return terminal


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options without those that were left out."""
    return {name: value for name, value in options.items() if value is not None}
