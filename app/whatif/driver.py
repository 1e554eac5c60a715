# SPDX-License-Identifier: Apache-2.0
"""A driver rollout before it is made: who may run on the nodes after it, and which node to take first (F122).

Eligibility is what nodes can ever serve (class filters): CUDA and driver with minor-version and forward compatibility,
what images demand, products, memory. What is free now matters for the order of nodes alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from app.knowledge.cuda_compatibility import CUDATables
from app.nodes.model import Node, NodeClass
from app.placement.engine import facts, judge_class
from app.policy.demand import Demand
from app.values.reasons import Reason
from app.values.versions import Version, show_driver
from app.whatif.placing_in_turn import GPUPod, moved, seat, units_of


@dataclass(frozen=True, slots=True)
class Effect:
    """Pods of equal needs for which the rollout changes something. `gains`, `loses`: of the chosen nodes.

    `eligible_after`: nodes of the whole fleet that could serve them. `why`: the refusal on the nodes that are lost.
    `bound_there`: those that run on a node that is lost to them, and do not come back to it.
    """

    pods: tuple[str, ...]
    gains: int
    loses: int
    eligible_after: int
    why: str
    bound_there: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeTurn:
    """One node's turn. `evicts`: pods that hold GPUs there; `waiting`: those of them that find no place until later."""

    node: str
    driver: str
    evicts: tuple[str, ...]
    waiting: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rollout:
    """What a rollout to a driver comes to. `already`: chosen nodes that have it. `order`: the others, in turn."""

    to: str
    nodes: int
    already: int
    effects: tuple[Effect, ...]
    order: tuple[NodeTurn, ...]

    @property
    def strands(self) -> bool:
        """Tell whether pods are left that no node could serve any more."""
        return any(each.loses and not each.eligible_after for each in self.effects)


def with_driver(node: Node, driver: Version, tables: CUDATables) -> Node:
    """Give a node as it would be with another driver; an unknown branch reports an unknown CUDA."""
    return replace(node, node_class=_driven(node.node_class, driver, tables))


def _driven(known: NodeClass, driver: Version, tables: CUDATables) -> NodeClass:
    makes = tuple(_driven(make, driver, tables) for make in known.makes)
    return replace(known, driver=driver, cuda=tables.highest_cuda(driver), makes=makes)


def roll_out(
    nodes: Mapping[str, Node], chosen: Iterable[str], pods: Sequence[GPUPod], driver: Version, tables: CUDATables
) -> Rollout:
    """Tell what another driver on the chosen nodes changes for these pods."""
    before = {name: nodes[name] for name in sorted(chosen) if nodes[name].has_gpus}
    turning = {name: with_driver(node, driver, tables) for name, node in before.items()}
    changed = {name: node for name, node in turning.items() if node.node_class != before[name].node_class}
    after = {**nodes, **changed}
    effects = sorted(_effects(nodes, after, changed, pods), key=lambda each: (each.eligible_after, each.pods))
    turns = tuple(_turns(nodes, changed, pods))
    return Rollout(show_driver(driver), len(before), len(before) - len(changed), tuple(effects), turns)


def _effects(
    before: Mapping[str, Node], after: Mapping[str, Node], changed: Mapping[str, Node], pods: Sequence[GPUPod]
) -> Iterator[Effect]:
    groups: dict[Demand, list[GPUPod]] = {}
    for pod in pods:
        groups.setdefault(pod.demand, []).append(pod)
    for demand, alike in groups.items():
        verdicts = _Verdicts(demand)
        was = {name for name in changed if verdicts.of(before[name]) is None}
        now = {name for name in changed if verdicts.of(after[name]) is None}
        if was == now:
            continue
        lost = was - now
        yield Effect(
            pods=tuple(sorted(each.name for each in alike)),
            gains=len(now - was),
            loses=len(lost),
            eligible_after=sum(verdicts.of(node) is None for node in after.values()),
            why=next((found.message for name in sorted(lost) if (found := verdicts.of(after[name]))), ""),
            bound_there=tuple(sorted(each.name for each in alike if each.node in lost)),
        )


class _Verdicts:
    """The class verdicts of one demand; nodes of one class with the same labels share them."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self._known: dict[NodeClass, Reason | None] = {}

    def of(self, node: Node) -> Reason | None:
        """Say why a node can never serve the demand; None if it can."""
        asked = facts(self._demand, node)
        if asked not in self._known:
            self._known[asked] = judge_class(self._demand, asked)
        return self._known[asked]


def _turns(nodes: Mapping[str, Node], changed: Mapping[str, Node], pods: Sequence[GPUPod]) -> Iterator[NodeTurn]:
    """Take the node with the fewest pods next; those that are still to come are cordoned, so that nobody moves twice.

    Evicted pods take the best place among nodes that are done or not concerned, the largest first.
    """
    there: dict[str, list[GPUPod]] = {}
    for pod in pods:
        if pod.node in changed:
            there.setdefault(pod.node, []).append(pod)
    open_nodes = {name: node for name, node in nodes.items() if name not in changed and node.has_gpus}
    homeless: list[GPUPod] = []
    for name in sorted(changed, key=lambda each: (len(there.get(each, ())), units_of(there.get(each, ())), each)):
        leaving = sorted(there.get(name, ()), key=lambda each: (-units_of([each]), each.name))
        waiting = [pod for pod in leaving if not seat(pod, open_nodes)]
        known = nodes[name].node_class.driver
        evicted = tuple(sorted(each.name for each in leaving))
        yield NodeTurn(
            name, show_driver(known) if known else "unknown", evicted, tuple(sorted(pod.name for pod in waiting))
        )
        open_nodes[name] = moved(changed[name], leaving, 1)
        homeless = [pod for pod in (*homeless, *waiting) if not seat(pod, open_nodes)]
