# SPDX-License-Identifier: Apache-2.0
"""The HTML answers of the web page: their headers, pages in one piece or streamed, and pages that name a problem."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import Request, Response
from starlette.responses import StreamingResponse

from app.api.time_slices import RETRY_SECONDS, SLICE_SECONDS
from app.values.errors import BadInput, WireError
from app.web.rendering import render

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
    page = html_page("problem.html", status, here="", live="", status=status, message=message, node=node)
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
