# SPDX-License-Identifier: Apache-2.0
"""The application of the web UI listener: the web page, /explain, /dry-run and /statusz. It is read-only."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response

from app.admission.preview import preview
from app.admission.review_targets import ReviewTarget
from app.admission.reviewed_pod import ReviewContext
from app.api.allowed_callers import RequireSameOrigin
from app.api.bodies import ADMISSION_LIMIT, BodyReader
from app.api.operations_routes import BareApp, answer_unknown_routes, on_loop
from app.api.wire import decode_json, encode, status_body
from app.cluster.core import Core
from app.cluster.time_slices import RETRY_SECONDS
from app.explain.survey import namespace_of
from app.values.errors import MalformedPod, QuantityError, WireError
from app.values.json_members import JSON
from app.web.rendering import problem_page, show_problems
from app.web.routes import WebPages


def create_web_app(core: Core, page: WebPages | None = None) -> FastAPI:
    """Build the application. `page` needs its `run` called; without one no causes of pending pods come."""
    app = BareApp()
    app.add_middleware(RequireSameOrigin)
    bodies = BodyReader()
    page = page or WebPages(core)
    explainer = page.explainer

    def json_route(answer: Callable[[Any, Request], Awaitable[Any]]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            try:
                async with bodies.read(request.scope, request.receive, lambda: ADMISSION_LIMIT) as body:
                    return Response(encode(await answer(decode_json(body), request)), media_type=JSON)
            except WireError as error:
                headers = {"Retry-After": str(RETRY_SECONDS)} if error.status in (429, 503) else None
                return Response(status_body(error.status, str(error)), error.status, headers, JSON)
            except (MalformedPod, QuantityError) as error:
                return Response(status_body(400, f"Pod: {error}"), 400, media_type=JSON)

        return handle

    async def explain_body(body: Any, request: Request) -> Any:
        return await explainer.answer(body, request.query_params.get("nodes") == "true")

    async def dry_run_body(body: Any, _request: Request) -> Any:
        if not isinstance(body, dict) or body.get("kind", "Pod") != "Pod":
            raise WireError(400, "body: wants a Pod as JSON")
        return dry_run(body, core)

    app.add_route("/explain", json_route(explain_body), methods=["POST"])
    dry_run_json = json_route(dry_run_body)

    async def dry_run_route(request: Request) -> Response:
        """Answer the form of the page in HTML and all others in JSON; curl sends a form's content type by default."""
        browser = "text/html" in request.headers.get("accept", "")
        return await (page.dry_run(request, bodies) if browser else dry_run_json(request))

    app.add_route("/dry-run", show_problems(dry_run_route), methods=["POST"])
    app.add_route("/statusz", on_loop(lambda _: Response(encode(core.status()), media_type=JSON)))
    page.add_routes(app)
    answer_unknown_routes(app)
    _answer_browsers(app)
    return app


def _answer_browsers(app: FastAPI) -> None:
    """Answer unknown routes with a page where a browser asks, and as before where another program does."""
    not_found: Any = app.exception_handlers[404]

    async def no_page(request: Request, error: Exception) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return problem_page(404, f"There is no page {request.url.path[:200]}.")
        response: Response = await not_found(request, error)
        return response

    app.add_exception_handler(404, no_page)


@dataclass(frozen=True, slots=True)
class DryRun:
    """What admission would do to a Pod.

    `message` is that of a denial, else empty. `patch` is RFC 6902, and `pod` the Pod after it.
    """

    allowed: bool
    message: str
    warnings: tuple[str, ...]
    actions: tuple[str, ...]
    patch: tuple[Mapping[str, Any], ...]
    pod: Mapping[str, Any]


def dry_run(document: Mapping[str, Any], core: Core) -> DryRun:
    """Return what admission would do to a Pod: the patch, the patched Pod, and all messages.

    Raises MalformedPod, QuantityError.
    """
    outcome = preview(
        document, namespace_of(document), core.namespace_labels, ReviewContext(core.world()), ReviewTarget(document)
    )
    return DryRun(outcome.allowed, outcome.message, outcome.warnings, outcome.actions, outcome.patch, outcome.object)
