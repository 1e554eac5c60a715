# SPDX-License-Identifier: Apache-2.0
"""Wakes pods that an extender refused, once a node fits them that did not before.

kube-scheduler tries such a pod again at nearly every event of the cluster, but often asks us before our own watch has
that event, and nothing tells it when we have (docs/reference/woken.md). So one replica makes an event of its own: it
annotates a CSIStorageCapacity that no storage class has. kube-scheduler watches the kind for the plugin VolumeBinding,
and each event of it wakes the pods that an extender refused (kubernetes pkg/scheduler/framework/types.go,
UnrollWildCardResource) and no others.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from app.api.pending_reasons import PendingReasons
from app.cluster.apiserver import MERGE, ApiServer
from app.cluster.core import Core
from app.kube.pods import read_pod
from app.policy.demand import Demand
from app.telemetry.logs import event
from app.telemetry.logs import now as wall_clock
from app.telemetry.metrics import Metrics
from app.values.errors import ApiError, BadInput

LOOK_SECONDS = 1.0
"""Interval at which it is looked whether nodes, or what pods demand, have changed."""
APART_SECONDS = 3.0
"""At least so long between two events of ours: each makes the scheduler try every pod that an extender refused."""
MOST_SHAPES = 32
"""Shapes of pods that are looked at, those of the longest waiting first: half of the verdicts that are kept."""
WOKEN = "gpu-usher.io/woken"
FittingNodes = Mapping[str, frozenset[str]]
"""The names of the nodes that fit, by the shape of a pod."""


def wake_path(namespace: str) -> str:
    """Return the path of the object whose change wakes the pods."""
    return f"/apis/storage.k8s.io/v1/namespaces/{namespace}/csistoragecapacities/gpu-usher-wake"


def newly_fitting(before: FittingNodes, now: FittingNodes) -> frozenset[str]:
    """Return the shapes that a node fits now which did not before.

    A shape that is new, and that a node fits, counts too: its refusal may have ended before the first look at it, as
    when another replica was to look.
    """
    return frozenset(shape for shape, nodes in now.items() if nodes - before.get(shape, frozenset()))


class Waker:
    """Looks for pods that fit again, while `reasons` are kept current by the writer of Events."""

    def __init__(
        self,
        server: ApiServer,
        namespace: str,
        core: Core,
        reasons: PendingReasons,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._path = wake_path(namespace)
        self._core = core
        self._reasons = reasons
        self._metrics = metrics
        self._clock = clock
        self._fitting: FittingNodes = {}
        self._due: frozenset[str] = frozenset()
        self._generation = -1
        self._demands: Mapping[str, Demand] = {}
        self._woken_at = float("-inf")

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            if self._reasons.kept_current:
                await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Wake the pods that fitted a new node at the last look and still wait, and note those that do now.

        The look between gives kube-scheduler and the other replicas time to see the same, so that most need no waking.
        """
        shapes = self._reasons.documents()
        still_waiting = self._due & shapes.keys()
        if still_waiting and self._clock() - self._woken_at >= APART_SECONDS:
            await self._wake()
            still_waiting = frozenset()
        self._due = still_waiting
        demands = dict(self._demands_of(dict(islice(shapes.items(), MOST_SHAPES))))
        if self._core.state.changes.generation == self._generation and demands == self._demands:
            return
        self._generation, self._demands = self._core.state.changes.generation, demands
        fitting = {shape: frozenset(self._core.verdicts.of(demand).feasible) for shape, demand in demands.items()}
        self._due |= newly_fitting(self._fitting, fitting)
        self._fitting = fitting

    def _demands_of(self, shapes: Mapping[str, Mapping[str, object]]) -> Iterator[tuple[str, Demand]]:
        """Yield what each shape demands, which policies, labels of namespaces and claims change without any node."""
        for shape, document in shapes.items():
            with contextlib.suppress(BadInput):
                yield shape, self._core.demand(read_pod(document))

    async def _wake(self) -> None:
        """Change the object that wakes pods; a failure is logged, and tried again at the next change."""
        self._woken_at = self._clock()
        change = {"metadata": {"annotations": {WOKEN: wall_clock().isoformat()}}}
        try:
            await self._server.patch(self._path, change, MERGE)
        except ApiError as error:
            event("refused pods not woken", logging.WARNING, error=str(error))
            return
        self._metrics.wakes.inc()
