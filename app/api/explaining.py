# SPDX-License-Identifier: Apache-2.0
"""POST /explain: one explanation at a time, in slices short enough for scheduling not to notice."""

import asyncio
import time
from collections.abc import Generator, Mapping
from typing import Any

from app.api.backend import Backend
from app.errors import MalformedPod, WireError
from app.explain.pod import Explanation, explain, finish
from app.pods import member

SLICE_SECONDS = 0.001
"""Of work between two rests; half of what is allowed, since a step that is begun is finished."""
MOST_WAITING = 8
RETRY_SECONDS = 2
"""An explanation takes up to a second where a service follows 5,000 nodes (tests/bench)."""


class Busy(WireError):
    """Too many wait already: 429, with Retry-After."""

    def __init__(self) -> None:
        super().__init__(429, f"{MOST_WAITING} explanations are waited for already, ask again in {RETRY_SECONDS} s")


class Explainer:
    """Explains pods, one after the other."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def answer(self, body: Any, by_node: bool) -> Explanation:
        """Explain a Pod, or the pod of the cluster that a reference names.

        Raises WireError (400, 404, 429, 502), MalformedPod, QuantityError.
        """
        if self._waiting > MOST_WAITING:
            raise Busy
        self._waiting += 1
        try:
            async with self._turn:
                document, live = await self._pod(body)
                return await _in_slices(explain(document, self._backend.world(), live, by_node))
        finally:
            self._waiting -= 1

    async def _pod(self, body: Any) -> tuple[Mapping[str, Any], bool]:
        if not isinstance(body, dict) or body.get("kind", "Pod") != "Pod":
            raise WireError(400, 'body: wants a Pod as JSON, or {"namespace": …, "name": …} of one')
        if body.keys() - {"namespace", "name"} or "name" not in body:
            return body, False
        namespace, name = member(body, "namespace", str, "") or "default", member(body, "name", str, "")
        if not name:
            raise MalformedPod("name: got nothing, wants the name of a pod")
        return await self._backend.fetch_pod(namespace, name), True


async def _in_slices(steps: Generator[None, None, Explanation]) -> Explanation:
    rested = time.perf_counter()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Explanation = end.value
            return found
        if time.perf_counter() - rested > SLICE_SECONDS:
            await asyncio.sleep(0)
            rested = time.perf_counter()


def explain_pod(document: Mapping[str, Any], backend: Backend) -> Explanation:
    """Explain a Pod at once.

    Raises MalformedPod, QuantityError.
    """
    return finish(explain(document, backend.world()))
