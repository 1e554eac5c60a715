# SPDX-License-Identifier: Apache-2.0
"""A reflector: one kind of the API server's objects, listed once and then followed, kept right whatever breaks.

list (paged) → watch → lost: watch on from the last resourceVersion, after a back-off → 410: list again, while
what is known goes on serving, and swap only the differences in (CACHE-01 to 10).
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.cluster.apiserver import ApiServer
from app.cluster.listing import Fields, KindDecoders, Unreadable, UnreadableObject, identity
from app.cluster.stream_health import READ_SECONDS, BackOff, StreamHealth
from app.cluster.watched_kinds import WatchedKind
from app.kube.partial_types import PartialNamedObject
from app.telemetry.logs import event
from app.telemetry.metrics import Metrics
from app.values.errors import ApiError, BadInput

PAGE_OBJECTS = 500
"""A page of 500 nodes decodes in 14 ms (docs/reference/measurements.md#decoding): the event loop is never held
longer."""
SLICE_OBJECTS = 50
"""Objects read or swapped in between two turns of the event loop; some 2 ms."""
WATCH_SECONDS = (240, 300)
"""The API server ends a watch after a random time in here, so that replicas do not reconnect together (CACHE-01)."""
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

NAMES = KindDecoders(PartialNamedObject)

Facts = dict[str, tuple[str, Any]]
"""UID and what is kept of an object, by key."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Time and chance, passed in so that tests need not wait. `silence`: seconds after which a stream is given up."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.SystemRandom().random
    silence: float = READ_SECONDS


class Reflector:
    """Keeps one kind. `known`: UID by key of what was seen; `synced`: the first list is in.

    `odd`: keys of what cannot be read. `refusal`: why the API server does not let us see the kind, None if it does.
    """

    def __init__(self, kind: WatchedKind[Any], server: ApiServer, metrics: Metrics, clock: Clock | None = None) -> None:
        self.kind = kind
        self.known: dict[str, str] = {}
        self.odd: set[str] = set()
        self.synced = False
        self.refusal: str | None = None
        self._server = server
        self._metrics = metrics
        self._clock = clock or Clock()
        self._back_off = BackOff()
        self._version: str | None = None
        self.pulse = StreamHealth(lost=self._clock.now(), heard=self._clock.now())
        self._reading = KindDecoders(kind.shape)
        self._relist_asked = False
        self._reported = False
        metrics.unreadable.labels(kind.name)  # begins at 0, so that the first one is an increase

    async def run(self) -> None:
        """Keep the kind, for ever."""
        while True:
            reason, detail = await self._once()
            lived = self.pulse.broke(self._clock.now())
            if reason != "closed" or not lived:
                self._report(reason, detail)
            self._metrics.watch_restarts.labels(self.kind.name, reason).inc()
            await self._clock.sleep(self._back_off.delay(lived, self._clock.chance()))

    async def _once(self) -> tuple[str, str]:
        """List if need be, then watch until the stream ends; gives why: a word of a closed set, and more."""
        try:
            if self._version is None:
                await self._list()
            await self._watch()
        except Unreadable as error:
            self._version = None
            return "unreadable", str(error)
        except ApiError as error:
            return self._failed(error), str(error)
        return "closed", ""

    def _failed(self, error: ApiError) -> str:
        if error.status == 410:
            self._version = None
            return "gone"
        if error.status == 401:
            return "unauthorized"
        if error.status in (403, 404):
            self.refusal = str(error)
            return "refused"
        return "http" if error.status else "connection"

    def _report(self, reason: str, detail: str) -> None:
        """Say once that the kind cannot be followed; `_heard_again` says once that it can."""
        if not self._reported:
            event(f"watch of {self.kind.name} lost", 30, reason=reason, error=detail)
        self._reported = True

    async def _list(self) -> None:
        """Read all pages, and only then swap the differences in.

        A token that expired on the way starts the list again, in one piece as client-go does.
        """
        try:
            facts, version = await self._pages(PAGE_OBJECTS)
        except ApiError as error:
            if error.status != 410:
                raise
            facts, version = await self._pages(0)
        await self._swap(facts)
        self._version, self._relist_asked = version, False
        self._metrics.relists.labels(self.kind.name).inc()
        if not self.synced:
            self.kind.listed()
        self.synced, self.refusal = True, None

    async def _pages(self, limit: int) -> tuple[Facts, str]:
        facts: Facts = {}
        token = ""
        while True:
            params = {"limit": str(limit)} if limit else {}
            body = await self._server.get(self.kind.path, self._params(params | ({"continue": token} if token else {})))
            page, items = self._reading.page(body)
            for index, item in enumerate(items):
                self._note(item, facts)
                if index % SLICE_OBJECTS == SLICE_OBJECTS - 1:
                    await asyncio.sleep(0)
            token = page.more
            if not token:
                return facts, page.resourceVersion

    def _params(self, params: Mapping[str, str]) -> dict[str, str]:
        return {**params, "labelSelector": self.kind.selector} if self.kind.selector else dict(params)

    def _note(self, item: Fields | UnreadableObject, facts: Facts) -> None:
        if isinstance(item, UnreadableObject):
            self._odd(item)
            return
        key, uid = identity(item)
        try:
            facts[key] = (uid, self.kind.read(item))
        except BadInput as error:
            self._odd(UnreadableObject(key, str(error)))

    def _odd(self, odd: UnreadableObject) -> None:
        """Count an object that cannot be read, and trust no longer what it said before; the others are not touched."""
        self._metrics.unreadable.labels(self.kind.name).inc()
        event(f"one of the {self.kind.name} cannot be read", 30, object=odd.key, error=odd.problem)
        self._drop(odd.key)
        self.odd.add(odd.key)

    async def _swap(self, facts: Facts) -> None:
        for index, key in enumerate([key for key in self.known if key not in facts]):
            self._drop(key)
            if index % SLICE_OBJECTS == SLICE_OBJECTS - 1:
                await asyncio.sleep(0)
        for index, (key, (uid, fact)) in enumerate(facts.items()):
            self._take(key, uid, fact)
            if index % SLICE_OBJECTS == SLICE_OBJECTS - 1:
                await asyncio.sleep(0)

    def _take(self, key: str, uid: str, fact: Any) -> None:
        if self.known.get(key, uid) != uid:  # deleted and made again under its name
            self._drop(key)
        self.known[key] = uid
        self.odd.discard(key)
        self.kind.take(key, uid, fact)

    def _drop(self, key: str) -> None:
        self.odd.discard(key)
        uid = self.known.pop(key, None)
        if uid is not None:
            self.kind.drop(key, uid)

    async def _watch(self) -> None:
        seconds = WATCH_SECONDS[0] + self._clock.chance() * (WATCH_SECONDS[1] - WATCH_SECONDS[0])
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(int(seconds)),
        }
        async with self._server.watch(self.kind.path, self._params(params), self._clock.silence) as stream:
            self.pulse.established(self._clock.now())
            self._heard_again()
            async for lines in stream:
                for line in lines:
                    if line:
                        self.fold(line)
                self.pulse.beat(self._clock.now())
                if self._relist_asked:
                    raise ApiError(410, "list and index differ")

    def _heard_again(self) -> None:
        self.refusal = None
        if self._reported:
            event(f"watch of {self.kind.name} is back")
        self._reported = False

    def fold(self, line: bytes) -> None:
        """Fold one event in: a line of a watch.

        Raises ApiError for an ERROR event, Unreadable for what is no event.
        """
        what, item = self._reading.event(line)
        if isinstance(item, UnreadableObject):
            self._odd(item)
            return
        if what != "BOOKMARK":
            self._changed(what, item)
        self._version = item["metadata"].get("resourceVersion", self._version)

    def _changed(self, what: str, item: Fields) -> None:
        key, uid = identity(item)
        if what == "DELETED":
            if self.known.get(key, uid) == uid:
                self._drop(key)
            return
        try:
            fact = self.kind.read(item)
        except BadInput as error:
            self._odd(UnreadableObject(key, str(error)))
        else:
            self._take(key, uid, fact)

    async def compare(self) -> int:
        """Count the objects in which the API server's list and the index differ, and list again if there are any.

        What changed while the list was read does not count, nor what cannot be read (CACHE-10).

        Raises ApiError, Unreadable.
        """
        before = dict(self.known)
        listed = {key: uid async for key, uid in self._identities()}
        steady = {key: uid for key, uid in self.known.items() if before.get(key) == uid}
        drift = sum(listed.get(key) != uid for key, uid in steady.items())
        drift += sum(key not in before and key not in self.known and key not in self.odd for key in listed)
        self._metrics.cache_drift.labels(self.kind.name).set(drift)
        self._relist_asked = self._relist_asked or drift > 0
        return drift

    async def _identities(self) -> AsyncIterator[tuple[str, str]]:
        """List keys and UIDs alone, in pages: 50,000 pods' metadata at once would be 50 MB."""
        token = ""
        while True:
            params = {"limit": str(PAGE_OBJECTS)} | ({"continue": token} if token else {})
            body = await self._server.get(self.kind.path, self._params(params), METADATA_ONLY)
            page, items = NAMES.page(body)
            for item in items:
                if not isinstance(item, UnreadableObject):
                    yield identity(item)
            token = page.more
            if not token:
                return
