# SPDX-License-Identifier: Apache-2.0
"""How full a node is: packing and spreading (F49, F50)."""

from app.nodes.model import Node
from app.policy.demand import Demand

WHOLE_MILLI = 1000
"""Thousandths of a whole GPU."""


def packing(demand: Demand, node: Node) -> float:
    """Prefer the node that the pod fills best: the share of its units in use once the pod is there."""
    return _used_share(demand, node)


def spreading(demand: Demand, node: Node) -> float:
    """Prefer the node that stays emptiest."""
    return 1.0 - _used_share(demand, node)


def _used_share(demand: Demand, node: Node) -> float:
    if demand.share_milli and node.free.gpus:
        return 1.0 - max(0, sum(node.free.gpus) - demand.share_milli) / (WHOLE_MILLI * len(node.free.gpus))
    shares, offered = 0.0, 0
    for resource, amount in demand.resources:
        if total := node.node_class.allocatable(resource):
            left = min(total, max(0, node.free.units.get(resource, 0) - amount))
            shares += 1.0 - left / total
            offered += 1
    return shares / offered if offered else 0.0
