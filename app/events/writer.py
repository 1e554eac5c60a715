# SPDX-License-Identifier: Apache-2.0
"""Writes Events on GPU pods that stay Pending, and on their workloads, while it holds the Lease of all replicas.

The requests of one turn run in a thread, one after another, and never more of them than the limit of rate allows.
"""

import asyncio
import contextlib
import logging
import socket
import time
import uuid
from collections.abc import Callable, Iterable

from app.admission.exemptions import is_exempt
from app.api.pending_reasons import ExplainedPod, PendingReasons
from app.cluster.state import State
from app.events.documents import event_document, event_name, events_path, series_patch
from app.events.planning import EventWrite, TokenBucket, WaitingPod, WrittenEvent, after, statements_of, writes
from app.events.workloads import workload_of
from app.kube.object_references import ObjectReference
from app.telemetry.clock import now as wall_clock
from app.telemetry.logs import event
from app.telemetry.metrics import Metrics
from app.tls.kube_objects import CONFLICT, MERGE, KubeClient, Object
from app.tls.lease import Lease
from app.values.errors import ApiError, BadInput

PENDING_SECONDS = 10.0
"""A pod that waits for less gets no Event: kube-scheduler tries again within 10 s (podMaxBackoffSeconds)."""
TURN_SECONDS = 5.0
"""Interval of turns; a third of the Lease's duration, as in the controller of certificates."""
RATE, BURST = 5.0, 10.0
"""Requests a second, and at once: what client-go allows a client by default (rest.DefaultQPS, rest.DefaultBurst)."""
RELEASE_SECONDS = 2.0
"""For giving up the Lease at the end; another replica takes it at once then."""
TIMESTAMP = "%Y-%m-%dT%H:%M:%S.%fZ"


def lease_path(namespace: str) -> str:
    """Return the path of the Lease by which one replica writes."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/gpu-usher-events"


class EventWriter:
    """Writes the Events. `reasons` computes the causes of the pods, while we hold the Lease."""

    def __init__(
        self,
        kube: KubeClient,
        namespace: str,
        state: State,
        reasons: PendingReasons,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reasons = reasons
        self._kube = kube
        self._state = state
        self._metrics = metrics
        self._clock = clock
        self._instance = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._lease = Lease(kube, lease_path(namespace), self._instance, clock, "events")
        self._first_seen: dict[str, float] = {}
        self._workloads: dict[ObjectReference, ObjectReference | None] = {}
        self._written: dict[ObjectReference, WrittenEvent] = {}
        self._bucket = TokenBucket(BURST, clock())

    async def run(self) -> None:
        """Take turns until cancelled, and give up the Lease then."""
        try:
            while True:
                if await asyncio.to_thread(self._hold_lease):
                    await self.turn()
                await asyncio.sleep(TURN_SECONDS)
        finally:
            if self.reasons.kept_current:
                with contextlib.suppress(ApiError, TimeoutError):
                    async with asyncio.timeout(RELEASE_SECONDS):
                        await asyncio.to_thread(self._lease.release)
            self._kube.close()

    def _hold_lease(self) -> bool:
        """Acquire or renew the Lease; who has just lost it forgets what it wrote, for somebody else writes now."""
        try:
            leading = self._lease.hold(wall_clock())
        except ApiError as error:
            event("Lease for Events not held", logging.WARNING, error=str(error))
            leading = False
        if leading != self.reasons.kept_current:
            event("writing Events" if leading else "not writing Events, another replica does")
            self._written.clear()
        self.reasons.kept_current = leading
        return leading

    async def turn(self) -> None:
        """Write the Events that are due, as many as the limit of rate allows."""
        explained = self._waiting_long(self.reasons.explained_pods())
        await asyncio.to_thread(self._find_workloads, explained)
        pods = [WaitingPod(entry.pod.reference, self._workload(entry), entry.cause) for entry in explained]
        statements = statements_of(pods)
        self._written = {regarding: last for regarding, last in self._written.items() if regarding in statements}
        due = writes(statements, self._written, self._clock())
        self._metrics.events_waiting.set(await asyncio.to_thread(self._write_all, due))

    def _waiting_long(self, explained: Iterable[ExplainedPod]) -> list[ExplainedPod]:
        """Return the pods that still wait, have waited for long enough, and are not exempt."""
        pending, now, state = self._state.pending_pods, self._clock(), self._state
        self._first_seen = {uid: self._first_seen.get(uid, now) for uid in pending}
        namespaces = {pod.namespace for pod in pending.values()}
        exempt = {name for name in namespaces if is_exempt(name, state.namespaces.labels(name), state.knowledge)}
        return [
            entry
            for entry in explained
            if now - self._first_seen.get(entry.pod.reference.uid, now) >= PENDING_SECONDS
            and entry.pod.reference.namespace not in exempt
        ]

    def _find_workloads(self, explained: list[ExplainedPod]) -> None:
        """Look up the workload of each controller that is not known yet; where the limit ends, at a later turn."""
        controllers = {entry.pod.controller for entry in explained if entry.pod.controller is not None}
        self._workloads = {known: top for known, top in self._workloads.items() if known in controllers}
        for controller in controllers - self._workloads.keys():
            if not self._take_token():
                return
            with contextlib.suppress(BadInput):
                self._workloads[controller] = workload_of(controller, self._read)

    def _read(self, path: str) -> Object | None:
        """Read an object; None if it does not exist, or may not be read."""
        try:
            return self._kube.read(path)
        except ApiError:
            return None

    def _workload(self, entry: ExplainedPod) -> ObjectReference | None:
        return None if entry.pod.controller is None else self._workloads.get(entry.pod.controller)

    def _write_all(self, due: list[EventWrite]) -> int:
        """Write Events until the limit of rate; return the number of those that are left."""
        for index, write in enumerate(due):
            if not self._take_token():
                return len(due) - index
            self._try_write(write)
        return 0

    def _take_token(self) -> bool:
        self._bucket = self._bucket.refilled(self._clock(), RATE, BURST)
        if self._bucket.tokens < 1:
            return False
        self._bucket = self._bucket.taken()
        return True

    def _try_write(self, write: EventWrite) -> None:
        """Write one Event and note it; one that the API server refuses is tried again after a while."""
        last = self._written.get(write.regarding)
        now = self._clock()
        try:
            count = self._write(write, last)
        except ApiError as error:
            self._metrics.events.labels("refused").inc()
            event("Event not written", logging.WARNING, regarding=write.regarding.name, error=str(error))
            self._written[write.regarding] = WrittenEvent(write.statement, now, now, refused=True)
            return
        self._metrics.events.labels("created" if write.count == 1 else "renewed").inc()
        self._written[write.regarding] = after(write, last, now, count)

    def _write(self, write: EventWrite, last: WrittenEvent | None) -> int:
        """Create an Event, or renew it; return the count of its series.

        Raises ApiError.
        """
        path, timestamp = events_path(write.regarding.namespace), wall_clock().strftime(TIMESTAMP)
        if write.count == 1:
            try:
                self._kube.create(path, event_document(write, self._instance, timestamp))
                return 1
            except ApiError as error:
                if error.status != CONFLICT:
                    raise
        place = f"{path}/{event_name(write)}"
        count = write.count if last is not None and write.count > 1 else self._stored_count(place) + 1
        self._kube.patch(place, series_patch(count, timestamp), MERGE)
        return count

    def _stored_count(self, place: str) -> int:
        """Return the count of an Event that another replica wrote: an empty patch reads it without the right to read.

        Raises ApiError.
        """
        series = self._kube.patch(place, {}, MERGE).get("series") or {}
        return int(series.get("count") or 1)
