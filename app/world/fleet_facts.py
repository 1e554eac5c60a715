# SPDX-License-Identifier: Apache-2.0
"""What admission knows of the cluster: groups of GPU nodes, free units, RuntimeClasses, label dialects."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from app.knowledge.tables import Knowledge
from app.kube.objects import RuntimeClass
from app.nodes.conditions import DRIVER, MIG_STATE, OLD_DRIVER, PLUGIN, PRODUCT, SHARING, UPGRADE_STATE
from app.nodes.model import Node, NodeClass
from app.placement.engine import judge_class
from app.policy.demand import Demand
from app.policy.needs import WITH_FACT
from app.values.reasons import Reason

Taint = tuple[str, str, str]
"""(key, value, effect)."""

GFD_KEYS = (
    PRODUCT, SHARING, f"{DRIVER[0]}.major", f"{OLD_DRIVER[0]}.major", *(key for _, one in WITH_FACT for key in one.keys)
)  # fmt: skip
"""Labels of GPU Feature Discovery that node affinity may name for a pod's needs."""
STATE_KEYS = (MIG_STATE, UPGRADE_STATE, PLUGIN)
"""Labels of MIG Manager and of the GPU Operator that name a change in progress on a node."""


NodeGroupKey = tuple[NodeClass, tuple[Taint, ...], tuple[tuple[str, str], ...]]
"""What distinguishes one group of nodes from another: node class, taints, labels."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeGroup:
    """Nodes that are alike for admission: one node class, the same taints, and the same values of affinity's labels.

    Compared by identity: there is one NodeGroup for all nodes of a NodeGroupKey.
    """

    node_class: NodeClass
    taints: tuple[Taint, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()

    def label(self, key: str) -> str | None:
        """Return the value of one of the labels that affinity may name, or None."""
        return next((value for name, value in self.labels if name == key), None)


@dataclass(frozen=True, slots=True, eq=False)
class FleetFacts:
    """What admission knows of the cluster; compared by identity, so that results can be cached by it.

    `runtime_classes` are the RuntimeClasses by name, or None where they could not be listed.
    `provisioners` are the label dialects that some node carries, with or without GPUs.
    `pools` are the node pool labels on nodes of no dialect that an autoscaler knows before a node exists; such a pool
    may bring nodes with labels unknown here.
    `selectable` are the only label keys that the platform of all nodes lets pods select by, None without such a rule.
    `free` are the free units of a GPU resource on the nodes of a group, `counts` the nodes of a group; both
    mappings are live views.
    """

    node_groups: tuple[NodeGroup, ...] = ()
    runtime_classes: Mapping[str, RuntimeClass] | None = None
    provisioners: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    free: Mapping[tuple[NodeGroup, str], int] = field(default_factory=dict)
    counts: Mapping[NodeGroup, int] = field(default_factory=dict)
    selectable: frozenset[str] | None = None


def node_group_key(node: Node, knowledge: Knowledge) -> NodeGroupKey | None:
    """Return the key of the group that a GPU node belongs to; None for a node without GPUs."""
    if not node.has_gpus:
        return None
    own = node.labels
    labels = tuple([(key, own[key]) for key in affinity_label_keys(knowledge) if key in own])
    return (node.node_class, node.taints, labels)


def fleet_facts_of(
    nodes: Iterable[Node], runtime_classes: Mapping[str, RuntimeClass] | None, knowledge: Knowledge
) -> FleetFacts:
    """Build the facts from all nodes at once; the cluster state keeps them up to date node by node."""
    groups: dict[NodeGroupKey, NodeGroup] = {}
    free: dict[tuple[NodeGroup, str], int] = {}
    counts: dict[NodeGroup, int] = {}
    provisioners: set[str] = set()
    pools: set[str] = set()
    platforms: set[frozenset[str] | None] = set()
    for node in nodes:
        platforms.add(knowledge.clouds.selectable(node.name))
        dialects, pool_labels = label_dialects_of(node.labels, knowledge)
        provisioners.update(dialects)
        pools.update(pool_labels)
        key = node_group_key(node, knowledge)
        if key is not None:
            group = groups.setdefault(key, NodeGroup(*key))
            counts[group] = counts.get(group, 0) + 1
            for resource, units in node.free.units.items():
                free[group, resource] = free.get((group, resource), 0) + max(0, units)
    dialects, labels = tuple(sorted(provisioners)), tuple(sorted(pools))
    selectable = selectable_on(platforms)
    return FleetFacts(tuple(groups.values()), runtime_classes, dialects, labels, free, counts, selectable)


def selectable_on(platforms: Collection[frozenset[str] | None]) -> frozenset[str] | None:
    """List the only keys that pods may select by; None unless all nodes are of one platform that has such a rule."""
    return next(iter(platforms)) if len(platforms) == 1 else None


def label_dialects_of(labels: Mapping[str, str], knowledge: Knowledge) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the label dialects that a node carries, and if none is on templates, its labels that name a node pool."""
    dialects = knowledge.clouds.dialects_of(labels)
    known_before = any(name in knowledge.clouds.on_templates() for name in dialects)
    return dialects, () if known_before else tuple(key for key in knowledge.group_keys if key in labels)


@lru_cache(maxsize=4)
def affinity_label_keys(knowledge: Knowledge) -> tuple[str, ...]:
    """List every label key that node affinity may use."""
    clouds = (key for dialect in knowledge.clouds.dialects for key in dialect.gpu_label_keys())
    vendors = (key for row in knowledge.clouds.vendors for key in (*row.product_keys, *row.memory_keys))
    return tuple(dict.fromkeys((*GFD_KEYS, *STATE_KEYS, *clouds, *vendors)))


@lru_cache(maxsize=256)
def fitting_groups(demand: Demand, fleet: FleetFacts) -> tuple[NodeGroup, ...]:
    """List the node groups that could serve a demand, now or once other pods are gone."""
    verdicts: dict[int, Reason | None] = {}
    for group in fleet.node_groups:
        key = id(group.node_class)
        if key not in verdicts:
            verdicts[key] = judge_class(demand, group.node_class)
    return tuple(group for group in fleet.node_groups if verdicts[id(group.node_class)] is None)
