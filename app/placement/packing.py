# SPDX-License-Identifier: Apache-2.0
"""The Packing and Spreading scorers, by the share of a node's GPUs in use."""

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
    if demand.claims and not demand.resources and node.free.gpus:
        return _used_share_with_claims(demand, node, node.free.gpus)
    shares, offered = 0.0, 0
    for resource, amount in demand.resources:
        if total := node.node_class.allocatable(resource):
            left = min(total, max(0, node.free.units.get(resource, 0) - amount))
            shares += 1.0 - left / total
            offered += 1
    return shares / offered if offered else 0.0


def _used_share_with_claims(demand: Demand, node: Node, free_gpus: tuple[int, ...]) -> float:
    """Give the share of a node's GPUs in use with the pod, whose claims are for whole GPUs.

    A MIG device counts as nothing, because how much of a GPU it is differs from claim to claim.
    """
    everything = any(count is None for _, count in demand.claims)
    whole = 0 if node.node_class.mig_profile else WHOLE_MILLI * sum(count or 0 for _, count in demand.claims)
    left = 0 if everything else max(0, sum(free_gpus) - whole)
    return 1.0 - left / (WHOLE_MILLI * len(free_gpus))
