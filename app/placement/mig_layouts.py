# SPDX-License-Identifier: Apache-2.0
"""MIG layouts in placement: whether slices find a place, and which node loses least by them (F60, F61, P13, P14)."""

from app.knowledge.mig_placements import GPULayout, places
from app.knowledge.mig_profiles import profile_of
from app.nodes.model import FreeResources, Node
from app.placement.mig_headroom import spoilt
from app.policy.demand import Demand
from app.values.reasons import Code, Reason, reason

NEUTRAL = 0.5
"""For a demand that asks for no slice by name."""


def layout_fits(demand: Demand, free: FreeResources) -> Reason | None:
    """Refuse a node whose GPUs have no place for the MIG slices asked, beside those that lie there (F60).

    By slots, never by counts, and only where slices are carved on demand: a device plugin's are fixed, and its counts
    are exact. It repeats what kube-scheduler's DynamicResources plugin counts itself, by the shared counters of the
    same ResourceSlices (KEP-4815), so that behind a live scheduler our later view would only add false refusals.
    """
    if free.layouts is None:
        return None
    asked = _carved(demand, free)
    if not asked:
        return None
    wants = " and ".join(f"{amount} {name}" for name, amount in asked)
    refusal = reason(Code.LayoutDoesNotFit, "no place for the MIG slices beside others", wants)
    if _beyond_all(asked, free.layouts):
        return refusal
    return None if places(free.layouts, _profiles(asked)) is not None else refusal


def _carved(demand: Demand, free: FreeResources) -> list[tuple[str, int]]:
    """List the slices asked that are carved on demand."""
    return [(name, amount) for name, amount in demand.resources if profile_of(name) and name in free.uncounted]


def _beyond_all(asked: list[tuple[str, int]], layouts: tuple[GPULayout, ...]) -> bool:
    """Tell by counting that all GPUs together are too few: every slice takes a compute slice.

    What is within is few enough to be spelt out; a demand may ask a billion.
    """
    return sum(amount for _, amount in asked) > sum(layout.geometry.compute_total for layout in layouts)


def _profiles(asked: list[tuple[str, int]]) -> list[str]:
    return [profile_of(name) or "" for name, amount in asked for _ in range(amount)]


def mig_layout(demand: Demand, node: Node) -> float:
    """Prefer the node whose GPUs stay fit for most MIG slices to come (F61).

    Where DRA carves slices on demand: 1 less the share of a GPU that each of them spoils, where kube-scheduler will put
    it. Where a device plugin offers fixed slices no choice of node changes how many pods find one: each profile is a
    counter of its own. What is left to win is nodes without pods, which MIG Manager may cut anew: busy nodes come
    first, the fuller the better, and idle ones last.
    """
    if not any(profile_of(name) for name, _ in demand.resources):
        return NEUTRAL
    if node.free.layouts is None:
        return _recut_value(demand, node)
    asked = _carved(demand, node.free)
    if not asked or _beyond_all(asked, node.free.layouts):
        return 0.0
    lost = spoilt(node.free.layouts, _profiles(asked))
    return 0.0 if lost is None else 1.0 - lost / sum(amount for _, amount in asked)


def _recut_value(demand: Demand, node: Node) -> float:
    """Give 0 for an idle node, else more than a half: the more, the larger the share of its units in use with the pod.

    By units of all its resources, whatever their size; a node may count more as free than it has.
    """
    total = sum(max(0, amount) for _, amount in node.node_class.offered)
    free = sum(min(max(0, node.free.units.get(name, 0)), amount) for name, amount in node.node_class.offered)
    if total <= 0 or free >= total:
        return 0.0
    asked = sum(amount for name, amount in demand.resources if node.node_class.allocatable(name))
    return (1.0 + min(1.0, (total - free + asked) / total)) / 2.0
