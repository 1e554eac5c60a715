# SPDX-License-Identifier: Apache-2.0
"""Why the claims of a pod get no devices on a node: one cause for each node, in words that name no node."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from app.dra.alike_nodes import AlikeNodes, reads_of, requests_of
from app.dra.allocator import NodeAllocation, Outcome, allocate
from app.dra.cluster_devices import AllocatedDevices, ClusterDevices
from app.dra.pod_claims import PodClaims
from app.dra.selection import ClaimError, NotJudged, Selection
from app.dra.stages import DeviceStage, NodeDevices, StageKind, bottleneck, stages_of
from app.dra.words import plain_error, unmet
from app.kube.devices import Device
from app.kube.resource_claims import ALL, DeviceRequest, ResourceClaim
from app.nodes.model import Node
from app.values.reasons import counted


@dataclass(frozen=True, slots=True)
class ClaimRefusal:
    """Why a node does not serve the claims of a pod.

    `message` is what kube-scheduler says of the node, `text` says why. `passing` tells whether it may pass without a
    change of the pod's claims or of the devices: what is allocated is released some time. `error` is true where
    kube-scheduler gives up on the pod whatever other nodes have.
    """

    message: str
    text: str
    passing: bool = False
    error: bool = False


CANNOT_ALLOCATE = "cannot allocate all claims"
NOT_AVAILABLE = "resourceclaim not available on the node"
"""What kube-scheduler says of a node (plugins/dynamicresources/dynamicresources.go Filter)."""


class ClaimJudge:
    """Judges nodes for the claims of one pod, each node once.

    `not_judged` says why a node could not be judged; such nodes count as nodes that fit, as before.
    """

    def __init__(self, pod_claims: PodClaims, cluster: ClusterDevices, selection: Selection) -> None:
        self.pod_claims, self.cluster, self.selection = pod_claims, cluster, selection
        self.not_judged = ""
        self._known: dict[str, ClaimRefusal | None] = {}
        self.alike = AlikeNodes(cluster, reads_of(pod_claims.to_allocate, cluster))
        self._of_alike: dict[Hashable, ClaimRefusal | None] = {}

    def refusal(self, node: Node) -> ClaimRefusal | None:
        """Say why a node does not serve the claims; None if it does, or if that is not judged."""
        if node.name not in self._known:
            self._known[node.name] = self._refusal(node)
        return self._known[node.name]

    def _refusal(self, node: Node) -> ClaimRefusal | None:
        if self.pod_claims.in_the_way:
            return ClaimRefusal(self.pod_claims.in_the_way, self.pod_claims.in_the_way, error=True)
        if self.pod_claims.unknown or not self.cluster.classes:
            self.not_judged = f"{(*self.pod_claims.unknown, 'no DeviceClass')[0]} is not known"
            return None
        for claim in self.pod_claims.allocated:
            nodes = claim.allocation.nodes if claim.allocation else None
            if nodes is not None and not nodes.selects(node):
                return ClaimRefusal(NOT_AVAILABLE, f"claim {claim.key} has its devices on another node")
        return self._as_alike(self.pod_claims.on(node), node)

    def _as_alike(self, claims: tuple[ResourceClaim, ...], node: Node) -> ClaimRefusal | None:
        """Judge a node, or return what was said of one that is alike."""
        key = self.alike.key(node)
        asked = key, requests_of(claims)
        if key is None or asked not in self._of_alike:
            self._of_alike[asked] = self._of_verdict(allocate(claims, node, self.cluster, self.selection), node)
        return self._of_alike[asked]

    def _of_verdict(self, verdict: NodeAllocation, node: Node) -> ClaimRefusal | None:
        if verdict.outcome is Outcome.ERROR:
            text = plain_error(verdict.error) if verdict.error else verdict.text
            return ClaimRefusal(text, text, error=True)
        if verdict.outcome is Outcome.NOT_JUDGED:
            self.not_judged = verdict.text
        if verdict.outcome is not Outcome.REFUSED:
            return None
        try:
            return self._explained(self.pod_claims.on(node), node)
        except ClaimError as error:
            return ClaimRefusal(CANNOT_ALLOCATE, plain_error(error))
        except NotJudged:
            return ClaimRefusal(CANNOT_ALLOCATE, "the devices of the node do not serve all requests")

    def _explained(self, claims: Sequence[ResourceClaim], node: Node) -> ClaimRefusal:
        """Find the cause; of devices in use only where the claims would get devices if nothing else had any."""
        refusal = explain_refusal(claims, NodeDevices(node, self.cluster, self.selection))
        if not refusal.passing or not is_joint(claims):
            return refusal
        empty = replace(self.cluster, allocated=AllocatedDevices())
        if allocate(claims, node, empty, self.selection).outcome is not Outcome.REFUSED:
            return refusal
        return explain_refusal(claims, NodeDevices(node, empty, self.selection))


def explain_refusal(claims: Sequence[ResourceClaim], devices: NodeDevices) -> ClaimRefusal:
    """Find the request that keeps a node from serving claims, and the stage at which too few devices are left.

    Of alternatives the one that gets furthest counts. Raises ClaimError, NotJudged.
    """
    for claim in claims:
        for choices in claim.spec.requests:
            stuck = [_bottleneck(request, devices) for request in choices]
            if all(stage is not None for _, stage in stuck):
                request, stage = max(stuck, key=lambda entry: entry[1] or 0)
                return _refusal_at(request, stage or 0, devices)
    return ClaimRefusal(
        CANNOT_ALLOCATE,
        together(claims, list(devices.devices)),
        passing=not any(claim.spec.constraints for claim in claims),
    )


def is_joint(claims: Sequence[ResourceClaim]) -> bool:
    """Tell whether requests depend on each other: only then can each be served by itself and all not."""
    requests = sum(len(claim.spec.requests) for claim in claims)
    return requests > 1 or any(claim.spec.constraints for claim in claims)


def _bottleneck(request: DeviceRequest, devices: NodeDevices) -> tuple[DeviceRequest, int | None]:
    return request, bottleneck(request, [stop for _, stop in devices.stops(request)])


def together(claims: Sequence[ResourceClaim], devices: Sequence[Device] = ()) -> str:
    """Say that each request could be served, and all together cannot."""
    constraints = [constraint for claim in claims for constraint in claim.spec.constraints]
    for constraint in constraints:
        if not any(constraint.attribute in device.attributes for device in devices):
            name = "distinctAttribute" if constraint.distinct else "matchAttribute"
            return f"{name} wants the attribute {constraint.attribute}, which no device of the node has"
    attributes = {
        f"{'another' if constraint.distinct else 'the same'} {constraint.attribute.partition('/')[2]}": None
        for constraint in constraints
    }
    if attributes:
        return f"no set of devices serves all requests with {' and '.join(attributes)} for all of them"
    return "each request could be served by itself, but there are too few devices for all together"


def _refusal_at(request: DeviceRequest, index: int, devices: NodeDevices) -> ClaimRefusal:
    if any(pool.incomplete for pool in devices.pools) and not any(devices.devices):
        return ClaimRefusal(CANNOT_ALLOCATE, "the driver is still publishing its devices", passing=True)
    if any(pool.invalid for pool in devices.pools) and not any(devices.devices):
        return ClaimRefusal(
            "invalid resource pools were encountered", "the driver publishes devices that are not valid"
        )
    stage = stages_of(request)[index]
    stopped = [device for device, stop in devices.stops(request) if stop == index]
    passing = stage.kind in (StageKind.ALLOCATED, StageKind.CAPACITY, StageKind.COUNTERS)
    return ClaimRefusal(CANNOT_ALLOCATE, f"request {request.name}: {lack(request, stage, stopped)}", passing)


def lack(request: DeviceRequest, stage: DeviceStage, stopped: Sequence[Device]) -> str:
    """Say in words what too few devices are, for one request at one stage that stopped some devices."""
    wanted = (
        "all devices" if request.mode == ALL else "a device" if request.count == 1 else counted(request.count, "device")
    )
    too_few = "which the node does not have" if request.count == 1 else "more than the node has"
    words = {
        StageKind.CLASS: f"wants {wanted} of DeviceClass {request.device_class}, {too_few}",
        StageKind.SELECTOR: f"wants {wanted} with {unmet(stage.selector, stopped)}",
        StageKind.NODE: f"wants {wanted}, and those selected are for other nodes",
        StageKind.TAINT: f"wants {wanted}, and those selected are tainted",
        StageKind.ALLOCATED: f"wants {wanted}, and too few of those selected are free",
        StageKind.CAPACITY: f"wants {wanted}, and those selected have too little capacity left",
        StageKind.COUNTERS: f"wants {wanted}, and too little is left of the GPUs that those selected are parts of",
    }
    return words[stage.kind]
