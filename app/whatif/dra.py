# SPDX-License-Identifier: Apache-2.0
"""A move of nodes from the device plugin to DRA: what pods become, what they lose, and the order of nodes.

A node can move when every pod on it has an equivalent claim. A pod of which one unit is a share of a GPU, or a slice
under the name of a whole GPU, has none there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.admission.claim_conversion import Conversion, NoEquivalent
from app.nodes.model import SHARES, UNSHARED, Node, Sharing
from app.whatif.placing_in_turn import GPUPod, change_in_turn, pods_by_node

LEFT_ALONE = "admission does not change it: its namespace is exempt, its scheduler another one, or it is denied"
ALREADY_CLAIMS = "claims already"


@dataclass(frozen=True, slots=True)
class MovingPod:
    """A GPU pod, and its conversion; None for one that admission leaves alone, or that claims its GPUs already."""

    pod: GPUPod
    outcome: Conversion | NoEquivalent | None


@dataclass(frozen=True, slots=True)
class MovingWorkload:
    """Pods of one namespace that become the same.

    `template` is the ResourceClaimTemplate that they need, and `requests` its requests, as `2 x gpu.nvidia.com`; both
    are empty for pods that stay as they are, of which `stays` says why. `loses` is what the claim does not express.
    """

    pods: tuple[str, ...]
    template: str
    requests: tuple[str, ...]
    loses: tuple[str, ...]
    stays: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeMove:
    """One node's turn. `evicts` are the GPU pods there; `waiting` those of them that find a place only later."""

    node: str
    evicts: tuple[str, ...]
    waiting: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnmovableNode:
    """A node that cannot move: `pods` on it have no equivalent, and `reasons` say what they would lose."""

    node: str
    pods: tuple[str, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DRAMove:
    """A move to DRA. `already` counts chosen nodes whose GPUs DRA serves. `order` are those that can move, in turn."""

    nodes: int
    already: int
    workloads: tuple[MovingWorkload, ...]
    order: tuple[NodeMove, ...]
    held: tuple[UnmovableNode, ...]


def plan_move(nodes: Mapping[str, Node], chosen: Iterable[str], pods: Sequence[MovingPod]) -> DRAMove:
    """Plan the move of the chosen nodes, with its effects on all pods."""
    names = sorted(name for name in chosen if nodes[name].has_gpus)
    moving = [name for name in names if not nodes[name].node_class.dra_resources]
    reasons = {moved.pod.name: stay_reasons(moved, nodes) for moved in pods}
    on_node = pods_by_node((moved.pod for moved in pods), moving)
    held = tuple(_held(on_node, reasons))
    free = {name: on_node[name] for name in moving if name not in {node.node for node in held}}
    workloads = tuple(_workloads(pods, reasons))
    return DRAMove(len(names), len(names) - len(moving), workloads, tuple(_turns(nodes, free)), held)


def stay_reasons(moved: MovingPod, nodes: Mapping[str, Node]) -> tuple[str, ...]:
    """Say why a pod has no equivalent: of itself, or of what it has on its node; nothing where it has one."""
    if not moved.pod.demand.resources:
        return ()
    if moved.outcome is None:
        return (LEFT_ALONE,)
    own = moved.outcome.reasons if isinstance(moved.outcome, NoEquivalent) else ()
    node = nodes.get(moved.pod.node)
    if node is None or (isinstance(moved.outcome, Conversion) and moved.outcome.is_share):
        return own
    return tuple(dict.fromkeys((*own, *_lost_there(moved.pod, node))))


def _lost_there(pod: GPUPod, node: Node) -> Iterator[str]:
    """Say what a unit is on the pod's node that no claim of its own gives."""
    for resource, _ in pod.demand.resources:
        unit = node.node_class.unit(resource)
        if unit in SHARES:
            yield f"{resource} is {unit.value} there: only devices with allowMultipleAllocations are shared by claims"
            if pod.demand.declared_mib:
                yield "gpu-memory is a part of a shared GPU there: a claim has no budget of a device's memory"
        elif unit is Sharing.MIG and pod.demand.mig_profile is None:
            yield f"{resource} is {unit.value} there: its claim takes a whole GPU unless mig-profile names the slice"


def _held(on_node: Mapping[str, Sequence[GPUPod]], reasons: Mapping[str, tuple[str, ...]]) -> Iterator[UnmovableNode]:
    for name, pods in on_node.items():
        staying = sorted(pod.name for pod in pods if reasons[pod.name])
        if staying:
            yield UnmovableNode(name, tuple(staying), tuple(sorted({why for pod in staying for why in reasons[pod]})))


def _workloads(pods: Sequence[MovingPod], reasons: Mapping[str, tuple[str, ...]]) -> Iterator[MovingWorkload]:
    """Group the pods that become the same; those that stay come first, then those that lose something."""
    groups: dict[tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for moved in pods:
        stays = reasons[moved.pod.name]
        converted = moved.outcome if isinstance(moved.outcome, Conversion) and not stays else None
        template = converted.name if converted else ""
        requests = tuple(_requests(converted)) if converted else () if stays else (ALREADY_CLAIMS,)
        key = (moved.pod.name.partition("/")[0], template, requests, converted.unsaid if converted else (), stays)
        groups.setdefault(key, []).append(moved.pod.name)
    order = sorted(groups.items(), key=lambda group: (not group[0][4], not group[0][3], group[0]))
    for (_, template, requests, loses, stays), names in order:
        yield MovingWorkload(tuple(sorted(names)), template, requests, loses, stays)


def _requests(conversion: Conversion) -> Iterator[str]:
    for request in conversion.template["spec"]["spec"]["devices"]["requests"]:
        yield f"{request['exactly']['count']} x {request['exactly']['deviceClassName']}"


def _turns(nodes: Mapping[str, Node], moving: Mapping[str, Sequence[GPUPod]]) -> Iterator[NodeMove]:
    """Order the nodes. Evicted pods claim, so that only nodes which have moved take them.

    What DRA nodes have free from before is left out, since only kube-scheduler counts it, and so are nodes whose units
    are no whole devices.
    """
    for turn in change_in_turn(moving, {}, lambda name: nodes[name] if _counts_devices(nodes[name]) else None):
        yield NodeMove(*turn)


def _counts_devices(node: Node) -> bool:
    """Tell whether each unit of the node's resources is a device that a claim can take."""
    units = {node.node_class.unit(resource) for resource, amount in node.node_class.offered if amount > 0}
    return units <= UNSHARED
