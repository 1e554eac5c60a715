# SPDX-License-Identifier: Apache-2.0
"""Renders the page: Jinja2 templates that escape everything, and tiles, of which a page has thousands.

The HTML answers of the web page: their headers, pages in one piece or streamed, and pages that name a problem.
"""

import asyncio
import datetime as dt
import time
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import StreamingResponse

from app import __version__
from app.cluster.time_slices import RETRY_SECONDS, SLICE_SECONDS
from app.values.errors import BadInput, WireError
from app.web.views.node_tile import Tile

FOLDER = Path(__file__).parent
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
STATIC = {path.name: path.read_bytes() for path in sorted((FOLDER / "static").iterdir()) if path.suffix in MEDIA_TYPES}
_STAMP = sha256(b"".join(STATIC.values())).hexdigest()[:12]
"""Part of the URLs of static files, so that browsers may cache them for ever."""

_TILE = Markup('<a class="t {}" id="n-{}" href="/nodes/{}" title="{}" tabindex="-1"><b>{}</b>{}</a>')
_RUN = Markup('<i class="{} n{} w{}">{}</i>')


def age(stamp: str, now: dt.datetime) -> str:
    """Write the time from a timestamp of Kubernetes to `now`, as `41 min` or `2 d 3 h`; empty if it is none."""
    try:
        seconds = max(int((now - dt.datetime.fromisoformat(stamp)).total_seconds()), 0)
    except (ValueError, TypeError):  # no timestamp, or one without a time zone
        return ""
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{seconds} s"


def clock(seconds: float) -> str:
    """Write the time of day of a Unix time, in UTC."""
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%H:%M:%S}"


def timestamp(seconds: float) -> str:
    """Write a Unix time as a timestamp of Kubernetes."""
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%dT%H:%M:%SZ}"


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals |= {"version": __version__, "stamp": _STAMP}
    environment.filters["percent"] = lambda share: f"{100 * share:.0f} %"
    environment.filters["number"] = "{:,}".format
    environment.filters |= {"age": age, "clock": clock, "stamp": timestamp}
    for name in environment.list_templates():  # compiled now, because compiling one blocks the event loop too long
        environment.get_template(name)
    return environment


_PAGES = _environment()


def render(template: str, **variables: Any) -> str:
    """Render a template in one step."""
    return _PAGES.get_template(template).render(variables)


def render_parts(template: str, **variables: Any) -> Iterator[str]:
    """Render a template in pieces."""
    return _PAGES.get_template(template).generate(variables)


def render_tile(tile: Tile) -> Markup:
    runs = Markup("").join(_RUN.format(run.cell.value, run.count, run.width, run.text) for run in tile.runs)
    return _TILE.format(tile.state.name.lower(), tile.node, quote(tile.node, safe=""), tile.words, tile.node, runs)


HTML = "text/html"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
CHUNK = 1 << 15
"""Characters of HTML sent at once."""


def html_page(template: str, code: int = 200, /, **variables: Any) -> Response:
    """Answer with a page that is rendered in one step."""
    return Response(render(template, **variables), code, HEADERS, HTML)


def problem_page(status: int, message: str, node: str = "") -> Response:
    """Return an HTML page that says why there is no answer, with a link to a node that has one."""
    page = html_page("problem.html", status, here="", status=status, message=message, node=node)
    if status == 429:
        page.headers["Retry-After"] = str(RETRY_SECONDS)
    return page


def show_problems(answer: Any) -> Any:
    """Make a handler answer bad input with a page that names the problem."""

    async def handle(request: Request) -> Response:
        try:
            response: Response = await answer(request)
        except WireError as error:
            return problem_page(error.status, str(error))
        except BadInput as error:
            return problem_page(400, str(error))
        return response

    return handle


def streamed(parts: Iterator[str]) -> Response:
    """Answer with a page that is rendered in pieces."""
    return StreamingResponse(_sliced(parts), 200, HEADERS, HTML)


async def _sliced(parts: Iterator[str]) -> AsyncIterator[bytes]:
    """Yield a page in chunks, with rests between slices of work."""
    chunk: list[str] = []
    size, rested = 0, time.perf_counter()
    for part in parts:
        chunk.append(part)
        size += len(part)
        if size > CHUNK:
            yield "".join(chunk).encode()
            chunk, size = [], 0
        if time.perf_counter() - rested > SLICE_SECONDS:
            await asyncio.sleep(0)
            rested = time.perf_counter()
    yield "".join(chunk).encode()
