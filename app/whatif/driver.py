# SPDX-License-Identifier: Apache-2.0
"""A driver rollout before it is made: which pods could run on the nodes after it, and the order of nodes.

Eligibility is what nodes can ever serve (class filters): CUDA and driver with minor-version and forward compatibility,
the images' requirements, products, memory; and of DRA devices, what selectors of claims take. What is free now only
matters for the order of the nodes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from app.explain.fleet_placements import unserved_claim
from app.knowledge.cuda_compatibility import CUDATables
from app.nodes.model import Node, NodeClass
from app.placement.engine import class_for_demand, judge_class
from app.policy.demand import Demand
from app.values.versions import Version, show_driver
from app.whatif.placing_in_turn import DevicesWithDriver, GPUPod, change_in_turn, pods_by_node


@dataclass(frozen=True, slots=True)
class Effect:
    """Pods of equal demand for which the rollout changes something.

    `gains` and `loses` count the chosen nodes that become eligible or stop being so. `eligible_after` counts eligible
    nodes of the whole fleet. `why` is the refusal on a lost node. `bound_there` are the pods that run on a node that is
    lost to them, and cannot come back to it.
    """

    pods: tuple[str, ...]
    gains: int
    loses: int
    eligible_after: int
    why: str
    bound_there: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeTurn:
    """One node's turn. `evicts` are the pods with GPUs there; `waiting` those of them that find a place only later."""

    node: str
    driver: str
    evicts: tuple[str, ...]
    waiting: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rollout:
    """A rollout to a driver. `already` counts chosen nodes that have it. `order` are the others, one after another."""

    to: str
    nodes: int
    already: int
    effects: tuple[Effect, ...]
    order: tuple[NodeTurn, ...]

    @property
    def leaves_pods_without_nodes(self) -> bool:
        """True where pods would be left that no node could serve any more."""
        return any(effect.loses and not effect.eligible_after for effect in self.effects)


def _class_with_driver(node_class: NodeClass, devices: DevicesWithDriver) -> NodeClass:
    changed_makes = tuple(_class_with_driver(make, devices) for make in node_class.device_variants)
    return replace(node_class, driver=devices.driver, cuda=devices.cuda, device_variants=changed_makes)


def plan_rollout(
    nodes: Mapping[str, Node], chosen: Iterable[str], pods: Sequence[GPUPod], driver: Version, tables: CUDATables
) -> Rollout:
    """Plan a rollout of another driver to the chosen nodes, with its effects on these pods."""
    before = {name: nodes[name] for name in sorted(chosen) if nodes[name].has_gpus}
    devices = DevicesWithDriver(driver, tables)
    with_new_driver = {
        name: replace(node, node_class=_class_with_driver(node.node_class, devices), devices=devices.of(node.devices))
        for name, node in before.items()
    }
    changed = {name: node for name, node in with_new_driver.items() if node.node_class != before[name].node_class}
    after = {**nodes, **changed}
    effects = sorted(_effects(nodes, after, changed, pods), key=lambda effect: (effect.eligible_after, effect.pods))
    turns = tuple(_turns(nodes, changed, pods))
    return Rollout(show_driver(driver), len(before), len(before) - len(changed), tuple(effects), turns)


def _effects(
    before: Mapping[str, Node], after: Mapping[str, Node], changed: Mapping[str, Node], pods: Sequence[GPUPod]
) -> Iterator[Effect]:
    groups: dict[Demand, list[GPUPod]] = {}
    for pod in pods:
        groups.setdefault(pod.demand, []).append(pod)
    for demand, equal_pods in groups.items():
        verdicts = _Verdicts(demand)
        was = {name for name in changed if not verdicts.of(before[name])}
        now = {name for name in changed if not verdicts.of(after[name])}
        if was == now:
            continue
        lost = was - now
        yield Effect(
            pods=tuple(sorted(pod.name for pod in equal_pods)),
            gains=len(now - was),
            loses=len(lost),
            eligible_after=sum(not verdicts.of(node) for node in after.values()),
            why=verdicts.of(after[min(lost)]) if lost else "",
            bound_there=tuple(sorted(pod.name for pod in equal_pods if pod.node in lost)),
        )


class _Verdicts:
    """The class verdicts on one demand, cached by node class, labels and kinds of devices."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self._by_class: dict[tuple[NodeClass, int], str] = {}

    def of(self, node: Node) -> str:
        """Say why a node can never serve the demand; "" if it can."""
        class_facts = class_for_demand(self._demand, node)
        key = class_facts, node.devices.serial if node.devices is not None else 0
        if key not in self._by_class:
            refusal = judge_class(self._demand, class_facts)
            self._by_class[key] = refusal.message if refusal else unserved_claim(self._demand, node)
        return self._by_class[key]


def _turns(nodes: Mapping[str, Node], changed: Mapping[str, Node], pods: Sequence[GPUPod]) -> Iterator[NodeTurn]:
    """Order the nodes. Evicted pods take places on nodes that are done or not part of the rollout."""
    open_nodes = {name: node for name, node in nodes.items() if name not in changed and node.has_gpus}
    for name, evicts, waiting in change_in_turn(pods_by_node(pods, changed), open_nodes, changed.get):
        driver = nodes[name].node_class.driver
        yield NodeTurn(name, show_driver(driver) if driver else "unknown", evicts, waiting)
