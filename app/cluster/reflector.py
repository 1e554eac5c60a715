# SPDX-License-Identifier: Apache-2.0
"""A reflector: lists the objects of one kind, then watches them, and recovers from every failure.

A lost watch resumes from the last resourceVersion after a back-off. After a 410 the kind is listed again; the index
stays in use meanwhile, and only the differences are then applied.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from app.cluster.apiserver import ApiServer
from app.cluster.garbage_collection import leave_out_what_is_listed
from app.cluster.listing import (
    PAGE_OBJECTS,
    Fields,
    KindDecoders,
    Unreadable,
    UnreadableObject,
    identity,
    list_pages,
    metadata_of,
)
from app.cluster.watched_kinds import WatchedKind
from app.kube.records import KubeObject
from app.telemetry.logs import event
from app.telemetry.metrics import Metrics
from app.values.errors import FORBIDDEN, GONE, NOT_FOUND, UNAUTHORIZED, ApiError, BadInput

LOST_SECONDS = 30.0
"""Without an open stream for this long the kind is stale (docs/reference/listeners.md#staleness)."""
SILENT_SECONDS = 150.0
"""An open stream without any event for this long is stale; bookmarks come about once a minute."""
READ_SECONDS = 120.0
"""A stream silent for this long is closed and opened again, because a half-open connection stays silent."""
SETTLED_SECONDS = 60.0
"""After a stream that lasted this long, the back-off starts afresh."""
FIRST_DELAY_SECONDS = 0.8
LONGEST_DELAY_SECONDS = 30.0


@dataclass(slots=True)
class StreamHealth:
    """The times of one stream: when it was opened (`since`, None if closed), lost, and last `heard`."""

    lost: float
    heard: float
    since: float | None = None

    def established(self, now: float) -> None:
        self.since = self.heard = now

    def received(self, now: float) -> None:
        """Note an event or a bookmark."""
        self.heard = now

    def ended(self, now: float) -> float:
        """Note that the stream ended; return how long it lasted, 0 if there was none."""
        lifetime = 0.0 if self.since is None else now - self.since
        if self.since is not None:
            self.since, self.lost = None, now
        return lifetime

    def stale(self, now: float) -> bool:
        """Tell whether the watched objects may be outdated."""
        if self.since is None:
            return now - self.lost >= LOST_SECONDS
        return now - self.heard >= SILENT_SECONDS

    def age(self, now: float) -> float:
        """Return the seconds since the last event."""
        return max(0.0, now - self.heard)


class BackOff:
    """Delays between tries: doubled up to a limit, with random extra so that replicas do not reconnect together.

    As in client-go, the extra only lengthens a delay, by up to its own length: at most six tries in 30 s.
    """

    def __init__(self) -> None:
        self._next = FIRST_DELAY_SECONDS

    def delay(self, lifetime: float, chance: float) -> float:
        """Return the seconds to wait after a stream that lasted `lifetime` seconds. `chance` is random, 0 to 1."""
        if lifetime >= SETTLED_SECONDS:
            self._next = FIRST_DELAY_SECONDS
            return 0.0
        seconds = min(self._next * (1 + chance), LONGEST_DELAY_SECONDS)
        self._next = min(self._next * 2, LONGEST_DELAY_SECONDS)
        return seconds


SLICE_OBJECTS = 50
"""Objects read or put between two turns of the event loop; they take some 2 ms."""
WATCH_SECONDS = (240, 300)
"""The API server ends a watch after a random time in this range, so that replicas do not reconnect together."""
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

NAMES = KindDecoders(KubeObject)

Facts = dict[str, tuple[str, Any]]
"""The UID of an object and what is kept of it, by key."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Time and randomness, passed in for tests. `silence` is the seconds after which a silent stream is closed."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.SystemRandom().random
    silence: float = READ_SECONDS


class Reflector:
    """Follows one kind. `uids` holds the UID of each known object by key; `synced` is set after the first list.

    `unreadable` holds the keys of objects that cannot be read; `refusal` is why the API server refuses the kind, if so.
    """

    def __init__(self, kind: WatchedKind[Any], server: ApiServer, metrics: Metrics, clock: Clock | None = None) -> None:
        self.kind = kind
        self.uids: dict[str, str] = {}
        self.unreadable: set[str] = set()
        self.synced = False
        self.refusal: str | None = None
        self._selection = kind.selection
        self._server = server
        self._metrics = metrics
        self._clock = clock or Clock()
        self._back_off = BackOff()
        self._version: str | None = None
        self.stream = StreamHealth(lost=self._clock.now(), heard=self._clock.now())
        self._decoders = KindDecoders(kind.shape)
        self._relist_asked = False
        self._reported = False
        metrics.unreadable.labels(kind.name)  # starts at 0, so that the first one counts as an increase

    async def run(self) -> None:
        while True:
            reason, detail = await self._list_and_watch()
            lifetime = self.stream.ended(self._clock.now())
            if reason != "closed" or not lifetime:
                if not self._reported:
                    event(f"watch of {self.kind.name} lost", 30, reason=reason, error=detail)
                self._reported = True
            self._metrics.watch_restarts.labels(self.kind.name, reason).inc()
            await self._clock.sleep(self._back_off.delay(lifetime, self._clock.chance()))

    async def _list_and_watch(self) -> tuple[str, str]:
        """List if needed, then watch until the stream ends; return why it ended: a label of the metric, and details."""
        try:
            if self._version is None:
                await self._list()
            await self._watch()
        except Unreadable as error:
            self._version = None
            return "unreadable", str(error)
        except ApiError as error:
            return self._failure_reason(error), str(error)
        return "closed", ""

    def _failure_reason(self, error: ApiError) -> str:
        if error.status == GONE:
            self._version = None
            return "gone"
        if error.status == UNAUTHORIZED:
            return "unauthorized"
        if error.status in (FORBIDDEN, NOT_FOUND):
            self.refusal = str(error)
            return "refused"
        return "http" if error.status else "connection"

    async def _list(self) -> None:
        """Read all pages, and only then apply the differences.

        If the token of a page has expired, the list starts again in one piece, as in client-go.
        """
        try:
            facts, version = await self._pages(PAGE_OBJECTS)
        except ApiError as error:
            if error.status != GONE:
                raise
            facts, version = await self._pages(0)
        await self._replace_all(facts)
        self._version, self._relist_asked = version, False
        self._metrics.relists.labels(self.kind.name).inc()
        if not self.synced:
            self.kind.listed()
        self.synced, self.refusal = True, None

    async def _pages(self, limit: int) -> tuple[Facts, str]:
        facts: Facts = {}
        version = ""
        async for page, items in list_pages(self._server, self.kind.path, self._decoders.page, self._selection, limit):
            for index, item in enumerate(items):
                self._read_item(item, facts)
                if index % SLICE_OBJECTS == SLICE_OBJECTS - 1:
                    await self._rest()
            version = page.resourceVersion
        return facts, version

    def _read_item(self, item: Fields | UnreadableObject, facts: Facts) -> None:
        if isinstance(item, UnreadableObject):
            self._note_unreadable(item)
            return
        key, uid = identity(item)
        try:
            facts[key] = (uid, self.kind.read(item))
        except BadInput as error:
            self._note_unreadable(UnreadableObject(key, str(error)))

    def _note_unreadable(self, item: UnreadableObject) -> None:
        """Count an object that cannot be read, and remove what was known of it."""
        self._metrics.unreadable.labels(self.kind.name).inc()
        event(f"one of the {self.kind.name} cannot be read", 30, object=item.key, error=item.problem)
        self._drop(item.key)
        self.unreadable.add(item.key)

    async def _replace_all(self, facts: Facts) -> None:
        for index, key in enumerate(list(self.uids)):
            if key not in facts:
                self._drop(key)
            if index % SLICE_OBJECTS == SLICE_OBJECTS - 1:
                await asyncio.sleep(0)
        for index, (key, (uid, fact)) in enumerate(facts.items()):
            self._put(key, uid, fact)
            if index % SLICE_OBJECTS == SLICE_OBJECTS - 1:
                await self._rest()

    async def _rest(self) -> None:
        """Give others a turn; what a first list has brought so far is no longer visited by the garbage collector."""
        if not self.synced:
            leave_out_what_is_listed()
        await asyncio.sleep(0)

    def _put(self, key: str, uid: str, fact: Any) -> None:
        if self.uids.get(key, uid) != uid:  # deleted and created again with the same name
            self._drop(key)
        self.uids[key] = uid
        self.unreadable.discard(key)
        self.kind.put(key, uid, fact)

    def _drop(self, key: str) -> None:
        self.unreadable.discard(key)
        uid = self.uids.pop(key, None)
        if uid is not None:
            self.kind.drop(key, uid)

    async def _watch(self) -> None:
        seconds = WATCH_SECONDS[0] + self._clock.chance() * (WATCH_SECONDS[1] - WATCH_SECONDS[0])
        params = {
            **self._selection,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(int(seconds)),
        }
        async with self._server.watch(self.kind.path, params, self._clock.silence) as stream:
            self.stream.established(self._clock.now())
            self.refusal = None
            if self._reported:
                event(f"watch of {self.kind.name} is back")
            self._reported = False
            async for lines in stream:
                for line in lines:
                    if line:
                        self.apply_event(line)
                self.stream.received(self._clock.now())
                if self._relist_asked:
                    raise ApiError(GONE, "list and index differ")

    def apply_event(self, line: bytes) -> None:
        """Apply one event, a line of a watch.

        Raises ApiError for an ERROR event, and Unreadable for a line that is not an event.
        """
        event_type, item = self._decoders.event(line)
        if isinstance(item, UnreadableObject):
            self._note_unreadable(item)
            return
        if event_type != "BOOKMARK":
            self._changed(event_type, item)
        self._version = metadata_of(item).resource_version or self._version

    def _changed(self, event_type: str, item: Fields) -> None:
        key, uid = identity(item)
        if event_type == "DELETED":
            if self.uids.get(key, uid) == uid:
                self._drop(key)
            return
        try:
            fact = self.kind.read(item)
        except BadInput as error:
            self._note_unreadable(UnreadableObject(key, str(error)))
        else:
            self._put(key, uid, fact)

    async def compare(self) -> int:
        """Count the differences between the API server's list and the index, and list again if there are any.

        Objects that changed while the list was read do not count, nor unreadable ones.

        Raises ApiError, Unreadable.
        """
        unlisted, unknown = dict(self.uids), []
        async for key, uid in self._identities():  # all work is done page by page: a cluster has 500,000 pods
            if unlisted.get(key) == uid:
                del unlisted[key]
            elif key not in unlisted:
                unknown.append(key)
        drift = sum(self.uids.get(key) == uid for key, uid in unlisted.items())
        drift += sum(key not in self.uids and key not in self.unreadable for key in unknown)
        self._metrics.cache_drift.labels(self.kind.name).set(drift)
        self._relist_asked = self._relist_asked or drift > 0
        return drift

    async def _identities(self) -> AsyncIterator[tuple[str, str]]:
        """List keys and UIDs only, in pages: the metadata of 50,000 pods at once would be 50 MB."""
        pages = list_pages(self._server, self.kind.path, NAMES.page, self._selection, accept=METADATA_ONLY)
        async for _, items in pages:
            for item in items:
                if not isinstance(item, UnreadableObject):
                    yield identity(item)
