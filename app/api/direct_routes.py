# SPDX-License-Identifier: Apache-2.0
"""Routes that are served before FastAPI's middlewares and routing, and JSON answers in one write.

Both cost more than a small decision. FastAPI's layers are not needed here: a handler answers its own errors, and reads
no path parameters; with tracing the routes are served by FastAPI like any others, because FastAPI makes the spans. A
Response object of Starlette makes its headers, and uvicorn reads, checks and joins them again and writes them apart
from the body, which is a second TLS record (decision 33).
"""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.operations_routes import BareApp
from app.api.tracing import Tracing

WRITE_ANSWER = "gpu-usher.write_answer"
"""Key of the ASGI scope for a WriteAnswer of the connection; absent without a server of ours."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A body of JSON. `close` ends the connection after it, because the rest of the request stays unread."""

    body: bytes
    status: int = 200
    close: bool = False


WriteAnswer = Callable[[Answer], bool]
"""Writes header and body at once. Returns False, and writes nothing, while the peer does not take earlier bytes."""


async def send_answer(answer: Answer, scope: Scope, send: Send) -> None:
    """Send an answer, in one write if the connection can take it."""
    write: WriteAnswer | None = scope.get(WRITE_ANSWER)
    if write is not None and write(answer):
        return
    headers = [(b"content-length", b"%d" % len(answer.body)), (b"content-type", b"application/json")]
    if answer.close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


class DirectRoutes(BareApp):
    """An application with POST routes that are served directly, beside FastAPI's own."""

    def __init__(self, tracing: Tracing | None = None) -> None:
        super().__init__(tracing)
        self._traced = tracing is not None
        self._direct: dict[str, ASGIApp] = {}

    def add_direct_route(self, path: str, endpoint: ASGIApp) -> None:
        """Serve POST requests to `path` by `endpoint`, which must answer every error. It must not be a function.

        Starlette would call a function with a Request.
        """
        self.add_route(path, endpoint, methods=["POST"])  # type: ignore[arg-type]  # other methods, and tracing
        if not self._traced:
            self._direct[path] = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = self._direct.get(scope["path"])
            if endpoint is not None:
                await endpoint(scope, receive, send)
                return
        scope.pop(WRITE_ANSWER, None)  # middlewares, such as that which makes spans, must see the answer
        await super().__call__(scope, receive, send)
