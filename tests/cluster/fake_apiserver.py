# SPDX-License-Identifier: Apache-2.0
"""A small API server that fails on request: it lists in pages, serves watches, and gives the answers of a test."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from kubernetes.client import Configuration

from app.cluster.apiserver import ApiServer

SOON_SECONDS = 60
Object = dict[str, Any]
Answer = Callable[[web.Request], web.Response | None]
CLOSE = b"close"
"""The element of the queue at which a watch ends."""


class FakeApi:
    """Objects of one kind at the path `/things`.

    `queries` holds the queries of lists and watches, in order. `faults` holds answers for the next requests, one each,
    where None answers as usual.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.version = 100
        self.queries: list[dict[str, str]] = []
        self.headers: list[Mapping[str, str]] = []
        self.faults: deque[Answer | None] = deque()
        self._streams: list[asyncio.Queue[bytes]] = []
        self._log: list[tuple[int, bytes]] = []
        self._compacted = 0
        self.url = ""

    def put(self, document: Object) -> None:
        """Create or change an object, and send the event to the watches."""
        self.version += 1
        name = document["metadata"]["name"]
        what = "MODIFIED" if name in self.objects else "ADDED"
        self.objects[name] = document
        self._tell(what, document)

    def delete(self, name: str) -> None:
        """Delete an object, and send the event to the watches."""
        self.version += 1
        self._tell("DELETED", self.objects.pop(name))

    def _tell(self, what: str, document: Object) -> None:
        document["metadata"]["resourceVersion"] = str(self.version)
        line = json.dumps({"type": what, "object": document}).encode() + b"\n"
        self._log.append((self.version, line))
        self.send(line)

    def compact(self) -> None:
        """Forget the history: a watch from an older resourceVersion is answered with 410."""
        self._compacted = self.version

    def say(self, what: str, document: Object) -> None:
        """Send an event to the watches without a change of the objects."""
        self.send(json.dumps({"type": what, "object": document}).encode() + b"\n")

    def send(self, line: bytes) -> None:
        """Send bytes to the watches."""
        for stream in self._streams:
            stream.put_nowait(line)

    def hang_up(self) -> None:
        """End the watches, which miss what happens from now on."""
        self.send(CLOSE)
        self._streams.clear()

    @property
    def lists(self) -> list[dict[str, str]]:
        """The queries of the lists."""
        return [query for query in self.queries if "watch" not in query]

    @property
    def watches(self) -> list[dict[str, str]]:
        """The queries of the watches."""
        return [query for query in self.queries if "watch" in query]

    @property
    def watched(self) -> int:
        """The number of open watches."""
        return len(self._streams)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a list or a watch."""
        self.queries.append(dict(request.query))
        self.headers.append(request.headers)
        fault = self.faults.popleft() if self.faults else None
        made = fault(request) if fault else None
        if made is not None:
            return made
        return await self._watch(request) if "watch" in request.query else self._list(request)

    def _list(self, request: web.Request) -> web.Response:
        limit, start = int(request.query.get("limit", "0")), int(request.query.get("continue", "0"))
        items = list(self.objects.values())
        page = items[start : start + limit] if limit else items
        more = str(start + limit) if limit and start + limit < len(items) else ""
        return web.json_response(
            {"metadata": {"resourceVersion": str(self.version), "continue": more}, "items": page or None}
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        start = int(request.query["resourceVersion"])
        if start < self._compacted:
            return web.json_response({"kind": "Status", "code": 410}, status=410)
        stream: asyncio.Queue[bytes] = asyncio.Queue()
        missed = [line for version, line in self._log if version > start]
        self._streams.append(stream)
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            await answer.write(b"".join(missed))
            while (line := await stream.get()) != CLOSE:
                await answer.write(line)
        finally:
            if stream in self._streams:
                self._streams.remove(stream)
        return answer


def status(code: int) -> Answer:
    """Answer with an error, as a Status."""
    body = {"kind": "Status", "code": code, "message": f"no: {code}"}
    return lambda _request: web.json_response(body, status=code)


@asynccontextmanager
async def served(paths: Mapping[str, FakeApi]) -> AsyncIterator[ApiServer]:
    """Serve fake APIs by path on loopback, and yield a client of them."""
    app = web.Application()
    for path, api in paths.items():
        app.router.add_route("*", path, api.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    for api in paths.values():
        api.url = url
    server = ApiServer(lambda: Configuration(host=url))
    try:
        yield server
    finally:
        for api in paths.values():
            api.hang_up()
        await server.close()
        await runner.cleanup()


@asynccontextmanager
async def fake_api() -> AsyncIterator[tuple[FakeApi, ApiServer]]:
    """Serve one FakeApi at /things, and yield it and a client of it."""
    api = FakeApi()
    async with served({"/things": api}) as server:
        yield api, server


async def until(what: str, true: Callable[[], object]) -> None:
    """Let the event loop run until a condition is true.

    Raises AssertionError with the name of the condition.
    """
    end = asyncio.get_running_loop().time() + SOON_SECONDS
    while not true():
        assert asyncio.get_running_loop().time() < end, f"not in time: {what}"
        await asyncio.sleep(0.001)
