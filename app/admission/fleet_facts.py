# SPDX-License-Identifier: Apache-2.0
"""What admission knows of the cluster: kinds of GPU nodes, what is free, runtime classes, whose labels nodes carry."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from app.knowledge.tables import Knowledge
from app.nodes.labels import COMPUTE, DRIVER, MEMORY, MIG_STATE, OLD_DRIVER, PLUGIN, PRODUCT, SHARING, UPGRADE_STATE
from app.nodes.model import Node, NodeClass
from app.placement.engine import judge_class
from app.policy.demand import Demand
from app.values.reasons import Reason

Taint = tuple[str, str, str]
"""(key, value, effect)."""

GFD_KEYS = (PRODUCT, MEMORY, SHARING, f"{COMPUTE[0]}.major", f"{DRIVER[0]}.major", f"{OLD_DRIVER[0]}.major")
"""Labels of GPU Feature Discovery in which needs are written as affinity."""
STATE_KEYS = (MIG_STATE, UPGRADE_STATE, PLUGIN)
"""Labels of MIG Manager and of the GPU Operator that say what is being done to a node."""


NodeGroupKey = tuple[NodeClass, tuple[Taint, ...], tuple[tuple[str, str], ...]]
"""What tells one group of nodes from another: class, taints, labels."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeGroup:
    """Nodes that admission need not tell apart: one class, the same taints, the same labels as far as they tell.

    Compared by identity: there is one for all nodes of a NodeGroupKey.
    """

    node_class: NodeClass
    taints: tuple[Taint, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()

    def label(self, key: str) -> str | None:
        """Read a label that tells of GPUs."""
        return next((value for name, value in self.labels if name == key), None)


@dataclass(frozen=True, slots=True, eq=False)
class FleetFacts:
    """What admission knows of the cluster; compared by identity, so that what follows from it can be kept.

    `runtime_classes`: the node selector of each; None where they could not be listed. `provisioners`: dialects that
    some node speaks, with or without GPUs. `pools`: labels of node pools on nodes that speak no dialect; their pools
    may bring nodes whose labels nobody here knows. `free`: units of each GPU resource on nodes of a group, a live view.
    """

    node_groups: tuple[NodeGroup, ...] = ()
    runtime_classes: Mapping[str, Mapping[str, str]] | None = None
    provisioners: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    free: Mapping[tuple[NodeGroup, str], int] = field(default_factory=dict)


def node_group_key(node: Node, knowledge: Knowledge) -> NodeGroupKey | None:
    """Say which kind of GPU node it is; None for one without GPUs."""
    if not node.has_gpus:
        return None
    told = tuple((key, node.labels[key]) for key in telling_keys(knowledge) if key in node.labels)
    return (node.node_class, node.taints, told)


def fleet_of(
    nodes: Iterable[Node], runtime_classes: Mapping[str, Mapping[str, str]] | None, knowledge: Knowledge
) -> FleetFacts:
    """Sum up nodes at once, as the state does one by one."""
    kinds: dict[NodeGroupKey, NodeGroup] = {}
    free: dict[tuple[NodeGroup, str], int] = {}
    provisioners: set[str] = set()
    groups: set[str] = set()
    for node in nodes:
        spoken, unspoken = words_of(node.labels, knowledge)
        provisioners.update(spoken)
        groups.update(unspoken)
        key = node_group_key(node, knowledge)
        if key is not None:
            group = kinds.setdefault(key, NodeGroup(*key))
            for resource, units in node.free.units.items():
                free[group, resource] = free.get((group, resource), 0) + max(0, units)
    return FleetFacts(tuple(kinds.values()), runtime_classes, tuple(sorted(provisioners)), tuple(sorted(groups)), free)


def words_of(labels: Mapping[str, str], knowledge: Knowledge) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Give the dialects that a node speaks, and where it speaks none the labels that show its cloud's node group."""
    spoken = knowledge.clouds.spoken(labels)
    return spoken, () if spoken else tuple(key for key in knowledge.group_keys if key in labels)


@lru_cache(maxsize=4)
def telling_keys(knowledge: Knowledge) -> tuple[str, ...]:
    """List every label key that affinity may use."""
    clouds = (key for dialect in knowledge.clouds.dialects for key in dialect.telling())
    return tuple(dict.fromkeys((*GFD_KEYS, *STATE_KEYS, *clouds)))


@lru_cache(maxsize=256)
def serving(demand: Demand, fleet: FleetFacts) -> tuple[NodeGroup, ...]:
    """List the kinds of nodes that could serve a demand, now or with other pods gone."""
    verdicts: dict[int, Reason | None] = {}
    for group in fleet.node_groups:
        key = id(group.node_class)
        if key not in verdicts:
            verdicts[key] = judge_class(demand, group.node_class)
    return tuple(group for group in fleet.node_groups if verdicts[id(group.node_class)] is None)
