# SPDX-License-Identifier: Apache-2.0
"""Placement on a fleet that does not change, for `policy diff`: the best node of a demand, or why none fits.

A pod's own node counts without the pod. (The shortlist of a filter answer is in placement/ranking.py.)
"""

from collections import Counter
from heapq import nsmallest

from app.dra.device_kinds import DeviceKinds, may_select
from app.dra.words import unmet
from app.kube.claimed_devices import DeviceChoice
from app.kube.gpu_usage import GPUUsage
from app.nodes.model import Node
from app.placement.engine import judge, total
from app.placement.ranking import ranking_key
from app.policy.demand import Demand
from app.values.reasons import counted
from app.world.state import State
from app.world.verdict_cache import VerdictCache

ANYWHERE = "any node"
"""The answer for a pod that asks for no GPU, which is not judged."""

_Best = tuple[tuple[float, tuple[int, str]], str]
"""The sort key of the best node, and its name."""


def unserved_claim(demand: Demand, node: Node) -> str:
    """Say why claims of a pod can never have devices of a node; "" if they can, or if that is not known.

    Taints and allocations are left aside. A pod that also requests GPUs by resource is left to the filters.
    """
    if not demand.device_requests or demand.resources:
        return ""
    if not isinstance(node.devices, DeviceKinds):
        return "the node publishes no devices of NVIDIA's driver"
    kinds = node.devices
    by_request = ([_shortage(kinds, choice) for choice in request] for request in demand.device_requests)
    return next((problems[0] for problems in by_request if problems and all(problems)), "")


def _shortage(kinds: DeviceKinds, choice: DeviceChoice) -> str:
    """Say why too few devices are selected by a choice; "" if enough are."""
    number = sum(kinds.kinds[kind].number for kind in kinds.select(choice, tolerate_all=True))
    least = 1 if choice.count is None else choice.count
    if number >= least:
        return ""
    left = kinds.kinds
    for selector in (*(kinds.class_selectors(choice.device_class) or ()), *choice.selectors):
        before, left = left, tuple(kind for kind in left if may_select(selector, kind.device))
        if before and not left:
            return f"no device of the node has {unmet(selector, [kind.device for kind in before])}"
    wanted = f"{counted(least, 'device')} of DeviceClass {choice.device_class}"
    return f"its claim wants {wanted}, and the node has {number}"


class FleetPlacements:
    """The best nodes of a fleet, cached by demand. The state must not change meanwhile.

    Taints, node affinity, CPU and memory are left to kube-scheduler. Devices that a pod claims must be on its node, but
    may be held, because the pod's own claim may hold them.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._verdicts = VerdictCache(state, recount=True)
        self._best: dict[Demand, tuple[_Best, ...]] = {}
        self._fitting: dict[Demand, frozenset[str]] = {}
        self._refusals: dict[Demand, str] = {}

    def best(self, demand: Demand, uid: str) -> str | None:
        """Return the best node of a demand for the pod with this UID; None if no node fits."""
        if not demand.requests_gpus:
            return ANYWHERE
        if demand not in self._best:
            verdicts = self._verdicts.of(demand)
            names = [name for name in verdicts.feasible if not unserved_claim(demand, self._state.nodes[name])]
            self._fitting[demand] = frozenset(names)
            self._best[demand] = tuple(nsmallest(2, map(_sort_key, verdicts.totals(names), names)))
        usage = self._state.allocations.get(uid)
        others = [candidate for candidate in self._best[demand] if usage is None or candidate[1] != usage.node]
        own = self._own_node(demand, usage) if usage else None
        return min([*others[:1], *([own] if own else [])], default=(None, None))[1]

    def fitting(self, demand: Demand, uid: str) -> frozenset[str]:
        """Return all nodes that fit a demand for the pod with this UID, its own without the pod."""
        if not demand.requests_gpus:
            return frozenset()
        self.best(demand, uid)
        usage = self._state.allocations.get(uid)
        own = {usage.node} if usage else frozenset()
        return self._fitting[demand] - own | (own if usage and self._own_node(demand, usage) else frozenset())

    def why(self, demand: Demand) -> str:
        """Return why no node fits a demand, with the reasons of most nodes."""
        if demand not in self._refusals:
            verdicts = self._verdicts.of(demand)
            counts = Counter([*verdicts.failed.values(), *verdicts.unresolvable.values()])
            unserved = (unserved_claim(demand, self._state.nodes[name]) for name in verdicts.feasible)
            counts.update(filter(None, unserved))
            parts = [f"{message} ({counted(count, 'node')})" for message, count in counts.most_common(2)]
            self._refusals[demand] = "no node: " + ("; ".join(parts) or "the fleet has none")
        return self._refusals[demand]

    def _own_node(self, demand: Demand, usage: GPUUsage) -> _Best | None:
        """Weigh a pod's own node without the pod; None if the pod does not fit there."""
        node = self._state.node_without_pods(usage.node, {usage.uid})
        left = node and node.with_free(node.free.with_units(usage.units), node.free_cpu_milli)
        if left is None or judge(demand, left, True) is not None or unserved_claim(demand, left):
            return None
        return _sort_key(total(demand, left), left.name)


def _sort_key(value: float, name: str) -> _Best:
    return ranking_key(value, name), name
