# SPDX-License-Identifier: Apache-2.0
"""Slipped pods: GPU pods that run without what we would have given them, or where we would not let them (F98).

The watch keeps only what a pod holds, so that running pods are asked for again: one node at a time, four a second, from
the API server's own cache. No request waits for it, and a node's pods are judged in slices of some 2 ms.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from app.admission.review import has_our_scheduler, is_exempt
from app.cluster.apiserver import ApiServer
from app.cluster.listing import ListPage
from app.cluster.reflector import Clock
from app.cluster.state import State
from app.kube.partial_types import PartialNamedObject
from app.kube.pods import DECISION, Pod, read_pod
from app.nodes.model import Node
from app.placement.engine import class_for_demand, judge_class
from app.policy.compiled import PolicySet
from app.policy.match import Ruling
from app.telemetry.logs import event
from app.telemetry.metrics import Metrics
from app.values.errors import ApiError, BadInput
from app.values.reasons import Code

NODE_SECONDS = 0.25
"""Between two nodes: 5,000 with GPU pods take 21 minutes, and the API server some 20 ms of CPU a second (a guess)."""
ROUND_SECONDS = 10.0
"""Between two rounds, and after the API server did not answer."""
SLICE_PODS = 3
"""Pods judged between two turns of the event loop; one costs some 0.5 ms where its ruling is not known yet."""
KINDS = ("unadmitted", "misplaced")
LASTING = frozenset(
    {
        Code.ProductNotAllowed,
        Code.DriverTooOld,
        Code.ImageRequirementUnmet,
        Code.ComputeCapabilityTooLow,
        Code.ComputeCapabilityUnsupported,
        Code.GPUMemoryTooSmall,
        Code.SharingNotAllowed,
        Code.MIGProfileAbsent,
        Code.InterconnectAbsent,
        Code.FormFactorNotAllowed,
        Code.NodeExcluded,
    }
)
"""Refusals that were true when the pod was placed. Of a node whose driver is upgraded, whose GPU fell ill or whose
labels are gone for a moment nobody is misplaced."""

_POD = msgspec.json.Decoder(PartialNamedObject)
_LIST = msgspec.json.Decoder(ListPage[msgspec.Raw])
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class PolicyView:
    """What is asked of the service: the ruling on a pod, the policies in force, whether the view is complete.

    `shadow`: nothing is admitted by us, so that no pod has our decision.
    """

    ruling: Callable[[Pod], Ruling]
    policies: Callable[[], PolicySet]
    ready: Callable[[], bool]
    shadow: bool = False


@dataclass(frozen=True, slots=True)
class SlippedPod:
    """A pod that slipped. `kind`: unadmitted or misplaced; `why`: the code of the refusal, empty for unadmitted."""

    kind: str
    why: str = ""


def slip_of(pod: Pod, node: Node, state: State, judges: PolicyView) -> SlippedPod | None:
    """Say how a running GPU pod slipped, if it did. A pod that is both is unadmitted: that is the cause."""
    labels = state.namespace_labels(pod.namespace)
    if is_exempt(pod.namespace, labels, state.knowledge):
        return None
    ruling = judges.ruling(pod)
    if not judges.shadow and DECISION not in pod.annotations and has_our_scheduler(pod, ruling, judges.policies()):
        return SlippedPod("unadmitted")
    demand = ruling.demand
    refusal = judge_class(demand, class_for_demand(demand, node)) if demand.requests_gpus else None
    if refusal is None or refusal.code not in LASTING:
        return None
    return SlippedPod("misplaced", refusal.code.name)


class SlippedPods:
    """Looks at the running GPU pods of one node after another, for ever."""

    def __init__(
        self, server: ApiServer, state: State, judges: PolicyView, metrics: Metrics, clock: Clock | None = None
    ) -> None:
        self._server = server
        self._state = state
        self._judges = judges
        self._metrics = metrics
        self._clock = clock or Clock()
        self._found: dict[str, Mapping[str, SlippedPod]] = {}

    async def run(self) -> None:
        """Look, round after round."""
        while True:
            if self._judges.ready():
                await self.look_around()
            await self._clock.sleep(ROUND_SECONDS)

    async def look_around(self) -> None:
        """Look at every node on which pods hold GPUs; the round ends where the API server does not answer."""
        nodes = [name for name in list(self._state.nodes) if self._state.holdings(name)]
        self._found = {name: self._found[name] for name in nodes if name in self._found}
        self._measure()
        for name in nodes:
            try:
                await self._look_at(name)
            except ApiError:
                return  # the watches say so, and have a metric
            await self._clock.sleep(NODE_SECONDS)

    async def _look_at(self, name: str) -> None:
        query = {"fieldSelector": f"spec.nodeName={name}", "resourceVersion": "0"}
        body = await self._server.get("/api/v1/pods", query)
        holding = {each.uid for each in self._state.holdings(name)}
        found: dict[str, SlippedPod] = {}
        for index, (uid, document) in enumerate(_pods(body, holding)):
            node = self._state.nodes.get(name)
            slipped_pod = self._judged(document, node) if node is not None else None
            if slipped_pod is not None:
                found[uid] = slipped_pod
                if self._found.get(name, {}).get(uid) != slipped_pod:
                    _say(document, slipped_pod)
            if index % SLICE_PODS == SLICE_PODS - 1:
                await asyncio.sleep(0)
        self._found[name] = found
        self._measure()

    def _judged(self, document: Mapping[str, Any], node: Node) -> SlippedPod | None:
        try:
            return slip_of(read_pod(document), node, self._state, self._judges)
        except BadInput:
            return None  # the watch has counted it as unreadable

    def _measure(self) -> None:
        for kind in KINDS:
            count = sum(slipped_pod.kind == kind for found in self._found.values() for slipped_pod in found.values())
            self._metrics.slipped.labels(kind).set(count)


def _pods(body: bytes, uids: set[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Decode the pods with these UIDs out of a list; of the others nothing but that.

    Raises ApiError where it is no list.
    """
    try:
        for raw in _LIST.decode(body).items or ():
            uid = _POD.decode(raw)["metadata"].get("uid", "")
            if uid in uids:
                yield uid, msgspec.json.decode(raw)
    except _DECODE_ERRORS as error:
        raise ApiError(None, f"no list of pods: {error}") from error


def _say(document: Mapping[str, Any], slipped_pod: SlippedPod) -> None:
    metadata = document["metadata"]
    name = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    event("pod slipped", logging.WARNING, slipped=name, kind=slipped_pod.kind, reason=slipped_pod.why)
