# SPDX-License-Identifier: Apache-2.0
"""The Packing and Spreading scorers, by the share of a node's GPUs in use (F49, F50)."""

from app.nodes.model import WHOLE_MILLI, Node
from app.policy.demand import Demand


def packing(demand: Demand, node: Node) -> float:
    """Prefer the fullest node: the score is the share of its units in use with the pod."""
    return _used_share(demand, node)


def spreading(demand: Demand, node: Node) -> float:
    """Prefer the emptiest node: the score is the share of its units that stay free with the pod."""
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
