# SPDX-License-Identifier: Apache-2.0
"""Writes Events on GPU pods that stay Pending, their workloads, and policies with errors, while it holds the Lease.

How many Events are written, how often, and when they expire is in planning.py. The requests are made one after another,
each as soon as the limit of rate allows it; only the two of each turn for the Lease wait for nothing.
"""

import asyncio
import contextlib
import logging
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping

from app.admission.reviewed_pod import is_exempt
from app.api.pending_reasons import ExplainedPod, PendingReasons
from app.cluster.apiserver import ApiServer
from app.events.lease import Lease
from app.events.limited_client import LimitedClient
from app.events.planning import (
    LOOKUP_SHARE,
    PENDING_SECONDS,
    RELEASE_SECONDS,
    TURN_SECONDS,
    EventWrite,
    Statement,
    WaitingPod,
    WrittenEvent,
    after,
    event_document,
    event_name,
    events_path,
    series_patch,
    statements_of,
    workload_of,
    writes,
)
from app.explain.pending_cause import UNSEEN_SECONDS, told_of_scheduler
from app.kube.pods import ObjectReference
from app.telemetry.logs import event
from app.telemetry.logs import now as wall_clock
from app.telemetry.metrics import Metrics
from app.values.errors import CONFLICT, ApiError, BadInput
from app.values.json_members import Object
from app.world.state import State

TIMESTAMP = "%Y-%m-%dT%H:%M:%S.%fZ"


def lease_path(namespace: str) -> str:
    """Return the path of the Lease by which one replica writes."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/gpu-usher-events"


class EventWriter:
    """Writes the Events. `reasons` computes the causes of the pods, while we hold the Lease.

    `of_policies` returns the Events to write on the ConfigMaps that hold policies.
    """

    def __init__(
        self,
        server: ApiServer,
        namespace: str,
        state: State,
        reasons: PendingReasons,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
        of_policies: Callable[[], Mapping[ObjectReference, Statement]] = dict,
    ) -> None:
        self.reasons = reasons
        self._of_policies = of_policies
        self._rest = rest
        self._server = server
        self._state = state
        self._metrics = metrics
        self._clock = clock
        self._instance = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._lease = Lease(server, lease_path(namespace), self._instance, clock)
        self._first_seen: dict[str, float] = {}
        self._workloads: dict[ObjectReference, ObjectReference | None] = {}
        self._written: dict[ObjectReference, WrittenEvent] = {}
        self._limited = LimitedClient(server, clock, rest)

    async def run(self) -> None:
        """Take turns until cancelled, and give up the Lease then."""
        try:
            while True:
                end = self._clock() + TURN_SECONDS
                if await self._hold_lease():
                    await self.turn(end)
                await self._rest(max(0.0, end - self._clock()))
        finally:
            if self.reasons.kept_current:
                with contextlib.suppress(ApiError, TimeoutError):
                    async with asyncio.timeout(RELEASE_SECONDS):
                        await self._lease.release()
            await self._server.close()

    async def _hold_lease(self) -> bool:
        """Acquire or renew the Lease. A replica that loses it clears its records, because another replica writes."""
        try:
            leading = await self._lease.hold(wall_clock())
        except ApiError as error:
            event("Lease for Events not held", logging.WARNING, error=str(error))
            leading = False
        if leading != self.reasons.kept_current:
            event("writing Events" if leading else "not writing Events, another replica does")
            self._written.clear()
        self.reasons.kept_current = leading
        return leading

    async def turn(self, end: float) -> None:
        """Write the Events that are due, as many as the limit of rate allows until the second `end`."""
        explained = self._waiting_long(self.reasons.explained_pods())
        await self._find_workloads(explained, end - (1 - LOOKUP_SHARE) * TURN_SECONDS)
        statements = {**self._of_policies(), **statements_of(map(self._waiting_pod, explained))}
        self._written = {regarding: last for regarding, last in self._written.items() if regarding in statements}
        due = writes(statements, self._written, self._clock())
        left = len(due)
        self._metrics.events_waiting.set(left)
        for write in due:
            if not await self._limited.wait_for_turn(end):
                return
            await self._try_write(write)
            left -= 1
            self._metrics.events_waiting.set(left)

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

    async def _find_workloads(self, explained: list[ExplainedPod], end: float) -> None:
        """Look up the workload of each controller that is not known yet, those of the longest waiting pods first.

        What is not looked up by the second `end` is at a later turn.
        """
        controllers = dict.fromkeys(entry.pod.controller for entry in explained if entry.pod.controller is not None)
        self._workloads = {known: top for known, top in self._workloads.items() if known in controllers}
        for controller in controllers:
            if controller in self._workloads:
                continue
            if not await self._limited.wait_for_turn(end):
                return
            await self._find_workload(controller)

    async def _find_workload(self, controller: ObjectReference) -> None:
        """Look up one workload; where its controllers are malformed, there is none."""
        try:
            self._workloads[controller] = await workload_of(controller, self._read)
        except BadInput:
            self._workloads[controller] = None

    async def _read(self, path: str) -> Object | None:
        """Read an object; None if it does not exist, or may not be read."""
        try:
            return await self._limited.read(path)
        except ApiError:
            return None

    def _waiting_pod(self, entry: ExplainedPod) -> WaitingPod:
        controller = entry.pod.controller
        workload = None if controller is None else self._workloads.get(controller)
        since = self._first_seen[entry.pod.reference.uid]
        pending = self._state.pending_pods.get(entry.pod.reference.uid)
        unseen = pending.unseen_by if pending is not None and self._clock() - since >= UNSEEN_SECONDS else ""
        return WaitingPod(entry.pod.reference, workload, told_of_scheduler(entry.cause, unseen), since)

    async def _try_write(self, write: EventWrite) -> None:
        """Write one Event and note it; one that the API server refuses is tried again after a while."""
        last = self._written.get(write.regarding)
        now = self._clock()
        try:
            count = await self._write(write, last)
        except ApiError as error:
            self._metrics.events.labels("refused").inc()
            event("Event not written", logging.WARNING, regarding=write.regarding.name, error=str(error))
            self._written[write.regarding] = WrittenEvent(write.statement, now, now, refused=True)
            return
        self._metrics.events.labels("created" if write.count == 1 else "renewed").inc()
        self._written[write.regarding] = after(write, last, now, count)

    async def _write(self, write: EventWrite, last: WrittenEvent | None) -> int:
        """Create an Event, or renew it; return the count of its series.

        Raises ApiError.
        """
        path, timestamp = events_path(write.regarding.namespace), wall_clock().strftime(TIMESTAMP)
        if write.count == 1:
            try:
                await self._limited.create(path, event_document(write, self._instance, timestamp))
                return 1
            except ApiError as error:
                if error.status != CONFLICT:
                    raise
                place = f"{path}/{event_name(write)}"
        count = write.count if last is not None and write.count > 1 else await self._stored_count(place) + 1
        await self._limited.merge(place, series_patch(count, timestamp))
        return count

    async def _stored_count(self, place: str) -> int:
        """Return the count of an Event that another replica wrote: an empty patch reads it without the right to read.

        Raises ApiError.
        """
        series = (await self._limited.merge(place, {})).get("series") or {}
        return int(series.get("count") or 1)
