# SPDX-License-Identifier: Apache-2.0
"""A kubelet that will refuse a pod because its GPUs are not on one NUMA node, which kube-scheduler does not know.

The topology manager of a kubelet asks for all devices of a container, or with the scope `pod` of the pod, from one NUMA
node (policy single-numa-node), or from as few as would do if all were free (restricted); else the pod ends with
TopologyAffinityError (kubernetes pkg/kubelet/cm/topologymanager/policy_single_numa_node.go, policy_restricted.go,
cm/devicemanager/topology_hints.go). Devices of claims give it no hints. NodeResourceTopology objects
(topology.node.k8s.io) say the policy and what is free, as their exporter has seen it last. Without one, where a device
plugin and a DRA driver serve the same GPUs, the driver's `numaNode` says where these are, and the policy is a guess.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from app.dra.allocator import Outcome, allocate
from app.dra.cluster_devices import ClusterDevices
from app.dra.pod_judge import ClaimJudge
from app.kube.device_facts import NVIDIA_DRIVER, facts_of
from app.kube.pods import Pod
from app.kube.resource_claims import Constraint
from app.nodes.model import Node, Sharing
from app.values.errors import QuantityError
from app.values.json_members import objects_if_any
from app.values.quantity import parse_quantity
from app.values.reasons import counted

NUMA_NODE = "/numaNode"
"""How the attribute of a device ends that says its NUMA node: in the domain resource.kubernetes.io (KEP-6072), or in
the driver's own."""
SINGLE, RESTRICTED = "single-numa-node", "restricted"
_LEGACY = {
    f"{legacy}{level}": (policy, scope)
    for legacy, policy in (("SingleNUMANode", SINGLE), ("Restricted", RESTRICTED), ("BestEffort", "best-effort"))
    for level, scope in (("", "container"), ("ContainerLevel", "container"), ("PodLevel", "pod"))
} | {"None": ("none", "container")}
"""The values of `topologyPolicies`, which `attributes` replace (noderesourcetopology-api v1alpha2 types.go)."""
Amounts = Mapping[str, Fraction]


@dataclass(frozen=True, slots=True)
class NUMAZones:
    """The device resources of a node by NUMA node: all that there are, and those that are free.

    `policy` and `scope` are those of its topology manager, as a kubelet's configuration names them; the policy is empty
    where it is not known.
    """

    policy: str
    scope: str
    total: tuple[Amounts, ...]
    free: tuple[Amounts, ...]


def read_topology(document: Mapping[str, Any]) -> NUMAZones:
    """Read a NodeResourceTopology of v1alpha2 or v1alpha1; what has another type in it is not read.

    Its definition checks little of what agents write. Raises QuantityError.
    """
    attributes = {str(one.get("name")): str(one.get("value")) for one in objects_if_any(document, "attributes")}
    policies = document.get("topologyPolicies")
    names = [name for name in policies if isinstance(name, str)] if isinstance(policies, list) else []
    legacy = next((_LEGACY[name] for name in names if name in _LEGACY), ("", ""))
    zones = [zone for zone in objects_if_any(document, "zones") if zone.get("type") == "Node"]
    return NUMAZones(
        attributes.get("topologyManagerPolicy", legacy[0]),
        attributes.get("topologyManagerScope", legacy[1] or "container"),
        tuple(_amounts(zone, "allocatable", "capacity") for zone in zones),
        tuple(_amounts(zone, "available", "allocatable", "capacity") for zone in zones),
    )


def _amounts(zone: Mapping[str, Any], *members: str) -> Amounts:
    """Read the amounts of a zone's device resources, by the first member that is there."""
    found: dict[str, Fraction] = {}
    for resource in objects_if_any(zone, "resources"):
        name, text = str(resource.get("name")), next((resource[key] for key in members if key in resource), "0")
        if "/" in name:
            found[name] = parse_quantity(str(text))
    return found


def published_zones(node: Node, devices: ClusterDevices, whole: str) -> NUMAZones:
    """Count the whole GPUs that the device plugin of a node gives by the `numaNode` that a DRA driver publishes.

    `whole` is the resource of these GPUs. Which of them are free is not known.
    """
    counts: dict[int, int] = {}
    if not node.node_class.allocatable(whole) or node.node_class.unit(whole) is not Sharing.Exclusive:
        return NUMAZones("", "container", (), ())
    for device in (device for pool in devices.pools.pools(node) for device in pool.devices):
        zone = next((value for key, value in device.attributes.items() if key.endswith(NUMA_NODE)), None)
        facts = facts_of(device) if device.driver == NVIDIA_DRIVER else None
        if facts is not None and not facts.mig_profile and isinstance(zone, int):
            counts[zone] = counts.get(zone, 0) + 1
    total = tuple({whole: Fraction(number)} for _, number in sorted(counts.items()))
    return NUMAZones("", "container", total, total)


def topology_refusal(pod: Pod, zones: NUMAZones) -> str:
    """Say which devices the kubelet cannot give a container as its policy wants; "" where it can.

    A policy that is not known is taken for single-numa-node.
    """
    if zones.policy not in ("", SINGLE, RESTRICTED) or len(zones.total) < 2:
        return ""
    free = [dict(zone) for zone in zones.free]
    for who, wanted, is_kept in _consumers(pod, zones):
        lacking = next(
            (name for name, amount in wanted.items() if _spread(free, name, amount) > _most(zones, name, amount)), ""
        )
        places = [zone for zone in free if all(zone.get(name, 0) >= amount for name, amount in wanted.items())]
        if lacking or (zones.policy != RESTRICTED and wanted and not places):
            name = lacking or next(iter(wanted))
            most = max(zone.get(name, Fraction(0)) for zone in free)
            return f"{who} wants {wanted[name]} {name}, and the most that are free on one NUMA node are {most}"
        for name, amount in wanted.items() if is_kept else ():
            _take(places[:1] or sorted(free, key=lambda zone: -zone.get(name, Fraction(0))), name, amount)
    return ""


def _consumers(pod: Pod, zones: NUMAZones) -> Iterator[tuple[str, dict[str, Fraction], bool]]:
    """List who asks for devices of the zones at once, how many, and whether they are kept when the next one asks."""
    names = sorted({name for zone in zones.total for name in zone})
    if zones.scope == "pod":
        yield "the pod", {name: amount for name in names if (amount := pod.amount(name))}, True
        return
    for container in pod.containers:
        wanted = {name: amount for name in names if (amount := container.requested(name))}
        yield f"container {container.name}", wanted, not container.passing


def _most(zones: NUMAZones, name: str, amount: Fraction) -> int:
    """Give the number of NUMA nodes over which the policy lets an amount of a resource spread."""
    return min(_spread(zones.total, name, amount), len(zones.total)) if zones.policy == RESTRICTED else 1


def _spread(zones: Sequence[Amounts], name: str, amount: Fraction) -> int:
    """Give the least number of NUMA nodes that together have an amount, one more than there are if all have too few."""
    left = amount
    for number, most in enumerate(sorted((zone.get(name, Fraction(0)) for zone in zones), reverse=True)):
        if left <= 0:
            return max(1, number)
        left -= most
    return len(zones) if left <= 0 else len(zones) + 1


def _take(zones: Sequence[dict[str, Fraction]], name: str, amount: Fraction) -> None:
    for zone in zones:
        taken = min(amount, zone.get(name, Fraction(0)))
        zone[name] = zone.get(name, Fraction(0)) - taken
        amount -= taken


def claim_notes(judge: ClaimJudge | None, fitting: Sequence[Node]) -> Iterator[str]:
    """Say that claims get devices of several NUMA nodes, on the first node that fits, and what keeps them on one.

    No kubelet refuses that.
    """
    if judge is None or not fitting:
        return
    node = fitting[0]
    claims = judge.pod_claims.on(node)
    devices = [one.device for one in allocate(claims, node, judge.cluster, judge.selection).devices]
    attributes = [entry for one in devices for entry in one.attributes.items() if entry[0].endswith(NUMA_NODE)]
    places = {(name, str(value)) for name, value in attributes}
    names, zones = {name for name, _ in places}, sorted(zone for _, zone in places)
    if len(names) != 1 or len(zones) < 2:
        return
    constraint = Constraint(names.pop())
    kept = [replace(one, spec=replace(one.spec, constraints=(*one.spec.constraints, constraint))) for one in claims]
    helps = allocate(kept, node, judge.cluster, judge.selection).outcome is Outcome.ALLOCATED
    remedy = f"; matchAttribute: {constraint.attribute} keeps those of a claim on one" if helps else ""
    yield f"on {node.name} the claims get devices of the NUMA nodes {' and '.join(zones)}{remedy}"


def topology_notes(
    pod: Pod,
    fitting: Sequence[Node],
    topologies: Mapping[str, Mapping[str, Any]],
    devices: ClusterDevices,
    whole: str,
) -> Iterator[str]:
    """Say on which of the nodes that fit the kubelet will refuse a pod, and why, or that this is a guess."""
    known: dict[tuple[str, str], list[str]] = {}
    unread: dict[str, str] = {}
    for node in fitting:
        document = topologies.get(node.name)
        try:
            zones = published_zones(node, devices, whole) if document is None else read_topology(document)
        except QuantityError as error:
            unread.setdefault(node.name, str(error))
            continue
        if refusal := topology_refusal(pod, zones):
            known.setdefault((zones.policy, refusal), []).append(node.name)
    if unread:
        name = next(iter(unread))
        yield f"NodeResourceTopology cannot be read of {counted(len(unread), 'node')}, such as {name}: {unread[name]}"
    for (policy, refusal), names in known.items():
        where = (
            f"{names[0]}" if len(names) == 1 else f"{len(names)} of {len(fitting)} nodes that fit, such as {names[0]}"
        )
        if policy:
            yield f"TopologyAffinityError is to be expected on {where}: its kubelet has the policy {policy}; {refusal}"
        else:
            yield (
                f"a guess, as no NodeResourceTopology says the kubelet's policy: with {SINGLE} TopologyAffinityError"
                f" is to be expected on {where}; {refusal}"
            )
