# SPDX-License-Identifier: Apache-2.0
"""The people listener: what is loaded, why a pod fits where, and what admission would do to it. Read-only."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from fastapi import FastAPI, Request, Response

from app import __version__
from app.admission.preview import preview
from app.admission.subjects import Subject
from app.api.backend import Backend
from app.api.bodies import ADMISSION_LIMIT, Bodies
from app.api.explaining import RETRY_SECONDS, Explainer
from app.api.ops import answer_unknown_routes, bare_app, on_loop
from app.api.wire import decode_json, encode, status_body
from app.errors import MalformedPod, QuantityError, WireError
from app.pods import member

JSON = "application/json"
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


def create_people_app(backend: Backend) -> FastAPI:
    """Build the application of the people listener."""
    app = bare_app()
    bodies = Bodies()

    explainer = Explainer(backend)

    def posted(answer: Callable[[Any, Request], Awaitable[Any]]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            try:
                async with bodies.read(request, ADMISSION_LIMIT) as body:
                    return Response(encode(await answer(decode_json(body), request)), media_type=JSON)
            except WireError as error:
                headers = {"Retry-After": str(RETRY_SECONDS)} if error.status == 429 else None
                return Response(status_body(error.status, str(error)), error.status, headers, JSON)
            except (MalformedPod, QuantityError) as error:
                return Response(status_body(400, f"Pod: {error}"), 400, media_type=JSON)

        return handle

    async def explained(body: Any, request: Request) -> Any:
        return await explainer.answer(body, request.query_params.get("nodes") == "true")

    async def tried(body: Any, _request: Request) -> Any:
        return dry_run(_pod(body), backend)

    app.add_route("/explain", posted(explained), methods=["POST"])
    app.add_route("/dry-run", posted(tried), methods=["POST"])
    app.add_route("/statusz", on_loop(lambda _: Response(encode(backend.status()), media_type=JSON)))
    app.add_route("/", on_loop(lambda _: Response(_page(backend), media_type="text/html", headers=PAGE_HEADERS)))
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
    found = preview(document, _namespace(document), backend.namespace_labels, backend.setting(), Subject(document))
    return DryRun(found.allowed, found.message, found.warnings, found.actions, found.patch, found.object)


def _namespace(document: Mapping[str, Any]) -> str:
    metadata = member(document, "metadata", dict, "") or {}
    return member(metadata, "namespace", str, "metadata.") or "default"


def _page(backend: Backend) -> str:
    """Render the fleet by kind, and the policies in force."""
    kinds: dict[tuple[str, ...], int] = {}
    for node in backend.nodes.values():
        facts = node.node_class
        driver = ".".join(map(str, facts.driver or ())) or "unknown"
        offered = ", ".join(f"{amount} x {name}" for name, amount in facts.offered) or "none"
        key = (facts.product or "no GPU product", driver, facts.sharing.value, offered, facts.mig_state or "")
        kinds[key] = kinds.get(key, 0) + 1
    rows = [(str(count), *key) for key, count in sorted(kinds.items())]
    status = backend.status()
    policies = [(each["name"], str(each["priority"]), each["description"]) for each in status["policies"]["loaded"]]
    fleet_head = ("nodes", "product", "driver", "one unit is", "offers", "MIG state")
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>gpu-usher</title>"
        "<style>body{font:15px/1.5 system-ui,sans-serif;margin:2rem;max-width:75rem;color-scheme:light dark}"
        "td,th{text-align:left;padding:.2rem .8rem;border-bottom:1px solid #8884}</style>"
        f"<h1>gpu-usher {__version__}</h1>{_table('Fleet', fleet_head, rows)}"
        f"{_table('Policies', ('name', 'priority', 'what it is for'), policies)}"
        "<p>POST a Pod to <code>/explain</code> or <code>/dry-run</code>; <code>/statusz</code> has more, as JSON.</p>"
    )


def _table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    cells = "".join(f"<th scope=col>{escape(each)}" for each in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(each)}" for each in row) for row in rows)
    return f"<h2>{title}</h2><table><tr>{cells}{body}</table>"
