# SPDX-License-Identifier: Apache-2.0
"""Finds misplaced pods: GPU pods that run without our admission, or on a node that we would refuse.

The watch keeps only the GPU usage of a pod, so running pods are read again: one node at a time, four per second, from
the API server's cache. No request waits for it, and the pods of a node are judged in slices of some 2 ms.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from app.admission.reviewed_pod import has_our_scheduler, is_exempt
from app.cluster.apiserver import ApiServer
from app.cluster.listing import ListPage
from app.cluster.reflector import Clock
from app.kube.api_kinds import API_KINDS
from app.kube.pods import DECISION, Pod, read_pod
from app.kube.records import KubeObject
from app.nodes.model import Node
from app.placement.engine import class_for_demand, judge_class
from app.telemetry.logs import event
from app.telemetry.metrics import Metrics
from app.values.errors import ApiError, BadInput
from app.values.reasons import Duration
from app.world.state import State
from app.world.world import World

NODE_SECONDS = 0.25
"""Between two nodes: 5,000 nodes with GPU pods take 21 minutes, and some 20 ms of the API server's CPU a second (a
guess)."""
ROUND_SECONDS = 10.0
"""Between two rounds, and after a failed request."""
SLICE_PODS = 3
"""Pods judged between two turns of the event loop; one takes some 0.5 ms if its ruling is not cached."""
SLICE_NODES = 500
"""Nodes looked at between two turns of the event loop; one without GPU pods takes some 0.5 µs."""
KINDS = ("unadmitted", "misplaced")
_POD = msgspec.json.Decoder(KubeObject)
_LIST = msgspec.json.Decoder(ListPage[msgspec.Raw])
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class SlippedPod:
    """Why a running pod is reported. `kind` is unadmitted or misplaced; `reason` is the refusal's code, empty for
    unadmitted."""

    kind: str
    reason: str = ""


def slip_of(pod: Pod, node: Node, world: World, shadow: bool = False) -> SlippedPod | None:
    """Return why a running GPU pod is reported; None if it is right. One that is both is unadmitted, the cause.

    In `shadow` mode gpu-usher admits nothing, so that no pod has a decision annotation.
    """
    if is_exempt(pod.namespace, world.state.namespaces.labels(pod.namespace), world.knowledge):
        return None
    ruling = world.ruling(pod)
    admitted_by_us = DECISION in pod.annotations
    if not shadow and not admitted_by_us and has_our_scheduler(pod, ruling, world.policies):
        return SlippedPod("unadmitted")
    demand = ruling.demand
    refusal = judge_class(demand, class_for_demand(demand, node)) if demand.requests_gpus else None
    if refusal is None or refusal.code.duration is not Duration.LASTING:
        return None  # nobody is misplaced for a driver upgrade, an unhealthy GPU, or labels missing for a moment
    return SlippedPod("misplaced", refusal.code.name)


class SlippedPods:
    """Checks the running GPU pods of one node after another. `world` gives None until the state is synced."""

    def __init__(
        self,
        server: ApiServer,
        state: State,
        world: Callable[[], World | None],
        metrics: Metrics,
        shadow: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._server, self._state, self._world, self._shadow = server, state, world, shadow
        self._metrics = metrics
        self._clock = clock or Clock()
        self._slipped_by_node: dict[str, Mapping[str, SlippedPod]] = {}
        self._counts: Counter[str] = Counter()

    async def run(self) -> None:
        """Check all nodes, round after round, until cancelled."""
        while True:
            if self._world() is not None:
                await self.check_all_nodes()
            await self._clock.sleep(ROUND_SECONDS)

    async def check_all_nodes(self) -> None:
        """Check every node with GPU pods; the round ends when the API server does not answer."""
        state = self._state
        for name in list(self._slipped_by_node):
            if name not in state.nodes or not state.allocations.bound(name):
                self._note(name, {})
        self._measure()
        for index, name in enumerate(list(state.nodes), 1):
            if state.allocations.bound(name):
                try:
                    await self._check_node(name)
                except ApiError:
                    return  # the watches report it, and have a metric
                await self._clock.sleep(NODE_SECONDS)
            elif index % SLICE_NODES == 0:
                await asyncio.sleep(0)

    async def _check_node(self, name: str) -> None:
        query = {"fieldSelector": f"spec.nodeName={name}", "resourceVersion": "0"}
        body = await self._server.get(API_KINDS["Pod"].path(), query)
        uids = {usage.uid for usage in self._state.allocations.bound(name)}
        slipped: dict[str, SlippedPod] = {}
        for index, (uid, document) in enumerate(_pods(body, uids)):
            node = self._state.nodes.get(name)
            slipped_pod = self._slip_of(document, node) if node is not None else None
            if slipped_pod is not None:
                slipped[uid] = slipped_pod
                if self._slipped_by_node.get(name, {}).get(uid) != slipped_pod:
                    _log(document, slipped_pod)
            if index % SLICE_PODS == SLICE_PODS - 1:
                await asyncio.sleep(0)
        self._note(name, slipped)

    def _slip_of(self, document: Mapping[str, Any], node: Node) -> SlippedPod | None:
        try:
            world = self._world()
            return slip_of(read_pod(document), node, world, self._shadow) if world is not None else None
        except BadInput:
            return None  # the watch has counted it as unreadable

    def _note(self, name: str, slipped: Mapping[str, SlippedPod]) -> None:
        """Note the unadmitted and misplaced pods of a node by UID; the counts change by the difference, in a fleet of
        any size."""
        before = self._slipped_by_node.pop(name, {})
        if slipped:
            self._slipped_by_node[name] = slipped
        self._counts.subtract(slipped_pod.kind for slipped_pod in before.values())
        self._counts.update(slipped_pod.kind for slipped_pod in slipped.values())
        self._measure()

    def _measure(self) -> None:
        for kind in KINDS:
            self._metrics.slipped.labels(kind).set(self._counts[kind])


def _pods(body: bytes, uids: set[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Decode the pods with these UIDs in a list; of other pods only the UID.

    Raises ApiError if it is not a list.
    """
    try:
        for raw in _LIST.decode(body).items or ():
            uid = _POD.decode(raw).metadata.uid
            if uid in uids:
                yield uid, msgspec.json.decode(raw)
    except _DECODE_ERRORS as error:
        raise ApiError(None, f"no list of pods: {error}") from error


def _log(document: Mapping[str, Any], slipped_pod: SlippedPod) -> None:
    metadata = document["metadata"]
    name = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    event(
        "GPU pod unadmitted or misplaced",
        logging.WARNING,
        slipped=name,
        kind=slipped_pod.kind,
        reason=slipped_pod.reason,
    )
