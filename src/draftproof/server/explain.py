"""The page and the figures' numbers over HTTP: parts of the server, and an app of their own.

``GET /`` is the page, ``/page/...`` its files, ``/explain/...`` the numbers. Not here: the numbers
themselves (``explain.py``, ``explain_rounds.py``), and what the page asks of a served model.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from draftproof.errors import ParameterError
from draftproof.explain import correction, curve, verification
from draftproof.explain_rounds import rounds, schedule

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # files of two versions must not mix
}
FIGURES: dict[str, Callable[..., Any]] = {
    "schedule": schedule,
    "rounds": rounds,
    "correction": correction,
    "speedup": curve,
    "verification": verification,
}
NUMBERS: dict[str, Callable[[str], Any]] = {"int": int, "float": float}

FOLDER = Path(__file__).with_name("page")


class _Files(StaticFiles):
    """Static files with the headers of the page."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """See ``StaticFiles.get_response``."""
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


def routes() -> list[BaseRoute]:
    """The page's routes, for a server's app: they take no part in its API description."""
    return [
        Route("/", _page),
        Mount("/page", _Files(directory=FOLDER)),
        *(Route(f"/explain/{name}", _numbers(figure)) for name, figure in FIGURES.items()),
    ]


def add_page(app: Starlette) -> None:
    """Add the page and its figures to a Starlette or FastAPI app."""
    app.router.routes.extend(routes())


def figures_app() -> Starlette:
    """The figures alone: no model is served, which ``GET /stats`` says by having no content."""
    return Starlette(routes=[*routes(), Route("/stats", lambda _: Response(status_code=204))])


async def _page(_: Request) -> Response:
    return FileResponse(FOLDER / "index.html", headers=HEADERS)


def _numbers(figure: Callable[..., Any]) -> Callable[[Request], Response]:
    """An endpoint that calls a figure's function with the numbers of the query."""
    expected = {name: NUMBERS[one.annotation] for name, one in signature(figure).parameters.items()}

    def endpoint(request: Request) -> Response:
        try:
            return JSONResponse(figure(**_read(expected, dict(request.query_params))))
        except ParameterError as error:
            return JSONResponse({"error": {"message": str(error)}}, status_code=400)

    return endpoint


def _read(expected: dict[str, Callable[[str], Any]], given: dict[str, str]) -> dict[str, Any]:
    """The numbers of a query, all of those expected and no others."""
    if given.keys() != expected.keys():
        raise ParameterError(f"give exactly {', '.join(expected) or 'nothing'} in the query")
    try:
        return {name: read(given[name]) for name, read in expected.items()}
    except ValueError:
        raise ParameterError("the values of the query must be numbers") from None
