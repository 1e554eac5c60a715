# SPDX-License-Identifier: Apache-2.0
"""The routes of the web page: read-only HTML, made from the same data as the JSON routes.

The page Policies shows each policy as YAML, and compares a pasted manifest with what admission makes of it.
"""

import asyncio
import datetime as dt
import re
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from dataclasses import asdict
from difflib import unified_diff
from itertools import islice
from secrets import token_hex
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
import yaml
from fastapi import FastAPI, Request, Response
from starlette.responses import RedirectResponse

from app.admission.preview import preview
from app.admission.reviewed_pod import ReviewContext
from app.api.bodies import BodyReader
from app.api.decision_line import RecentDecisions
from app.api.explain_api import Explainer
from app.api.pending_reasons import PendingReasons
from app.cluster.core import Core
from app.cluster.time_slices import JobQueue, TooManyJobs, in_slices
from app.explain.gpu_inventory import devices_of_node
from app.explain.pending_cause import UNSEEN_SECONDS
from app.explain.survey import namespace_of
from app.policy.document import read_documents
from app.policy.schema import Spec
from app.telemetry.logs import LOGGER
from app.values.computations import finish
from app.values.errors import BadInput, PolicyError, WireError
from app.web.fleet_map import FleetMap
from app.web.rendering import (
    HEADERS,
    MEDIA_TYPES,
    STATIC,
    html_page,
    problem_page,
    render_parts,
    show_problems,
    streamed,
    timestamp,
)
from app.web.use_page import UsePage
from app.web.views import pending_rows
from app.web.views.decision_rows import choices_of, read_decision_filter, rows_of, select
from app.web.views.fleet_tiles import find, read_tile_filter, sums_of
from app.web.views.node_tile import GPUCell

PASTED_LIMIT = 1 << 18
"""Bytes of the form, in which a byte may take three; a pod written by hand has some 4 kB."""
LONGEST_MANIFEST = 1 << 16
"""Characters of the manifest. YAML of that size takes 0.2 s to read, in a thread."""
CONTEXT_LINES = 3
MOST_CHANGED_LINES = 2_000

_PLACE = re.compile(r"^:(\d+):(\d+): ", re.MULTILINE)
"""The place that read_documents puts before each problem of a text without a file name."""
Line = tuple[str, str]
"""The class of a line in page.css, and its text."""


def read_pasted(text: str) -> Mapping[str, Any]:
    """Read one object, JSON or YAML.

    Raises BadInput.
    """
    if len(text) > LONGEST_MANIFEST:
        raise BadInput(f"got {len(text)} characters, wants at most {LONGEST_MANIFEST}")
    if text.lstrip()[:1] == "{":
        try:
            document = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise BadInput(f"not JSON: {error}") from error
    else:
        try:
            documents = finish(read_documents("", text))
        except PolicyError as error:
            raise BadInput(_PLACE.sub(r"line \1, column \2: ", str(error))) from error
        if len(documents) != 1:
            raise BadInput(f"got {len(documents)} objects, wants one")
        document = documents[0].value
    if not isinstance(document, dict):
        raise BadInput("got no object, wants a Pod or a workload, as YAML or JSON")
    return document


def policy_text(spec: Spec) -> str:
    """Write what a policy sets as YAML, without the description and the priority, which the page shows beside it."""
    stated = spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"description", "priority"})
    return "\n".join(_yaml({field: value for field, value in stated.items() if value}))


def changed_lines(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Line, ...]:
    """Compare two objects as YAML: the changed lines and those around them; none if the objects are equal."""
    return tuple(islice(_lines(_yaml(before), _yaml(after)), MOST_CHANGED_LINES))


def _lines(before: list[str], after: list[str]) -> Iterator[Line]:
    kinds = {"+": "added", "-": "removed", "@": "quiet"}
    compared = unified_diff(before, after, n=CONTEXT_LINES, lineterm="")
    for line in islice(compared, 2, None):  # without the two file names
        yield kinds.get(line[0], ""), line


def _yaml(document: Mapping[str, Any]) -> list[str]:
    text: str = yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, width=200)
    return text.splitlines()


STATIC_HEADERS = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
DENSE_FROM = 300
"""Above this number of tiles, names are left out and cells are small: more do not fit on a screen (a guess)."""
LAZY_FROM = 2_000
"""Above this number of tiles, a browser draws those out of sight later: at 5,000 it lays the map out in 195 ms of CPU
instead of 415. A picture of the whole page lacks them then."""
ROWS_PER_PAGE = 250
MOST_GROUPS = 50
"""Causes shown on Why Pending; no fleet of the tests has more than 20."""
NODES_LISTED_AT_ONCE = 512
"""Nodes whose pods are listed between two rests; one takes less than 1 µs."""
RESTART_SECONDS = 5.0


LivePage = Callable[[Request, str], Awaitable[Response]]
"""Answers a request with a page that has a tag."""


class WebPages:
    """The web page of one service: its state between requests, and its routes. `clock` is the wall clock."""

    def __init__(
        self,
        core: Core,
        recent: RecentDecisions | None = None,
        reasons: PendingReasons | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._core = core
        self._recent = recent or RecentDecisions()
        self._queue = JobQueue("pages")
        self._map = FleetMap(core.state)
        self._reasons = reasons or PendingReasons(core, Explainer(core))
        self.explainer = self._reasons.explainer
        self._start = token_hex(8)
        self._use_page = UsePage(core)

    async def run(self) -> None:
        """Compute the reasons of pending pods until cancelled."""
        await run_for_ever(self._reasons.run)

    def add_routes(self, app: FastAPI) -> None:
        """Add the page to the application of the web UI listener."""
        for path, answer in (
            ("/", self._live(self._fleet_generation, self.fleet)),
            ("/nodes/{node:path}", self.node),
            ("/pending", self._live(self._pending_generation, self.pending)),
            ("/pending/{namespace}/{name}", self.pod),
            ("/use", self._live(self._use_page.generation, self._use_page.show)),
            ("/policies", self.policies),
            ("/decisions", self._live(lambda: self._recent.total, self.decisions)),
            ("/find", self.find),
        ):
            app.add_route(path, show_problems(answer))
        app.add_route("/static/{name}", self.static)

    def _live(self, generation: Callable[[], int], show: LivePage) -> Callable[[Request], Awaitable[Response]]:
        """Make the handler of a page that asks again every few seconds, and is answered once something has changed.

        The tag names this process, what has changed, and the minute, since ages are shown. A page that has it already
        is answered with 304 (RFC 9110, If-None-Match).
        """

        async def answer(request: Request) -> Response:
            tag = f"{self._start}-{generation()}-{int(self._clock()) // 60}"
            if request.headers.get("if-none-match") == f'"{tag}"':
                return Response(None, 304, HEADERS)
            return await show(request, tag)

        return answer

    def _fleet_generation(self) -> int:
        return self._core.state.changes.generation

    def _pending_generation(self) -> int:
        """Twice the number of changes of waiting pods and of their causes, plus one while some are looked for."""
        self._reasons.request()
        changes = self._core.state.pending_pods.generation + self._reasons.generation
        return 2 * changes + self._reasons.looking

    async def fleet(self, request: Request, tag: str) -> Response:
        """Show the fleet map, as tiles or as a table."""
        query = request.query_params
        tile_filter, table = read_tile_filter(query), query.get("as") == "table"
        fleet = self._map
        async with self._queue.turn():
            await in_slices(fleet.catch_up())
            groups = () if table else await in_slices(fleet.tile_groups(tile_filter))
            rows = await in_slices(fleet.tile_list(tile_filter)) if table else ()
        count, totals = len(rows) if table else sum(group.count for group in groups), fleet.totals()
        pages = max(1, -(-len(rows) // ROWS_PER_PAGE))
        page = min(max(int(text) if (text := query.get("page", "1")).isdecimal() and len(text) < 6 else 1, 1), pages)
        first = (page - 1) * ROWS_PER_PAGE
        selected = {name: value for name, value in asdict(tile_filter).items() if value}
        parts = render_parts(
            "fleet.html", here="/", tag=tag, table=table, choices=fleet.choices(),
            wanted=tile_filter, wanted_any=bool(selected), query=urlencode(selected),
            count=count, all=len(fleet.tiles), groups=groups, dense=count > DENSE_FROM,
            lazy=count > LAZY_FROM,
            rows=rows[first : first + ROWS_PER_PAGE], page=page, pages=pages, first=first + 1,
            last=min(first + ROWS_PER_PAGE, count),
            legend=[(cell.value, cell.name.lower()) for cell in GPUCell],
            totals=totals, sums=sums_of(totals),
        )  # fmt: skip
        return streamed(parts)

    async def node(self, request: Request) -> Response:
        """Show one node, and the pods that hold its GPUs."""
        name = request.path_params["node"]
        node = self._core.state.nodes.get(name)
        if node is None:
            raise WireError(404, f"Node {name[:253]} is not in the cluster, or not known here yet.")
        async with self._queue.turn():
            await in_slices(self._map.catch_up())
        tile = self._map.tiles.get(name)
        usages = sorted(self._core.state.allocations.bound(name), key=lambda usage: usage.name)
        devices = devices_of_node(node, self._core.state.devices.dra.current.copied())
        return html_page("node.html", here="", node=node, tile=tile[0] if tile else None,
                     html=tile[1] if tile else "", usages=usages, devices=devices)  # fmt: skip

    async def pending(self, request: Request, tag: str) -> Response:
        """List the pending GPU pods by their primary reasons, as far as these are known."""
        state, asked = self._core.state, pending_rows.read_pending_filter(request.query_params)
        now = dt.datetime.now(dt.UTC)
        before = timestamp(now.timestamp() - UNSEEN_SECONDS)
        rows = pending_rows.rows(state.waiting_pods(), self._reasons.reason_by_pod(), before)
        selected = pending_rows.selected(rows, asked)
        most = pending_rows.MOST_ROWS if asked.cause else pending_rows.MOST_OF_GROUP
        groups = pending_rows.groups_of(selected, most)
        return html_page("pending.html", here="/pending", tag=tag, asked=asdict(asked), now=now,
                     choices=pending_rows.choices_of(rows), all=len(rows), count=len(selected),
                     groups=groups[:MOST_GROUPS], more_groups=max(len(groups) - MOST_GROUPS, 0),
                     missed=state.pending_pods.missed, looking=self._reasons.looking)  # fmt: skip

    async def pod(self, request: Request) -> Response:
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        try:
            explanation = await self.explainer.answer({"namespace": namespace, "name": name}, True)
        except WireError as error:
            if error.status != 404:
                raise
            return await self._no_pod(f"{namespace}/{name}")
        most = 10_000 if request.query_params.get("nodes") == "all" else ROWS_PER_PAGE
        parts = render_parts("pod.html", here="/pending", explanation=explanation, most=most)
        return streamed(parts)

    async def _no_pod(self, key: str) -> Response:
        """Say that a pod cannot be explained, and on which node it is if it holds GPUs there."""
        pods = await in_slices(self._gpu_pods())
        node = next((node for name, node in pods if name == key and node), "")
        if node:
            return problem_page(404, f"Pod {key} is on node {node}; more is not known of it here.", node)
        return problem_page(404, f"Pod {key[:510]} is not in the cluster, or not known here yet.")

    def _gpu_pods(self) -> Generator[None, None, list[tuple[str, str]]]:
        """Return namespace/name and the node of the pods that hold GPUs, and of pending ones, without a node."""
        state = self._core.state
        pods = [(pod.key, "") for pod in state.waiting_pods()]
        for index, node in enumerate(list(state.nodes)):
            pods += [(usage.name, node) for usage in state.allocations.bound(node)]
            if index % NODES_LISTED_AT_ONCE == 0:
                yield
        return pods

    async def find(self, request: Request) -> Response:
        """Show the page of the node or pod that was searched for, or list those whose names contain the text."""
        text = request.query_params.get("q", "").strip()[:510]
        found = find(text, self._core.state.nodes, await in_slices(self._gpu_pods())) if text else None
        if found and found.only:
            return RedirectResponse(quote(found.only), 303, HEADERS)
        return html_page("find.html", here="", text=text, found=found)

    async def policies(self, _request: Request) -> Response:
        """Show the policies, and a form to try a pod."""
        return html_page("policies.html", **self.policies_variables())

    def policies_variables(self, **dry_run: Any) -> dict[str, Any]:
        """Return the variables of the policies' template. `dry_run` holds the submitted pod and the result."""
        core = self._core
        empty = {"sent": "", "result": None, "lines": (), "problem": ""}
        status, loaded = core.status()["policies"], core.policies.policies
        return {"here": "/policies", "error": status["error"], "hash": status["hash"],
                "expired": status["expired_exceptions"],
                "policies": [(policy, policy_text(policy.spec)) for policy in loaded],
                "matched": core.metrics.results_by_policy(), **empty, **dry_run}  # fmt: skip

    async def dry_run(self, request: Request, bodies: BodyReader) -> Response:
        """Show what admission would do to a pasted pod or workload."""
        async with bodies.read(request.scope, request.receive, lambda: PASTED_LIMIT) as body:
            sent = dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=4)).get("pod", "")
        try:
            async with self._queue.turn():
                document = await asyncio.to_thread(read_pasted, sent)
                namespace = namespace_of(document)
                core = self._core
                result = preview(document, namespace, core.namespace_labels, ReviewContext(core.world()))
                lines = await asyncio.to_thread(changed_lines, document, result.object)
        except TooManyJobs:
            raise
        except BadInput as error:
            return html_page("policies.html", 400, **self.policies_variables(sent=sent, problem=str(error)))
        return html_page("policies.html", **self.policies_variables(sent=sent, result=result, lines=lines))

    async def decisions(self, request: Request, tag: str) -> Response:
        selected = read_decision_filter(request.query_params)
        recent = self._recent.kept()
        rows = rows_of(recent)
        return html_page("decisions.html", here="/decisions", tag=tag,
                     rows=select(rows, selected), asked=selected, choices=choices_of(rows),
                     total=self._recent.total, kept=len(recent))  # fmt: skip

    async def static(self, request: Request) -> Response:
        """Serve a style sheet or a script, whose URL contains a hash of the content."""
        name = request.path_params["name"]
        if name not in STATIC:
            return Response("no such file", 404, HEADERS, "text/plain")
        kind = MEDIA_TYPES["." + name.rpartition(".")[2]]
        return Response(STATIC[name], 200, STATIC_HEADERS, kind)


async def run_for_ever(run: Callable[[], Awaitable[None]], pause_seconds: float = RESTART_SECONDS) -> None:
    """Run a task of the page, and restart it after an error, which must not end admission and scheduling."""
    while True:
        try:
            await run()
        except Exception:  # noqa: BLE001  # see above
            LOGGER.exception("a task of the page failed, and is started again")
        await asyncio.sleep(pause_seconds)
