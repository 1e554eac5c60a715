# SPDX-License-Identifier: Apache-2.0
"""POST /explain: one explanation at a time, in slices so short that scheduling is not delayed."""

from collections.abc import Mapping
from typing import Any

from app.api.backend import Backend
from app.api.time_slices import JOB_SECONDS, JobQueue, in_slices
from app.explain.explanation import Explanation
from app.explain.pending_pod import explain
from app.values.errors import MalformedPod, WireError
from app.values.json_members import member


class Explainer:
    """Explains pods, one at a time."""

    def __init__(self, backend: Backend, seconds: float = JOB_SECONDS) -> None:
        self._backend = backend
        self._turns = JobQueue("explanations", seconds)

    async def answer(self, body: Any, by_node: bool) -> Explanation:
        """Explain a Pod in the body, or the pod of the cluster that the body names.

        Raises WireError (400, 404, 429, 502, 503), MalformedPod, QuantityError.
        """
        async with self._turns.turn():
            document, live = await self._pod(body)
            return await in_slices(explain(document, self._backend.cluster_snapshot(), live, by_node))

    async def of(self, document: Mapping[str, Any], live: bool) -> Explanation:
        """Explain a pod as it is in the cluster (with `live`), or as it would be.

        Raises WireError (429, 503), MalformedPod, QuantityError.
        """
        async with self._turns.turn():
            return await in_slices(explain(document, self._backend.cluster_snapshot(), live))

    async def _pod(self, body: Any) -> tuple[Mapping[str, Any], bool]:
        if not isinstance(body, dict) or body.get("kind", "Pod") != "Pod":
            raise WireError(400, 'body: wants a Pod as JSON, or {"namespace": …, "name": …} of one')
        if body.keys() - {"namespace", "name"} or "name" not in body:
            return body, False
        namespace, name = member(body, "namespace", str, "") or "default", member(body, "name", str, "")
        if not name:
            raise MalformedPod("name: got nothing, wants the name of a pod")
        return await self._backend.fetch_pod(namespace, name), True
