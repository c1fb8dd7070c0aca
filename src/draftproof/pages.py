"""Self-contained HTML pages: text, tables and pictures in one file that asks for nothing else.

Colours follow the reader's light or dark theme, pictures too: black becomes the colour of the
text and white that of the page. Not here: what is measured, and how it is drawn.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Sequence
from html import escape
from numbers import Real
from typing import Any

from draftproof.errors import MissingExtraError

_NUMBER = re.compile(r"[-+±<>≤≥~]?\s?\d[\d,. ]*(e[-+]?\d+)?\s?(%|\w{1,6}(/\w+)?)?")

_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0; background: Canvas; color: CanvasText;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.2; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
svg { display: block; width: 100%; max-width: 46rem; height: auto; margin: 1rem 0; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .75rem .3rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid color-mix(in srgb, CanvasText 20%, Canvas); }
th.number, td.number { text-align: right; }
code, pre { font: .9em ui-monospace, Menlo, Consolas, monospace; }
pre { overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
.good { color: light-dark(#0b6b2e, #6fdc8c); }
.bad { color: light-dark(#a11212, #ff8f8f); font-weight: 600; }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """A whole HTML document.

    Args:
        title: its heading, as text.
        parts: HTML fragments, in order; the classes ``good`` and ``bad`` colour a verdict.
    """
    body = "\n".join(_numbered(part, number) for number, part in enumerate(parts))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{escape(title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _numbered(part: str, number: int) -> str:
    """The ids of its pictures made its own."""
    return re.sub(r'(\bid="|url\(#|href="#)(f[0-9a-f]{8}-)', rf"\g<1>\g<2>{number}-", part)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """An HTML table; a column whose every cell is a number, unit or not, is set to the right.

    Args:
        header: the columns' names, as text.
        rows: cells, as text or numbers; floats are shown with four digits.
    """
    numeric = [bool(rows) and all(_is_number(row[i]) for row in rows) for i in range(len(header))]
    heads = "".join(
        _cell("th", name, n, ' scope="col"') for name, n in zip(header, numeric, strict=True)
    )
    body = "\n".join(
        f"<tr>{''.join(_cell('td', cell, n) for cell, n in zip(row, numeric, strict=True))}</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table>\n<thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _is_number(cell: object) -> bool:
    return isinstance(cell, Real) or (
        isinstance(cell, str) and (cell in ("", "-") or _NUMBER.fullmatch(cell) is not None)
    )


def _cell(tag: str, cell: object, number: bool, extra: str = "") -> str:
    text = f"{cell:.4g}" if isinstance(cell, float) else str(cell)
    kind = ' class="number"' if number else ""
    return f"<{tag}{kind}{extra}>{escape(text)}</{tag}>"


def figure(width: float, height: float) -> Any:
    """An empty matplotlib figure of this size in inches; it needs no display.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("a picture", "plots") from error
    return Figure(figsize=(width, height), layout="constrained")


def svg(figure: Any) -> str:
    """A matplotlib figure as an SVG element to put into a page.

    Text stays text. Ids are a function of the picture; ``page`` numbers them, should a picture
    come twice. Its accessible name is its titles.
    """
    from matplotlib import rc_context

    out = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "draftproof"}):
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    picture = out.getvalue()
    picture = picture[picture.index("<svg") :]
    prefix = f"f{hashlib.sha256(picture.encode()).hexdigest()[:8]}-"
    picture = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}", picture)
    return _themed(picture, _titles(figure))


def _themed(picture: str, name: str) -> str:
    """The colours of the page's theme, the width of its column, and a name."""
    picture = re.sub(r"#000000\b", "currentColor", picture).replace("#ffffff", "Canvas")
    # Matplotlib's style element would style the whole page; and black text has no fill at all.
    picture = re.sub(r"<style type=.*?</style>", "", picture, flags=re.DOTALL)
    (box,) = re.findall(r'viewBox="[^"]*"', picture)[:1]
    head = (
        f'<svg {box} role="img" aria-label="{escape(name)}" fill="currentColor" '
        'stroke-linejoin="round" xmlns="http://www.w3.org/2000/svg" '
        'xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return re.sub(r"<svg[^>]*>", lambda _: head, picture, count=1)


def _titles(figure: Any) -> str:
    titles = [figure.get_suptitle(), *(axes.get_title() for axes in figure.axes)]
    return "; ".join(filter(None, titles)) or "figure"
