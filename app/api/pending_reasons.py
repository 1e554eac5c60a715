# SPDX-License-Identifier: Apache-2.0
"""The reasons of pending pods, found in the background by `explain`, once for all pods of equal shape.

No request waits for it. It runs only while the web page is open or Events are written (app/events).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.api.explain_api import Explainer
from app.cluster.core import Core
from app.explain.pending_cause import PendingCause, cause_of, template_hash
from app.explain.policy_diff import label_keys
from app.kube.pending_pods import PendingPod
from app.kube.pods import ObjectReference, controller_of
from app.values.errors import BadInput, WireError

LOOKED_SECONDS = 60.0
"""Reasons are computed for this long after a request for them; an open page asks again (page.js)."""
STALE_SECONDS = 15.0
"""A reason is computed again after this long if nodes or policies have changed; one takes up to a second of CPU."""
CHECK_SECONDS = 0.5
"""Interval at which new pods and outdated reasons are looked for, so that a page shows a new pod's reason within about
a second. A guess, not measured."""
REST_SECONDS = 0.05
"""Rest after each pod: at most 20 GETs a second, and other explanations get their turn (a guess)."""
UNWATCHED_STALE_SECONDS = 60.0
"""The same while no page is open: an Event that is a minute late is still in time (a guess)."""
UNWATCHED_REST_SHARE = 9.0
"""Seconds of rest for each CPU second of the event loop during an explanation while no page is open: a tenth of one
core at most."""
MOST_PODS, MOST_SHAPES = 5_000, 200
"""Pods that are read, the longest pending first, and distinct shapes explained at a time; other pods have their own
page (a guess)."""
READ_AT_ONCE = 100
"""Pods read before the order is made anew, so that a new workload waits for 5 s rather than for thousands of pods."""
Stamp = tuple[int, str]


@dataclass(frozen=True, slots=True)
class ReadPod:
    """What is kept of a pending pod that was read: its shape, the pod as Events name it, and its controller.

    The shape is the hash of its template; pods of equal shape wait for the same cause.
    """

    shape: str
    reference: ObjectReference
    controller: ObjectReference | None


@dataclass(frozen=True, slots=True)
class ExplainedPod:
    """A pending pod whose cause is known."""

    pod: ReadPod
    cause: PendingCause


class PendingReasons:
    """The reasons by pending pod.

    With `kept_current` they are computed also while no page is open, with longer rests.
    """

    def __init__(self, core: Core, explainer: Explainer) -> None:
        self.explainer = explainer
        self._core = core
        self._read_pods: dict[PendingPod, ReadPod] = {}
        self._documents: dict[str, Mapping[str, Any]] = {}
        self._causes: dict[str, tuple[PendingCause, Stamp, float]] = {}
        self._label_keys: frozenset[str] = frozenset()
        self._requested_at = float("-inf")
        self.kept_current = False
        self._reading = False
        self.generation = 0

    def request(self) -> None:
        """Note that the reasons were asked for."""
        self._requested_at = time.monotonic()
        self._reading = self._reading or any(pod not in self._read_pods for pod in self._pending())

    @property
    def looking(self) -> bool:
        """Whether pods are still to be read, or reasons still to be computed."""
        return self._reading or not self._documents.keys() <= self._causes.keys()

    def reason_by_pod(self) -> Mapping[PendingPod, PendingCause]:
        """Return the reasons that are known by now."""
        causes = self._causes
        return {pod: causes[read.shape][0] for pod, read in self._read_pods.items() if read.shape in causes}

    def explained_pods(self) -> Iterator[ExplainedPod]:
        """List the pods whose cause is known by now, the longest pending first."""
        for pod in self._pending():
            read = self._read_pods.get(pod)
            if read is not None and read.shape in self._causes:
                yield ExplainedPod(read, self._causes[read.shape][0])

    def documents(self) -> Mapping[str, Mapping[str, Any]]:
        """Return a pod of each shape that waits, by the hash of the shape."""
        return self._documents

    async def run(self) -> None:
        """Read pods and compute reasons until cancelled; neither waits for the other."""
        await asyncio.gather(self._repeat(self.read_some), self._repeat(self.explain_due))

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            if self.kept_current or self._watched():
                await work()
            await asyncio.sleep(CHECK_SECONDS)

    async def read_some(self) -> None:
        """Read pods that were not read, READ_AT_ONCE of them."""
        pending = self._pending()
        self._forget(pending)
        unread = [pod for pod in reading_order(pending) if self._unread(pod)]
        self._reading = bool(unread)
        for pod in unread[:READ_AT_ONCE]:
            await self._read(pod)
            await asyncio.sleep(REST_SECONDS)
        self._reading = len(unread) > READ_AT_ONCE

    async def explain_due(self) -> None:
        """Compute reasons that are unknown, and then those that are outdated."""
        due = [shape for shape in self._documents if self._due(shape)]
        for shape in sorted(due, key=self._causes.__contains__):
            if shape in self._documents:
                began = time.thread_time()
                await self._explain(shape)
                spent = time.thread_time() - began
                await asyncio.sleep(REST_SECONDS if self._watched() else REST_SECONDS + UNWATCHED_REST_SHARE * spent)

    def _watched(self) -> bool:
        """Tell whether the reasons were asked for lately."""
        return time.monotonic() - self._requested_at < LOOKED_SECONDS

    def _pending(self) -> list[PendingPod]:
        pods = sorted(self._core.state.waiting_pods(), key=lambda pod: (pod.created or "~", pod.key))
        return pods[:MOST_PODS]

    def _forget(self, pending: list[PendingPod]) -> None:
        """Drop the data of pods that are no longer pending; of all pods once policies match on other labels."""
        keys = label_keys(self._core.policies)
        remaining = set(pending) if keys == self._label_keys else set()
        self._label_keys = keys
        self._read_pods = {pod: read for pod, read in self._read_pods.items() if pod in remaining}
        shapes = {read.shape for read in self._read_pods.values()}
        self._documents = {shape: document for shape, document in self._documents.items() if shape in shapes}
        self._causes = {shape: entry for shape, entry in self._causes.items() if shape in shapes}

    def _unread(self, pod: PendingPod) -> bool:
        """Tell whether a pod is to be read: for the first time, or again, now that there is room for its shape."""
        read = self._read_pods.get(pod)
        return read is None or (read.shape not in self._documents and len(self._documents) < MOST_SHAPES)

    async def _read(self, pod: PendingPod) -> None:
        try:
            document = await self._core.fetch_pod(pod.namespace, pod.name)
        except WireError:
            return  # deleted, or read again at the next check
        read = ReadPod(template_hash(document, self._label_keys), _reference(pod, document), controller_of(document))
        self._read_pods[pod] = read
        self.generation += read.shape in self._causes
        if len(self._documents) < MOST_SHAPES:
            self._documents.setdefault(read.shape, document)

    def _stamp(self) -> Stamp:
        return self._core.state.changes.generation, self._core.policies.hash

    def _due(self, shape: str) -> bool:
        entry = self._causes.get(shape)
        if entry is None:
            return shape in self._documents
        seconds = time.monotonic() - entry[2]
        if not entry[0].reason:
            return seconds > STALE_SECONDS  # what keeps a pod that fits is not of nodes, such as its claim's devices
        return entry[1] != self._stamp() and seconds > (STALE_SECONDS if self._watched() else UNWATCHED_STALE_SECONDS)

    async def _explain(self, shape: str) -> None:
        stamp = self._stamp()
        try:
            cause = cause_of(await self.explainer.of(self._documents[shape], True))
        except WireError:
            return  # busy with other explanations
        except BadInput as error:
            cause = PendingCause("InvalidPod", str(error)[:200], 0, 0, "")
        self._causes[shape] = cause, stamp, time.monotonic()
        self.generation += 1


def reading_order(pending: Iterable[PendingPod]) -> list[PendingPod]:
    """Put one pod of each controller before the others, so that the cause of every workload is known early."""
    first: dict[str, PendingPod] = {}
    others: list[PendingPod] = []
    for pod in pending:
        if first.setdefault(pod.controller_uid or pod.key, pod) is not pod:
            others.append(pod)
    return [*first.values(), *others]


def _reference(pod: PendingPod, document: Mapping[str, Any]) -> ObjectReference:
    """Return the pod as Events name it; the UID is empty in a snapshot without one."""
    return ObjectReference("v1", "Pod", pod.namespace, pod.name, str((document.get("metadata") or {}).get("uid") or ""))
