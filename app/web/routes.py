# SPDX-License-Identifier: Apache-2.0
"""The web page's routes: HTML made here, read-only, of the same data as the JSON routes."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict
from secrets import token_hex
from typing import Any
from urllib.parse import parse_qsl, urlencode

from fastapi import FastAPI, Request, Response
from starlette.responses import StreamingResponse

from app.admission.preview import preview
from app.api.backend import Backend
from app.api.bodies import BodyReader
from app.api.explain_route import Explainer
from app.api.recent_decisions import RecentDecisions
from app.api.time_slices import RETRY_SECONDS, SLICE_SECONDS, JobQueue, TooManyJobs, in_slices
from app.explain.survey import namespace_of
from app.telemetry.logs import LOGGER
from app.values.errors import BadInput, WireError
from app.web.fleet_map import FleetMap
from app.web.live_updates import LiveUpdates
from app.web.pending_reasons import PendingReasons
from app.web.rendering import MEDIA_TYPES, STATIC, render, render_parts
from app.web.views.charts import chart
from app.web.views.decision_rows import asked_of, choices_of, rows_of
from app.web.views.fleet_tiles import sum_of, wanted_of
from app.web.views.node_tile import Cell
from app.web.views.pending_rows import rows as pending_rows
from app.web.views.playground import PASTED_LIMIT, changed_lines, read_pasted

HTML = "text/html"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
STATIC_HEADERS = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
DENSE_FROM = 300
"""Tiles from which on names are left out and cells are drawn small: more than fit on a screen (guess)."""
ROWS_ON_A_PAGE = 250
BEGIN_AGAIN_SECONDS = 5.0
CHUNK = 1 << 15
"""Characters sent at once."""


class WebPages:
    """The page of one service: what it remembers between requests, and its routes."""

    def __init__(self, backend: Backend, tail: RecentDecisions | None = None) -> None:
        self._backend = backend
        self._tail = tail or RecentDecisions()
        self._turns = JobQueue("pages")
        self._map = FleetMap(backend.state)
        self.explainer = Explainer(backend)
        self._causes = PendingReasons(backend, self.explainer)
        self._start = token_hex(8)
        self._live = LiveUpdates(backend, self._map, self._causes, self._turns, self._tail, self._start, self.totals)

    async def run(self) -> None:
        """Keep the map and its history up to date, tell who listens, and look for causes; for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(kept_up(self._live.run))
            tasks.create_task(kept_up(self._causes.run))

    def add_routes(self, app: FastAPI) -> None:
        """Add the page to the application of the web UI listener."""
        for path, answer in (
            ("/", self.fleet),
            ("/nodes/{node:path}", self.node),
            ("/pending", self.pending),
            ("/pending/{namespace}/{name}", self.pod),
            ("/policies", self.policies),
            ("/decisions", self.decisions),
        ):
            app.add_route(path, told(answer))
        app.add_route("/static/{name}", self.static)
        app.add_route("/events", self.events)

    async def fleet(self, request: Request) -> Response:
        """Show the map, or the same as a table."""
        query = request.query_params
        wanted, table = wanted_of(query), query.get("as") == "table"
        fleet = self._map
        async with self._turns.turn():
            await in_slices(fleet.catch_up())
            groups = () if table else await in_slices(fleet.shown(wanted))
            rows = await in_slices(fleet.listed(wanted)) if table else ()
        count = len(rows) if table else sum(group.count for group in groups)
        pages = max(1, -(-len(rows) // ROWS_ON_A_PAGE))
        page = min(max(int(found) if (found := query.get("page", "1")).isdecimal() and len(found) < 6 else 1, 1), pages)
        first = (page - 1) * ROWS_ON_A_PAGE
        asked = {name: word for name, word in asdict(wanted).items() if word}
        parts = render_parts(
            "fleet.html", here="/", live="" if table else "fleet", generation=fleet.generation, table=table,
            start=self._start,
            choices=_choices(fleet.choices()), wanted=wanted, wanted_any=bool(asked), query=urlencode(asked),
            count=count, all=len(fleet.tiles), groups=groups, dense=count > DENSE_FROM,
            rows=rows[first : first + ROWS_ON_A_PAGE], page=page, pages=pages, first=first + 1,
            last=min(first + ROWS_ON_A_PAGE, count), legend=[(cell.value, cell.name.lower()) for cell in Cell],
            **self.totals(),
        )  # fmt: skip
        return StreamingResponse(_sliced(parts), 200, HEADERS, HTML)

    def totals(self) -> dict[str, Any]:
        """Give what the totals' template shows."""
        samples = self._map.samples
        span = _span((samples[-1].at - samples[0].at).total_seconds()) if len(samples) > 1 else "hours"
        history: dict[tuple[str, str], list[float]] = {}
        for sample in samples:
            for total in sample.totals:
                history.setdefault((total.product, total.unit), []).append(total.allocated)
        shown = [
            (each, chart(history.get((each.product, each.unit), ()), f"{each.product} allocated", span))
            for each in self._map.totals()
        ]
        return {"totals": shown, "span": span, "sum": sum_of(total for total, _ in shown)}

    async def node(self, request: Request) -> Response:
        """Show one node: its facts, and who holds its GPUs."""
        name = request.path_params["node"]
        node = self._backend.state.nodes.get(name)
        if node is None:
            raise WireError(404, f"node {name[:100]}: there is none")
        async with self._turns.turn():
            await in_slices(self._map.catch_up())
        found = self._map.tiles.get(name)
        holdings = sorted(self._backend.state.usage_on(name), key=lambda each: each.name)
        return _html("node.html", here="", live="", node=node, tile=found[0] if found else None,
                     html=found[1] if found else "", holdings=holdings)  # fmt: skip

    async def pending(self, _request: Request) -> Response:
        """List the GPU pods that wait, each with its primary cause as far as that is known."""
        self._causes.wanted()
        waiting = self._backend.state.pending_pods
        rows = pending_rows(waiting.values(), self._causes.known())
        return _html("pending.html", here="/pending", live="pending", start=self._start,
                     rows=rows[:ROWS_ON_A_PAGE], all=len(rows),
                     missed=waiting.missed, looking=self._causes.looking)  # fmt: skip

    async def pod(self, request: Request) -> Response:
        """Explain one pod."""
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        found = await self.explainer.answer({"namespace": namespace, "name": name}, True)
        most = 10_000 if request.query_params.get("nodes") == "all" else ROWS_ON_A_PAGE
        parts = render_parts("pod.html", here="/pending", live="", found=found, most=most)
        return StreamingResponse(_sliced(parts), 200, HEADERS, HTML)

    async def policies(self, _request: Request) -> Response:
        """Show the policies, and a place to try a pod."""
        return _html("policies.html", **self.policies_shown())

    def policies_shown(self, **tried: Any) -> dict[str, Any]:
        """Give what the policies' template shows. `tried`: the pod that was sent, and what came of it."""
        backend = self._backend
        empty = {"sent": "", "result": None, "lines": (), "problem": ""}
        return {"here": "/policies", "live": "", "status": backend.status()["policies"],
                "matched": backend.matched(), **empty, **tried}  # fmt: skip

    async def tried(self, request: Request, bodies: BodyReader) -> Response:
        """Show what admission would do to a pod, or to a workload, that somebody pasted."""
        async with bodies.read(request, PASTED_LIMIT) as body:
            sent = dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=4)).get("pod", "")
        try:
            async with self._turns.turn():
                document = await asyncio.to_thread(read_pasted, sent)
                namespace = namespace_of(document)
                backend = self._backend
                found = preview(document, namespace, backend.namespace_labels, backend.setting())
                lines = await asyncio.to_thread(changed_lines, document, found.object)
        except TooManyJobs:
            raise
        except BadInput as error:
            return _html("policies.html", 400, **self.policies_shown(sent=sent, problem=str(error)))
        return _html("policies.html", **self.policies_shown(sent=sent, result=found, lines=lines))

    async def decisions(self, request: Request) -> Response:
        """Show the last decisions."""
        asked = asked_of(request.query_params)
        said = self._tail.since(0)
        return _html("decisions.html", here="/decisions", live="decisions", start=self._start,
                     rows=rows_of(said, asked),
                     asked=asked, choices=choices_of(said), total=self._tail.total, kept=len(said))  # fmt: skip

    async def events(self, request: Request) -> Any:
        """Tell what changes from now on."""
        return self._live.listeners.answer(request)

    async def static(self, request: Request) -> Response:
        """Give a style sheet or a script; addresses carry a stamp of their content."""
        name = request.path_params["name"]
        if name not in STATIC:
            return Response("no such file", 404, HEADERS, "text/plain")
        kind = MEDIA_TYPES["." + name.rpartition(".")[2]]
        return Response(STATIC[name], 200, STATIC_HEADERS, kind)


def _html(template: str, code: int = 200, /, **shown: Any) -> Response:
    return Response(render(template, **shown), code, HEADERS, HTML)


def problem_page(status: int, message: str) -> Response:
    """Say in HTML why there is no answer."""
    found = _html("problem.html", status, here="", live="", status=status, message=message)
    if status == 429:
        found.headers["Retry-After"] = str(RETRY_SECONDS)
    return found


def told(answer: Any) -> Any:
    """Answer bad input with a page that says what is wrong."""

    async def handle(request: Request) -> Response:
        try:
            found: Response = await answer(request)
        except WireError as error:
            return problem_page(error.status, str(error))
        except BadInput as error:
            return problem_page(400, str(error))
        return found

    return handle


async def kept_up(run: Callable[[], Awaitable[None]], pause_seconds: float = BEGIN_AGAIN_SECONDS) -> None:
    """Run a task of the page for ever: a bug of the page must not end a service that admits and schedules."""
    while True:
        try:
            await run()
        except Exception:  # noqa: BLE001  # the edge
            LOGGER.exception("a task of the page failed, and begins again")
        await asyncio.sleep(pause_seconds)


async def _sliced(parts: Iterator[str]) -> AsyncIterator[bytes]:
    """Give a page in pieces of some size, and rest between two slices of work."""
    held: list[str] = []
    size, rested = 0, time.perf_counter()
    for part in parts:
        held.append(part)
        size += len(part)
        if size > CHUNK:
            yield "".join(held).encode()
            held, size = [], 0
        if time.perf_counter() - rested > SLICE_SECONDS:
            await asyncio.sleep(0)
            rested = time.perf_counter()
    yield "".join(held).encode()


def _choices(found: Any) -> list[tuple[str, tuple[str, ...]]]:
    return [(name, getattr(found, name)) for name in ("product", "driver", "state", "namespace")]


def _span(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{max(seconds / 60, 1):.0f} minutes"
