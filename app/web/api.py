# SPDX-License-Identifier: Apache-2.0
"""The web UI listener: what is loaded, why a pod fits where, and what admission would do to it. Read-only."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response

from app.admission.preview import preview
from app.admission.review_targets import ReviewTarget
from app.api.backend import Backend
from app.api.bodies import ADMISSION_LIMIT, BodyReader
from app.api.loopback_hosts import OnlyOwnPages
from app.api.operations_routes import answer_unknown_routes, bare_app, on_loop
from app.api.time_slices import RETRY_SECONDS
from app.api.wire import decode_json, encode, status_body
from app.values.errors import MalformedPod, QuantityError, WireError
from app.values.json_members import member
from app.web.routes import WebPages, told

JSON = "application/json"


def create_web_app(backend: Backend, page: WebPages | None = None) -> FastAPI:
    """Build the application of the web UI listener. `page`: whose `run` somebody runs; without one nothing is live."""
    app = bare_app()
    app.add_middleware(OnlyOwnPages)
    bodies = BodyReader()
    page = page or WebPages(backend)
    explainer = page.explainer

    def posted(answer: Callable[[Any, Request], Awaitable[Any]]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            try:
                async with bodies.read(request, ADMISSION_LIMIT) as body:
                    return Response(encode(await answer(decode_json(body), request)), media_type=JSON)
            except WireError as error:
                headers = {"Retry-After": str(RETRY_SECONDS)} if error.status in (429, 503) else None
                return Response(status_body(error.status, str(error)), error.status, headers, JSON)
            except (MalformedPod, QuantityError) as error:
                return Response(status_body(400, f"Pod: {error}"), 400, media_type=JSON)

        return handle

    async def explained(body: Any, request: Request) -> Any:
        return await explainer.answer(body, request.query_params.get("nodes") == "true")

    async def tried(body: Any, _request: Request) -> Any:
        return dry_run(_pod(body), backend)

    app.add_route("/explain", posted(explained), methods=["POST"])
    as_json = posted(tried)

    async def dry_run_of(request: Request) -> Response:
        """Answer the form of the page in HTML, everybody else in JSON: curl says it sends a form whatever it sends."""
        browser = "text/html" in request.headers.get("accept", "")
        return await (page.tried(request, bodies) if browser else as_json(request))

    app.add_route("/dry-run", told(dry_run_of), methods=["POST"])
    app.add_route("/statusz", on_loop(lambda _: Response(encode(backend.status()), media_type=JSON)))
    page.add_routes(app)
    answer_unknown_routes(app)
    return app


def _pod(document: Any) -> Mapping[str, Any]:
    if not isinstance(document, dict) or document.get("kind", "Pod") != "Pod":
        raise WireError(400, "body: wants a Pod as JSON")
    return document


@dataclass(frozen=True, slots=True)
class DryRun:
    """What admission would do to a Pod. `message`: of a denial, else empty. `patch`: RFC 6902; `pod`: after it."""

    allowed: bool
    message: str
    warnings: tuple[str, ...]
    actions: tuple[str, ...]
    patch: tuple[Mapping[str, Any], ...]
    pod: Mapping[str, Any]


def dry_run(document: Mapping[str, Any], backend: Backend) -> DryRun:
    """Show what admission would do to a Pod: the patched Pod and everything said about it.

    Raises MalformedPod, QuantityError.
    """
    found = preview(document, _namespace(document), backend.namespace_labels, backend.setting(), ReviewTarget(document))
    return DryRun(found.allowed, found.message, found.warnings, found.actions, found.patch, found.object)


def _namespace(document: Mapping[str, Any]) -> str:
    metadata = member(document, "metadata", dict, "") or {}
    return member(metadata, "namespace", str, "metadata.") or "default"
