# SPDX-License-Identifier: Apache-2.0
"""Seating pods one after another on a fleet that is only thought of: each takes the best node that has room."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.nodes.model import Node
from app.placement.engine import judge, total
from app.placement.ranking import order
from app.policy.demand import Demand


@dataclass(frozen=True, slots=True)
class GPUPod:
    """A pod that asks for GPUs. `node`: where it is bound; empty while it waits."""

    name: str
    uid: str
    node: str
    demand: Demand


def units_of(pods: Sequence[GPUPod]) -> int:
    return sum(units for pod in pods for _, units in pod.demand.resources)


def seat(pod: GPUPod, open_nodes: dict[str, Node]) -> bool:
    """Put a pod on the best node that has room for it; gives whether there is one."""
    fitting = [node for node in open_nodes.values() if judge(pod.demand, node, True) is None]
    if not fitting:
        return False
    best = min(fitting, key=lambda node: order(total(pod.demand, node), node.name))
    open_nodes[best.name] = moved(best, [pod], -1)
    return True


def moved(node: Node, pods: Sequence[GPUPod], sign: int) -> Node:
    """Give a node with what pods hold added to what is free, or taken from it."""
    units, memory = dict(node.free.units), dict(node.free.memory)
    for pod in pods:
        for resource, amount in pod.demand.resources:
            if resource in units:
                units[resource] += sign * amount
            if resource in memory:
                memory[resource] += sign * amount * pod.demand.declared_mib
    return replace(node, free=replace(node.free, units=units, memory=memory))
