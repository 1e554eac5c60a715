# SPDX-License-Identifier: Apache-2.0
"""Placing pods one after another on a hypothetical fleet: each takes the best node that has room."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.nodes.model import Node
from app.placement.engine import judge, total
from app.placement.ranking import ranking_key
from app.policy.demand import Demand
from app.whatif.claims_on_nodes import unserved_claim


@dataclass(frozen=True, slots=True)
class GPUPod:
    """A pod that asks for GPUs. `node` is the node that it is bound to; empty while it is pending."""

    name: str
    uid: str
    node: str
    demand: Demand


def gpu_units_of(pods: Sequence[GPUPod]) -> int:
    """Count the GPU units that pods ask for."""
    return sum(units for pod in pods for _, units in pod.demand.resources)


def place_pod(pod: GPUPod, open_nodes: dict[str, Node]) -> bool:
    """Place a pod on the best node that has room for it; returns False where there is none."""
    fitting = [
        node
        for node in open_nodes.values()
        if judge(pod.demand, node, True) is None and not unserved_claim(pod.demand, node)
    ]
    if not fitting:
        return False
    best = min(fitting, key=lambda node: ranking_key(total(pod.demand, node), node.name))
    open_nodes[best.name] = with_units_moved(best, [pod], -1)
    return True


def with_units_moved(node: Node, pods: Sequence[GPUPod], sign: int) -> Node:
    """Return a node with the pods' units added to what is free (`sign` 1), or taken from it (-1)."""
    units, memory = dict(node.free.units), dict(node.free.memory)
    for pod in pods:
        for resource, amount in pod.demand.resources:
            if resource in units:
                units[resource] += sign * amount
            if resource in memory:
                memory[resource] += sign * amount * pod.demand.declared_mib
    return replace(node, free=replace(node.free, units=units, memory=memory))
