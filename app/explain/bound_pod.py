# SPDX-License-Identifier: Apache-2.0
"""A pod that has its node: the world with that place given back, so that the pod is judged as if it came anew."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.explain.survey import ClusterSnapshot
from app.kube.gpu_usage import GPUUsage, read_booking, read_holding
from app.kube.pod_requests import PODS, PodRequests
from app.nodes.model import FreeResources


def seat_of(document: Mapping[str, Any]) -> str | None:
    """Name the node that a pod runs on; None where it has none, or is finished."""
    booking = read_booking(document)
    return booking.node if booking else None


def unseated(document: Mapping[str, Any], world: ClusterSnapshot) -> tuple[Mapping[str, Any], ClusterSnapshot]:
    """Give a bound pod without its spec.nodeName, and the world without what it holds there."""
    booking = read_booking(document)
    if booking is None:
        return document, world
    spec = {key: each for key, each in document["spec"].items() if key != "nodeName"}
    return {**document, "spec": spec}, _given_back(document, booking, world)


def _given_back(document: Mapping[str, Any], booking: PodRequests, world: ClusterSnapshot) -> ClusterSnapshot:
    node, used = world.nodes.get(booking.node), {**world.used.get(booking.node, {})}
    for resource, amount in (*booking.amounts, (PODS, 1)):
        used[resource] = max(0, used.get(resource, 0) - amount)
    others = world.neighbours and tuple(each for each in world.neighbours if each.name != _name(document))
    back = replace(world, used={**world.used, booking.node: used}, neighbours=others)
    holding = read_holding(document, world.setting.knowledge)
    if node is None or holding is None:
        return back
    free = replace(node, free=_freed(node.free, holding))
    return replace(back, nodes={**world.nodes, node.name: free})


def _name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata") or {}
    return f"{metadata.get('namespace') or 'default'}/{metadata.get('name')}"


def _freed(free: FreeResources, holding: GPUUsage) -> FreeResources:
    units, memory = {**free.units}, {**free.memory}
    for resource, amount in holding.units:
        if resource in units:
            units[resource] += amount
        if resource in memory:
            memory[resource] += amount * holding.memory_mib
    return replace(free, units=units, memory=memory)
