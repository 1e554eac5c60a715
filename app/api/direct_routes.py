# SPDX-License-Identifier: Apache-2.0
"""Routes that are served before FastAPI's middlewares and routing, which cost more than a small decision.

What these layers do is not needed there: a handler answers its own errors, and reads no path parameters. With tracing
the routes are served by FastAPI like any others, because FastAPI makes the spans (docs/benchmarks.md#http).
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.answers import WRITE_ANSWER
from app.api.operations_routes import BareApp
from app.api.tracing import Tracing


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
        """Serve a request."""
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = self._direct.get(scope["path"])
            if endpoint is not None:
                await endpoint(scope, receive, send)
                return
        scope.pop(WRITE_ANSWER, None)  # middlewares, such as that which makes spans, must see the answer
        await super().__call__(scope, receive, send)
