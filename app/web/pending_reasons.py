# SPDX-License-Identifier: Apache-2.0
"""Why each waiting pod waits: worked out in the background, as explain does, once for all pods that ask the same.

Nobody waits for it, and it is only done while somebody looks: a page that is not opened costs nothing.
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
"""Causes are worked out so long after somebody asked for them; an open page asks again (page.js)."""
STALE_SECONDS = 15.0
"""A cause is worked out again after so long, where nodes or policies changed; one takes up to a second of CPU."""
TURN_SECONDS = 0.5
REST_SECONDS = 0.05
"""After each pod: 20 GETs a second at most, and other explanations have their turn (a guess)."""
MOST_PODS, MOST_SHAPES = 2_000, 200
"""Pods looked at, those that wait longest first, and different ones explained; others have their own page (guess)."""
OWN = ("name", "generateName", "uid", "creationTimestamp", "resourceVersion", "managedFields", "ownerReferences")
"""What equal pods of one template differ in, and no judgement rests on."""

Stamp = tuple[int, str]


class PendingReasons:
    """Causes by waiting pod. `looking`: work is left to do."""

    def __init__(self, backend: Backend, explainer: Explainer) -> None:
        self._backend = backend
        self._explainer = explainer
        self._shapes: dict[PendingPod, str] = {}
        self._documents: dict[str, Mapping[str, Any]] = {}
        self._found: dict[str, tuple[PendingCause, Stamp, float]] = {}
        self._asked_at = float("-inf")
        self.looking = False
        self.generation = 0

    def wanted(self) -> None:
        """Note that somebody looks."""
        self._asked_at = time.monotonic()
        self.looking = self.looking or any(each not in self._shapes for each in self._waiting())

    def known(self) -> Mapping[PendingPod, PendingCause]:
        """Give what is known by now."""
        return {each: self._found[shape][0] for each, shape in self._shapes.items() if shape in self._found}

    async def run(self) -> None:
        """Work, for ever."""
        while True:
            if time.monotonic() - self._asked_at < LOOKED_SECONDS:
                await self.look()
            await asyncio.sleep(TURN_SECONDS)

    async def look(self) -> None:
        """Look at every pod once, and explain what is not known, or not true any more."""
        waiting = self._waiting()
        self._forget(waiting)
        for each in waiting:
            if each not in self._shapes:
                self.looking = True
                await self._read(each)
                await asyncio.sleep(REST_SECONDS)
            shape = self._shapes.get(each)
            if shape is not None and self._due(shape):
                await self._explain(shape)
                await asyncio.sleep(REST_SECONDS)
        self.looking = False

    def _waiting(self) -> list[PendingPod]:
        found = sorted(self._backend.state.pending_pods.values(), key=lambda each: (each.created or "~", each.key))
        return found[:MOST_PODS]

    def _forget(self, waiting: list[PendingPod]) -> None:
        """Let go what is of no waiting pod any more."""
        kept = set(waiting)
        self._shapes = {each: shape for each, shape in self._shapes.items() if each in kept}
        shapes = set(self._shapes.values())
        self._documents = {shape: each for shape, each in self._documents.items() if shape in shapes}
        self._found = {shape: each for shape, each in self._found.items() if shape in shapes}

    async def _read(self, pod: PendingPod) -> None:
        try:
            document = await self._backend.fetch_pod(pod.namespace, pod.name)
        except WireError:
            return  # gone, or to be asked for again at the next look
        shape = _shape(document)
        self._shapes[pod] = shape
        if len(self._documents) < MOST_SHAPES:
            self._documents.setdefault(shape, document)

    def _stamp(self) -> Stamp:
        return self._backend.generation, self._backend.policies.hash

    def _due(self, shape: str) -> bool:
        known = self._found.get(shape)
        if known is None:
            return shape in self._documents
        return known[1] != self._stamp() and time.monotonic() - known[2] > STALE_SECONDS

    async def _explain(self, shape: str) -> None:
        stamp = self._stamp()
        try:
            cause = cause_of(await self._explainer.of(self._documents[shape], True))
        except WireError:
            return  # busy: others wait for explanations of their own
        except BadInput as error:
            cause = PendingCause("InvalidPod", str(error)[:200], 0, 0, "")
        self._found[shape] = cause, stamp, time.monotonic()
        self.generation += 1


def _shape(document: Mapping[str, Any]) -> str:
    """Write what a pod's judgement rests on; equal for the pods of one template."""
    metadata = {key: each for key, each in (document.get("metadata") or {}).items() if key not in OWN}
    spec = {key: each for key, each in (document.get("spec") or {}).items() if key != "hostname"}
    return json.dumps((metadata, spec), sort_keys=True, default=str)
