# SPDX-License-Identifier: Apache-2.0
"""The reasons of pending pods, found in the background by `explain`, once for all pods of equal shape.

No request waits for it. It runs only while somebody has the page open, so that an unused page costs nothing.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from app.api.backend import Backend
from app.api.explain_route import Explainer
from app.kube.pending_pods import PendingPod
from app.values.errors import BadInput, WireError
from app.web.views.pending_rows import PendingCause, cause_of

LOOKED_SECONDS = 60.0
"""Reasons are computed for this long after a request for them; an open page asks again (page.js)."""
STALE_SECONDS = 15.0
"""A reason is computed again after this long if nodes or policies have changed; one takes up to a second of CPU."""
CHECK_SECONDS = 0.5
"""Interval at which new pods and outdated reasons are looked for, so that a page shows a new pod's reason within about
a second. A guess, not measured."""
REST_SECONDS = 0.05
"""Rest after each pod: at most 20 GETs a second, and other explanations get their turn (a guess)."""
MOST_PODS, MOST_SHAPES = 2_000, 200
"""Pods that are read, the longest pending first, and distinct shapes explained; other pods have their own page (a
guess)."""
OWN = ("name", "generateName", "uid", "creationTimestamp", "resourceVersion", "managedFields", "ownerReferences")
"""Metadata in which pods of one template differ, and which no decision depends on."""

Stamp = tuple[int, str]


class PendingReasons:
    """The reasons by pending pod. `looking` is whether some are still to be computed."""

    def __init__(self, backend: Backend, explainer: Explainer) -> None:
        self._backend = backend
        self._explainer = explainer
        self._shapes: dict[PendingPod, str] = {}
        self._documents: dict[str, Mapping[str, Any]] = {}
        self._causes: dict[str, tuple[PendingCause, Stamp, float]] = {}
        self._requested_at = float("-inf")
        self.looking = False
        self.generation = 0

    def request(self) -> None:
        """Note that somebody has asked for the reasons."""
        self._requested_at = time.monotonic()
        self.looking = self.looking or any(pod not in self._shapes for pod in self._pending())

    def reason_by_pod(self) -> Mapping[PendingPod, PendingCause]:
        """Return the reasons that are known by now."""
        return {pod: self._causes[shape][0] for pod, shape in self._shapes.items() if shape in self._causes}

    async def run(self) -> None:
        """Compute reasons until cancelled."""
        while True:
            if time.monotonic() - self._requested_at < LOOKED_SECONDS:
                await self.check()
            await asyncio.sleep(CHECK_SECONDS)

    async def check(self) -> None:
        """Read every pod once, and compute reasons that are unknown or outdated."""
        pending = self._pending()
        self._forget(pending)
        for pod in pending:
            if pod not in self._shapes:
                self.looking = True
                await self._read(pod)
                await asyncio.sleep(REST_SECONDS)
            shape = self._shapes.get(pod)
            if shape is not None and self._due(shape):
                await self._explain(shape)
                await asyncio.sleep(REST_SECONDS)
        self.looking = False

    def _pending(self) -> list[PendingPod]:
        pods = sorted(self._backend.state.waiting_pods(), key=lambda pod: (pod.created or "~", pod.key))
        return pods[:MOST_PODS]

    def _forget(self, pending: list[PendingPod]) -> None:
        """Drop the data of pods that are no longer pending."""
        remaining = set(pending)
        self._shapes = {pod: shape for pod, shape in self._shapes.items() if pod in remaining}
        shapes = set(self._shapes.values())
        self._documents = {shape: document for shape, document in self._documents.items() if shape in shapes}
        self._causes = {shape: entry for shape, entry in self._causes.items() if shape in shapes}

    async def _read(self, pod: PendingPod) -> None:
        try:
            document = await self._backend.fetch_pod(pod.namespace, pod.name)
        except WireError:
            return  # deleted, or read again at the next check
        shape = _shape(document)
        self._shapes[pod] = shape
        if len(self._documents) < MOST_SHAPES:
            self._documents.setdefault(shape, document)

    def _stamp(self) -> Stamp:
        return self._backend.generation, self._backend.policies.hash

    def _due(self, shape: str) -> bool:
        entry = self._causes.get(shape)
        if entry is None:
            return shape in self._documents
        return entry[1] != self._stamp() and time.monotonic() - entry[2] > STALE_SECONDS

    async def _explain(self, shape: str) -> None:
        stamp = self._stamp()
        try:
            cause = cause_of(await self._explainer.of(self._documents[shape], True))
        except WireError:
            return  # busy with other explanations
        except BadInput as error:
            cause = PendingCause("InvalidPod", str(error)[:200], 0, 0, "")
        self._causes[shape] = cause, stamp, time.monotonic()
        self.generation += 1


def _shape(document: Mapping[str, Any]) -> str:
    """Return the part of a pod that decisions depend on, as text; equal for the pods of one template."""
    metadata = {key: value for key, value in (document.get("metadata") or {}).items() if key not in OWN}
    spec = {key: value for key, value in (document.get("spec") or {}).items() if key != "hostname"}
    return json.dumps((metadata, spec), sort_keys=True, default=str)
