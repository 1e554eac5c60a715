# SPDX-License-Identifier: Apache-2.0
"""What explain says of a kubelet that will refuse a pod because its GPUs are not on one NUMA node.

kube/numa_zones.py judges it by the NodeResourceTopology of the node. Without one, where a device plugin and a DRA
driver serve the same GPUs, the driver's `numaNode` says where these are, and the policy is a guess.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from app.dra.allocator import Outcome, allocate
from app.dra.cluster_devices import ClusterDevices
from app.dra.pod_judge import ClaimJudge
from app.kube.device_models import NO_GPU, NVIDIA_DRIVER
from app.kube.numa_zones import SINGLE, NUMAZones, device_amounts, topology_refusal
from app.kube.pods import Pod
from app.kube.resource_claims import Constraint
from app.nodes.model import Node, Sharing

NUMA_NODE = "/numaNode"
"""How the attribute of a device ends that says its NUMA node: in the domain resource.kubernetes.io (KEP-6072), or in
the driver's own."""


def published_zones(node: Node, devices: ClusterDevices, whole: str) -> NUMAZones:
    """Count the whole GPUs that the device plugin of a node gives by the `numaNode` that a DRA driver publishes.

    `whole` is the resource of these GPUs. Which of them are free is not known.
    """
    counts: dict[int, int] = {}
    if not node.node_class.allocatable(whole) or node.node_class.unit(whole) is not Sharing.Exclusive:
        return NUMAZones("", "container", (), ())
    for device in (device for pool in devices.pools.pools(node) for device in pool.devices):
        zone = next((value for key, value in device.attributes.items() if key.endswith(NUMA_NODE)), None)
        model = device.model if device.driver == NVIDIA_DRIVER else NO_GPU
        if model.is_gpu and not model.mig_profile and isinstance(zone, int):
            counts[zone] = counts.get(zone, 0) + 1
    total = tuple(((whole, number),) for _, number in sorted(counts.items()))
    return NUMAZones("", "container", total, total)


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


def topology_notes(pod: Pod, fitting: Sequence[Node], devices: ClusterDevices, whole: str) -> Iterator[str]:
    """Say on which of the nodes that fit the kubelet will refuse a pod, and why, or that this is a guess."""
    known: dict[tuple[str, str], list[str]] = {}
    asked = device_amounts(pod)
    for node in fitting:
        zones = node.free.numa or published_zones(node, devices, whole)
        if (refusal := topology_refusal(asked, zones)) is not None:
            words = (
                f"{refusal.who} wants {refusal.wanted}, and the most that are free on one NUMA node are {refusal.most}"
            )
            known.setdefault((zones.policy, words), []).append(node.name)
    for (policy, words), names in known.items():
        where = (
            f"{names[0]}" if len(names) == 1 else f"{len(names)} of {len(fitting)} nodes that fit, such as {names[0]}"
        )
        if policy:
            yield f"TopologyAffinityError is to be expected on {where}: its kubelet has the policy {policy}; {words}"
        else:
            yield (
                f"a guess, as no NodeResourceTopology says the kubelet's policy: with {SINGLE} TopologyAffinityError"
                f" is to be expected on {where}; {words}"
            )
