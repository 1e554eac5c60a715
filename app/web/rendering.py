# SPDX-License-Identifier: Apache-2.0
"""Renders the page: Jinja2 templates that escape everything, and tiles, of which a page has thousands."""

import datetime as dt
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from app import __version__
from app.web.views.node_tile import CellRun, Tile

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
    """Render a tile of the fleet map."""
    runs = Markup("").join(map(_run, tile.runs))
    return _TILE.format(tile.state.name.lower(), tile.node, quote(tile.node, safe=""), tile.words, tile.node, runs)


def _run(run: CellRun) -> Markup:
    cell = f"{run.cell.value} {run.colour}" if run.colour else run.cell.value
    return _RUN.format(cell, run.count, run.width, run.text)
