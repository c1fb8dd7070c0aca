"""``draftproof explain``: the figures in a browser, without any model."""

from __future__ import annotations

import webbrowser

import click

from draftproof.errors import MissingExtraError
from draftproof.terminal import Terminal


@click.command("explain")
@click.option("--host", default="127.0.0.1", help="Where to listen; 0.0.0.0 is everywhere.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default="a free one",
    help="The port; 0 takes a free one.",
)
@click.option(
    "--open/--no-open", "opening", default=False, show_default="no", help="Open a browser, too."
)
def explain(host: str, port: int, opening: bool) -> None:
    """Explain speculative decoding by figures that can be played with; no model is needed.

    Ctrl-C ends it.
    """
    try:
        import uvicorn

        from draftproof.server.explain import figures_app
        from draftproof.server.run import address_of, listen
    except ImportError as error:
        raise MissingExtraError("the page", "server") from error
    with listen(host, port) as taken:
        taken.listen()  # a browser that is quicker than the server waits for it
        Terminal().line(f"{address_of(taken)} explains speculative decoding; Ctrl-C ends it")
        if opening:
            webbrowser.open(address_of(taken))
        config = uvicorn.Config(figures_app(), log_level="warning")
        uvicorn.Server(config).run(sockets=[taken])
