# SPDX-License-Identifier: Apache-2.0
"""The twin judges a cluster as the API server shows it: every binding, every refusal, and every reason of a refusal."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.controlplane.kubectl import Object
from tests.e2e.crowd import GPU_TAINT, DrawnPod
from tests.placement.twin import RawNode, RawPod, class_causes, free_causes
from tests.placement.twin_free import budget_of, declared
from tests.placement.twin_world import FAMILIES, HAMI

CODES_BY_TEXT = {
    "CUDA driver too old": "DriverTooOld",
    "CUDA driver unknown": "DriverUnknown",
    "NVIDIA_REQUIRE_CUDA refuses this driver": "ImageRequirementUnmet",
    "image refuses this driver branch": "ImageRequirementUnmet",
    "compute capability unknown": "GPUFactsMissing",
    "compute capability too low": "ComputeCapabilityTooLow",
    "GPU outside the image's toolkit": "ComputeCapabilityUnsupported",
    "MIG layout of the node is invalid": "MIGInvalid",
    "MIG layout of the node is being changed": "MIGReconfiguring",
    "MIG Manager failed to make": "MIGLayoutFailed",
    "GPU driver of the node is being upgraded": "DriverUpgrading",
    "the device plugin has withdrawn": "GPUUnhealthy",
    "MIG profile not on this node": "MIGProfileAbsent",
    "labels promise GPUs that the node does not offer": "GhostGPUs",
    "resource not offered": "ResourceNotOffered",
    "asks for more than the node has": "RequestExceedsNode",
    "node left out by the policy's node selector": "NodeExcluded",
    "GPU product unknown": "GPUFactsMissing",
    "GPU product not allowed": "ProductNotAllowed",
    "memory of the shared GPUs is promised to other pods": "GPUMemoryBudgetExceeded",
    "GPU memory unknown": "GPUFactsMissing",
    "GPU memory or sharing unknown": "GPUFactsMissing",
    "GPU sharing unknown": "GPUFactsMissing",
    "GPU product not certain": "GPUFactsMissing",
    "GPU of a vendor without CUDA": "GPUWithoutCUDA",
    "a DRA driver serves the node's GPUs": "OfferedByClaimOnly",
    "a condition of the node reports a fault": "GPUUnhealthy",
    "GPU memory too small": "GPUMemoryTooSmall",
    "GPU is shared or sliced on this node": "SharingNotAllowed",
    "GPU is not shared on this node": "SharingNotAllowed",
    "only one share of an MPS GPU can be requested": "SharedReplicasAskedAsGPUs",
    "the device plugin refuses several units": "SharedReplicasAskedAsGPUs",
    "the policy denies several units": "SharedReplicasAskedAsGPUs",
    "image built for another machine": "ImageForOtherMachine",
    "image has no code for this GPU": "ImageWithoutCodeForGPU",
    "GPU interconnect unknown": "GPUFactsMissing",
    "GPUs are not joined all-to-all": "InterconnectAbsent",
    "GPU form factor unknown": "GPUFactsMissing",
    "GPU form factor not allowed": "FormFactorNotAllowed",
    "gpu-usher.io/": "InvalidAnnotation",
}
"""The first words of each of our reasons → its code."""
IN_TREE = (*(f"Insufficient {family}" for family in FAMILIES), "node(s) ")
"""The first words of the scheduler's own reasons."""
COUNTED = re.compile(r"(\d+) ((?!or )\S.*)")


@dataclass
class Cluster:
    """Nodes, and what became of the pods: bound to a node, or refused with the scheduler's or admission's message."""

    nodes: Mapping[str, RawNode]
    taints: Mapping[str, frozenset[str]]
    labels: Mapping[str, Mapping[str, str]]
    cordoned: frozenset[str]
    bound: dict[DrawnPod, str] = field(default_factory=dict)
    refused: dict[DrawnPod, str] = field(default_factory=dict)
    _class_causes: dict[tuple[DrawnPod, str], set[str]] = field(default_factory=dict)

    def class_causes(self, pod: DrawnPod, node: str) -> set[str]:
        """Return the causes that do not depend on other pods, which take the twin some milliseconds."""
        if (pod, node) not in self._class_causes:
            self._class_causes[pod, node] = set(class_causes(pod.wish, self.nodes[node]))
        return self._class_causes[pod, node]

    def held(self, node: str) -> tuple[RawPod, ...]:
        """List the GPU requests of the pods that are bound to a node."""
        return tuple(
            RawPod(tuple(pod.wish.asked.items()), pod.wish.memory) for pod, place in self.bound.items() if place == node
        )


def read_nodes(documents: Sequence[Object]) -> Cluster:
    """Read the nodes as the API server has them."""
    by_name = {document["metadata"]["name"]: document for document in documents}
    return Cluster(
        {name: _raw(document) for name, document in by_name.items()},
        {name: frozenset(t["key"] for t in document["spec"].get("taints") or ()) for name, document in by_name.items()},
        {name: document["metadata"]["labels"] for name, document in by_name.items()},
        frozenset(name for name, document in by_name.items() if document["spec"].get("unschedulable")),
    )


def _raw(document: Object) -> RawNode:
    offers, capacity = (
        {key: int(value) for key, value in document["status"][which].items() if key.startswith(FAMILIES)}
        for which in ("allocatable", "capacity")
    )
    metadata = document["metadata"]
    return RawNode(metadata["labels"], offers, capacity, hami=(metadata.get("annotations") or {}).get(HAMI, ""))


def in_tree_refusals(pod: DrawnPod, cluster: Cluster, node: str) -> set[str]:
    """Name the causes of the scheduler itself, except counts: taints, cordons, node selectors.

    The taint of NVIDIA's nodes is tolerated where the webhook reviews a pod that requests their GPUs, a team's never
    (docs/reference/admission.md#tolerations).
    """
    objections = set()
    resources = (pod.wish.resource, *(part.resource for part in pod.wish.parts))
    claims = any(part.claims for part in pod.wish.parts)
    welcome = pod.admitted and (claims or any((resource or "").startswith("nvidia.com/") for resource in resources))
    if cluster.taints[node] - {*pod.tolerated, *([GPU_TAINT] if welcome else [])}:
        objections.add("(taint)")
    if node in cluster.cordoned:
        objections.add("(cordoned)")
    if any(cluster.labels[node].get(key) != value for key, value in pod.selector):
        objections.add("(selector)")
    return objections


def wrong_bindings(cluster: Cluster) -> list[str]:
    """List bound pods whose node could never serve them, or refuses them by taint, cordon or selector."""
    return [
        f"{pod} on {place}: {sorted(causes)}"
        for pod, place in cluster.bound.items()
        if (causes := cluster.class_causes(pod, place) | in_tree_refusals(pod, cluster, place))
    ]


def over_committed(cluster: Cluster) -> list[str]:
    """List nodes on which pods hold more units than there are, or declare more memory of shared GPUs."""
    violations = []
    for name, node in cluster.nodes.items():
        units: Counter[str] = Counter()
        memory: Counter[str] = Counter()
        for pod in cluster.held(name):
            for resource, amount in pod.holds:
                units[resource] += amount
                memory[resource] += amount * declared(pod.memory)
        violations += [
            f"{name}: {n} {resource_name} held" for resource_name, n in units.items() if n > node.offers(resource_name)
        ]
        budgets = {resource_name: budget_of(resource_name, node) for resource_name in memory}
        violations += [
            f"{name}: {memory[resource_name]} MiB of {resource_name} declared"
            for resource_name, b in budgets.items()
            if (b or 0) < memory[resource_name] and b is not None
        ]
    return violations


def false_refusals(cluster: Cluster) -> list[str]:
    """List refused pods and the nodes that would serve them now."""
    held = {name: cluster.held(name) for name in cluster.nodes}
    return [
        f"{pod} on {name}, refused with: {text[:400]}"
        for pod, text in cluster.refused.items()
        for name, node in cluster.nodes.items()
        if not in_tree_refusals(pod, cluster, name)
        and not cluster.class_causes(pod, name)
        and not free_causes(pod.wish, node, held[name])
    ]


def untrue_messages(cluster: Cluster) -> Iterator[str]:
    """List reasons that FailedScheduling gives for more nodes than the twin does, and reasons that nobody knows."""
    held = {name: cluster.held(name) for name in cluster.nodes}
    for pod, text in cluster.refused.items():
        if not (counts := reason_counts(text)):
            continue
        true = Counter(
            code
            for name, node in cluster.nodes.items()
            for code in cluster.class_causes(pod, name) | free_causes(pod.wish, node, held[name])
        )
        for code, count in counts.items():
            if count > true[code]:
                yield f"{pod}: {count} {code}, the twin says {true[code]}: {text[:600]}"


def reason_counts(text: str) -> Counter[str]:
    """Read the histogram of a FailedScheduling message: nodes by our reason code, without the scheduler's own reasons.

    Our own messages have commas too, also before numbers: `branch 450, 460 or 470`.
    """
    counts: Counter[str] = Counter()
    pieces: list[str] = []
    for piece in text.partition("nodes are available: ")[2].partition(". ")[0].split(", "):
        if COUNTED.match(piece) or not pieces:
            pieces.append(piece)
        else:
            pieces[-1] += f", {piece}"
    for piece in pieces:
        count, _, words = piece.partition(" ")
        if not words.startswith(IN_TREE):
            counts[next((code for start, code in CODES_BY_TEXT.items() if words.startswith(start)), f"? {piece}")] += (
                int(count)
            )
    return counts
