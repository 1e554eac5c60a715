# SPDX-License-Identifier: Apache-2.0
"""What the twin says of a cluster as the API server shows it: of every binding, every refusal, every word of it."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.controlplane.kubectl import Object
from tests.e2e.crowd import GPU_TAINT, Drawn
from tests.placement.twin import RawNode, RawPod, class_causes, free_causes
from tests.placement.twin_free import budget_of, declared
from tests.placement.twin_world import FAMILIES, HAMI

SAID = {
    "CUDA driver too old": "DriverTooOld",
    "CUDA driver unknown": "DriverUnknown",
    "NVIDIA_REQUIRE_CUDA refuses this driver": "ImageRequirementUnmet",
    "image refuses this driver branch": "ImageRequirementUnmet",
    "compute capability unknown": "GPUFactsMissing",
    "compute capability too low": "ComputeCapabilityTooLow",
    "GPU outside the image's toolkit": "ComputeCapabilityUnsupported",
    "MIG layout of the node is invalid": "MIGInvalid",
    "MIG layout of the node is being changed": "MIGReconfiguring",
    "GPU driver of the node is being upgraded": "DriverUpgrading",
    "the device plugin has withdrawn": "GPUUnhealthy",
    "MIG profile not on this node": "MIGProfileAbsent",
    "labels promise GPUs that the device plugin does not offer": "GhostGPUs",
    "resource not offered": "ResourceNotOffered",
    "asks more than the node has in all": "RequestExceedsNode",
    "node left out by the policy's node selector": "NodeExcluded",
    "GPU product unknown": "GPUFactsMissing",
    "GPU product not allowed": "ProductNotAllowed",
    "memory of the shared GPUs is given away": "GPUMemoryBudgetExceeded",
    "GPU memory unknown": "GPUFactsMissing",
    "GPU memory or sharing unknown": "GPUFactsMissing",
    "GPU sharing unknown": "GPUFactsMissing",
    "GPUs of several models": "GPUFactsMissing",
    "GPU memory too small": "GPUMemoryTooSmall",
    "GPU is shared or sliced on this node": "SharingNotAllowed",
    "GPU is not shared on this node": "SharingNotAllowed",
    "only one share of an MPS GPU can be asked": "SharedReplicasAskedAsGPUs",
    "GPU interconnect unknown": "GPUFactsMissing",
    "GPUs are not joined all-to-all": "InterconnectAbsent",
    "GPU form factor unknown": "GPUFactsMissing",
    "GPU form factor not allowed": "FormFactorNotAllowed",
    "gpu-usher.io/": "InvalidAnnotation",
}
"""How each of our reasons begins, and its code."""
IN_TREE = (*(f"Insufficient {family}" for family in FAMILIES), "node(s) ")
"""How the scheduler's own begin."""
COUNTED = re.compile(r"(\d+) ((?!or )\S.*)")


@dataclass
class Cluster:
    """Nodes and what became of the pods: bound to a node, or refused with a text of the scheduler or of admission."""

    nodes: Mapping[str, RawNode]
    taints: Mapping[str, frozenset[str]]
    labels: Mapping[str, Mapping[str, str]]
    cordoned: frozenset[str]
    bound: dict[Drawn, str] = field(default_factory=dict)
    refused: dict[Drawn, str] = field(default_factory=dict)

    def held(self, node: str) -> tuple[RawPod, ...]:
        """List what is bound to a node."""
        return tuple(
            RawPod(tuple(pod.wish.asked.items()), pod.wish.memory) for pod, place in self.bound.items() if place == node
        )


def read_nodes(documents: Sequence[Object]) -> Cluster:
    """Read the nodes as the API server has them."""
    by_name = {each["metadata"]["name"]: each for each in documents}
    return Cluster(
        {name: _raw(each) for name, each in by_name.items()},
        {name: frozenset(t["key"] for t in each["spec"].get("taints") or ()) for name, each in by_name.items()},
        {name: each["metadata"]["labels"] for name, each in by_name.items()},
        frozenset(name for name, each in by_name.items() if each["spec"].get("unschedulable")),
    )


def _raw(document: Object) -> RawNode:
    offers, capacity = (
        {key: int(value) for key, value in document["status"][which].items() if key.startswith(FAMILIES)}
        for which in ("allocatable", "capacity")
    )
    metadata = document["metadata"]
    return RawNode(metadata["labels"], offers, capacity, hami=(metadata.get("annotations") or {}).get(HAMI, ""))


def in_tree(pod: Drawn, cluster: Cluster, node: str) -> set[str]:
    """Name what the scheduler itself refuses, but for counts: taints, cordons, what the author selects.

    The taint of NVIDIA's nodes is tolerated where the webhook writes to a pod that asks for their GPUs; never a team's
    (docs/reference/admission.md#tolerations).
    """
    found = set()
    asked = (pod.wish.resource, *(part.resource for part in pod.wish.parts))
    claims = any(part.claims for part in pod.wish.parts)
    welcome = pod.admitted and (claims or any((each or "").startswith("nvidia.com/") for each in asked))
    if cluster.taints[node] - {*pod.tolerated, *([GPU_TAINT] if welcome else [])}:
        found.add("(taint)")
    if node in cluster.cordoned:
        found.add("(cordoned)")
    if any(cluster.labels[node].get(key) != value for key, value in pod.selector):
        found.add("(selector)")
    return found


def wrong_bindings(cluster: Cluster) -> list[str]:
    """List bound pods on nodes that could never serve them, or that they may not enter."""
    return [
        f"{pod} on {place}: {sorted(causes)}"
        for pod, place in cluster.bound.items()
        if (causes := class_causes(pod.wish, cluster.nodes[place]) | in_tree(pod, cluster, place))
    ]


def over_committed(cluster: Cluster) -> list[str]:
    """List nodes on which more units are held than there are, or more memory of shared GPUs declared."""
    found = []
    for name, node in cluster.nodes.items():
        units: Counter[str] = Counter()
        memory: Counter[str] = Counter()
        for pod in cluster.held(name):
            for resource, amount in pod.holds:
                units[resource] += amount
                memory[resource] += amount * declared(pod.memory)
        found += [f"{name}: {n} {each} held" for each, n in units.items() if n > node.offers(each)]
        budgets = {each: budget_of(each, node) for each in memory}
        found += [
            f"{name}: {memory[each]} MiB of {each} declared"
            for each, b in budgets.items()
            if (b or 0) < memory[each] and b is not None
        ]
    return found


def false_refusals(cluster: Cluster) -> list[str]:
    """List refused pods and the nodes that would serve them now."""
    held = {name: cluster.held(name) for name in cluster.nodes}
    return [
        f"{pod} on {name}, refused with: {text[:400]}"
        for pod, text in cluster.refused.items()
        for name, node in cluster.nodes.items()
        if not class_causes(pod.wish, node) | in_tree(pod, cluster, name)
        and not free_causes(pod.wish, node, held[name])
    ]


def untrue_words(cluster: Cluster) -> Iterator[str]:
    """List what FailedScheduling says of more nodes than the twin does; a text that nobody knows is one."""
    held = {name: cluster.held(name) for name in cluster.nodes}
    for pod, text in cluster.refused.items():
        true = Counter(
            code
            for name, node in cluster.nodes.items()
            for code in class_causes(pod.wish, node) | free_causes(pod.wish, node, held[name])
        )
        for code, count in said(text).items():
            if count > true[code]:
                yield f"{pod}: {count} {code}, the twin says {true[code]}: {text[:600]}"


def said(text: str) -> Counter[str]:
    """Read the histogram of a FailedScheduling message: nodes by our code; the scheduler's own reasons left out.

    Commas occur in our own words too, also before numbers: `branch 450, 460 or 470`.
    """
    found: Counter[str] = Counter()
    pieces: list[str] = []
    for piece in text.partition("nodes are available: ")[2].partition(". ")[0].split(", "):
        if COUNTED.match(piece) or not pieces:
            pieces.append(piece)
        else:
            pieces[-1] += f", {piece}"
    for piece in pieces:
        count, _, words = piece.partition(" ")
        if not words.startswith(IN_TREE):
            found[next((code for start, code in SAID.items() if words.startswith(start)), f"? {piece}")] += int(count)
    return found
