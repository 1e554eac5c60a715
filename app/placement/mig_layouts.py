# SPDX-License-Identifier: Apache-2.0
"""The filter and the scorer for MIG slices: whether they fit, and on which node they take the least headroom."""

from app.knowledge.mig_placements import GPULayout, place_instances
from app.knowledge.mig_profiles import profile_of
from app.nodes.model import FreeResources, Node
from app.placement.mig_headroom import headroom_loss
from app.policy.demand import Demand
from app.values.reasons import Code, Reason, reason

NEUTRAL = 0.5
"""The score of each node for a demand that requests no MIG slice by name."""


def layout_fits(demand: Demand, free: FreeResources) -> Reason | None:
    """Refuse a node whose GPUs have no place for the requested MIG slices beside the existing ones.

    It applies only where MIG slices are created on demand, since those of a device plugin are fixed and counted
    exactly. The filter repeats what kube-scheduler's DynamicResources plugin checks by the shared counters of the same
    ResourceSlices (KEP-4815). Behind a live scheduler it is left out, because our later view would only add false
    refusals.
    """
    if free.layouts is None:
        return None
    slices = _requested_slices(demand, free)
    if not slices:
        return None
    wants = " and ".join(f"{amount} {name}" for name, amount in slices)
    refusal = reason(Code.LayoutDoesNotFit, "no room for the MIG slices beside others", wants)
    if _exceeds_all_gpus(slices, free.layouts):
        return refusal
    return None if place_instances(free.layouts, _profiles(slices)) is not None else refusal


def _requested_slices(demand: Demand, free: FreeResources) -> list[tuple[str, int]]:
    """List the requested slices that are created on demand, as (resource, amount)."""
    return [(name, amount) for name, amount in demand.resources if profile_of(name) and name in free.uncounted]


def _exceeds_all_gpus(slices: list[tuple[str, int]], layouts: tuple[GPULayout, ...]) -> bool:
    """Tell whether the slices are more than the compute slices of all GPUs together, of which each takes at least one.

    It bounds the length of the list that `_profiles` makes, since a demand may request a billion slices.
    """
    return sum(amount for _, amount in slices) > sum(layout.geometry.compute_total for layout in layouts)


def _profiles(slices: list[tuple[str, int]]) -> list[str]:
    return [profile_of(name) or "" for name, amount in slices for _ in range(amount)]


def mig_layout(demand: Demand, node: Node) -> float:
    """Prefer the node whose GPUs keep the most headroom for future MIG slices.

    Where DRA creates slices on demand, the score is 1 less the mean headroom that a slice takes. Where a device plugin
    offers fixed slices, the choice of the node does not change how many slices of a profile are left. It can only keep
    nodes idle, on which MIG Manager can change the layout, so that busy nodes come first, the fuller the better.
    """
    if not any(profile_of(name) for name, _ in demand.resources):
        return NEUTRAL
    if node.free.layouts is None:
        return _busy_node_score(demand, node)
    slices = _requested_slices(demand, node.free)
    if not slices or _exceeds_all_gpus(slices, node.free.layouts):
        return 0.0
    loss = headroom_loss(node.free.layouts, _profiles(slices))
    return 0.0 if loss is None else 1.0 - loss / sum(amount for _, amount in slices)


def _busy_node_score(demand: Demand, node: Node) -> float:
    """Give 0 for an idle node, else 0.5 to 1, by the share of its units that are in use together with the pod.

    Units of all its GPU resources count the same, whatever their size.
    """
    total = sum(max(0, amount) for _, amount in node.node_class.offered)
    free = sum(min(max(0, node.free.units.get(name, 0)), amount) for name, amount in node.node_class.offered)
    if total <= 0 or free >= total:
        return 0.0
    requested = sum(amount for name, amount in demand.resources if node.node_class.allocatable(name))
    return (1.0 + min(1.0, (total - free + requested) / total)) / 2.0
