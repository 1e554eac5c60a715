# SPDX-License-Identifier: Apache-2.0
"""Why the claims of a pod get no devices on a node: one cause for each node, in words that name no node.

A fleet has thousands of nodes and few kinds of devices, so that one answer serves all nodes that are alike: those whose
devices, in order, are equal in all that the claims read of them, in their taints, and in being allocated.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from app.dra.allocator import NodeAllocation, Outcome, allocate
from app.dra.cel_facts import Read, read_fact
from app.dra.cel_syntax import SelectorError
from app.dra.cluster_devices import AllocatedDevices, ClusterDevices
from app.dra.pod_claims import PodClaims
from app.dra.selectors import ClaimError, NotJudged, Selection, compile_selector
from app.dra.stages import DeviceStage, NodeDevices, StageKind, bottleneck, stages_of
from app.dra.words import plain_error, unmet
from app.kube.devices import Device, DeviceTaint
from app.kube.resource_claims import ALL, DeviceRequest, ResourceClaim
from app.nodes.model import Node
from app.values.reasons import counted


def requests_of(claims: Iterable[ResourceClaim]) -> Hashable:
    """Return what tells claims of one pod apart: on a node with a device plugin it has fewer requests."""
    return tuple((claim.key, len(claim.spec.requests)) for claim in claims)


def reads_of(claims: Iterable[ResourceClaim], cluster: ClusterDevices) -> frozenset[Read] | None:
    """Return the facts that claims, and all classes, read of devices.

    It is None where that is not known, or where a claim asks for a share of a capacity.
    """
    of_classes = [_reads(selector) for one in cluster.classes.values() for selector in one.selectors]
    reads: set[Read] = {read for of_class in of_classes for read in of_class or ()}
    for claim in claims:
        reads |= {Read("attributes", constraint.attribute) for constraint in claim.spec.constraints}
        for request in (request for choices in claim.spec.requests for request in choices):
            device_class = cluster.classes.get(request.device_class)
            selectors = (*(device_class.selectors if device_class else ()), *request.selectors)
            of_request = list(map(_reads, selectors))
            if request.capacity is not None or None in of_request:
                return None
            reads.update(*(one for one in of_request if one is not None))
    return frozenset(reads)


def _reads(selector: str) -> frozenset[Read] | None:
    try:
        return compile_selector(selector).reads
    except SelectorError:
        return None


class AlikeNodes:
    """Keys of nodes, equal for nodes that are alike for claims which read nothing but `reads`.

    A node has no key where its devices share counters or capacity, or are not for all nodes of their slice.
    """

    def __init__(self, cluster: ClusterDevices, reads: frozenset[Read] | None) -> None:
        self._cluster = cluster
        self.reads = reads
        self._order = sorted(reads or ())
        self._numbers: dict[Hashable, int] = {}
        self._keys: dict[str, Hashable | None] = {}

    def key(self, node: Node) -> Hashable | None:
        """Return the key of a node; None if it has none."""
        if self.reads is None:
            return None
        if node.name not in self._keys:
            self._keys[node.name] = self._key(node)
        return self._keys[node.name]

    def _key(self, node: Node) -> Hashable | None:
        parts: list[Hashable] = []
        for pool in self._cluster.pools.pools(node):
            if pool.counter_sets or any(map(_is_special, pool.devices)):
                return None
            parts.append(("pool", pool.incomplete, bool(pool.invalid)))  # equal to no device, of which False is 0
            parts += [self._device(device) for device in pool.devices]
        return tuple(parts)

    def _device(self, device: Device) -> Hashable:
        facts = tuple([_hashable(read_fact(device, read)) for read in self._order])
        number = self._numbers.setdefault((device.driver, facts), len(self._numbers))
        taints = self._taints(device)
        allocated = device.id in self._cluster.allocated.alone
        return (number, allocated, taints) if taints else (number, allocated)

    def _taints(self, device: Device) -> tuple[DeviceTaint, ...]:
        rules = (rule.spec.taint for rule in self._cluster.taint_rules if rule.applies(device))
        return (*device.taints, *rules)


def _is_special(device: Device) -> bool:
    """Tell whether more than the facts of one device decide who gets it."""
    return bool(
        device.counters
        or device.allow_multiple_allocations
        or device.amounts.policies
        or device.names_nodes
        or device.binding_conditions
    )


def _hashable(value: object) -> Hashable:
    """Keep apart what Python takes for equal, as 1, True and a quantity of one."""
    return (type(value), value) if isinstance(value, bool | int | Fraction) else value


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
            stuck = [(one, bottleneck(one, [stop for _, stop in devices.stops(one)])) for one in choices]
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
