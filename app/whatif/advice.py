# SPDX-License-Identifier: Apache-2.0
"""Advice on MIG: a layout of idle GPUs for the pods that wait for slices, as mig-parted configurations.

Only nodes without pods get a new layout, so that no pod is evicted, and of them only as many GPUs as are needed:
mig-parted leaves GPUs alone that no `devices` field names (NVIDIA/mig-parted, WalkSelectedMigConfigForEachGPU). The
rest of a GPU with a new layout becomes slices in the mix of what all pods ask for.

The result is exact where every pod asks for one slice: each kind of node by itself, every pod that can be placed is
placed, on the fewest GPUs of a kind. Pods of several slices, which need one node, are placed first fit, largest first.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.knowledge.mig_geometry import Geometry, GPULayout, Instance, place_instances
from app.knowledge.mig_profiles import profile_of
from app.knowledge.tables import Knowledge
from app.nodes.model import Node, NodeClass
from app.placement.engine import class_for_demand, judge_class
from app.whatif.mig_relayout import gpus_of, with_layout
from app.whatif.placing_in_turn import GPUPod, place_pod

CONFIG = "usher"
"""Prefix of the configurations' names, before a number; they are values of the node label nvidia.com/mig.config."""


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """One node's new layout. `gpus` are profiles by GPU index; none: unchanged. `pods` are those that it is for."""

    node: str
    product: str
    config: str
    gpus: tuple[tuple[str, ...], ...]
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Advice:
    """A layout for the waiting pods.

    `fitting` are pods for which existing slices suffice, `unplaced` pods without a place. `configuration` is the
    document for mig-parted; empty where nothing changes.
    """

    layouts: tuple[NodeLayout, ...]
    fitting: tuple[str, ...]
    unplaced: tuple[str, ...]
    configuration: Mapping[str, Any]


@dataclass(slots=True)
class _IdleNodes:
    """Idle nodes of one kind. `gpus` is the number of GPUs per node, `taken` the instances on every GPU so far.

    `pods` are the pods placed on a node, by its index.
    """

    geometry: Geometry
    nodes: tuple[Node, ...]
    gpus: int
    taken: list[list[Instance]] = field(default_factory=list)
    pods: dict[int, list[GPUPod]] = field(default_factory=dict)

    def layouts(self, first: int = 0, last: int | None = None) -> list[GPULayout]:
        """Return the layouts of a range of GPUs as they are now."""
        return [GPULayout(str(index), self.geometry, tuple(instances)) for index, instances in enumerate(self.taken)][
            first:last
        ]


def profiles_of(pod: GPUPod) -> tuple[str, ...]:
    """List the MIG profiles that a pod asks for by name, one per slice; empty where it asks for anything else."""
    profiles = [(profile_of(resource), units) for resource, units in pod.demand.resources]
    if any(profile is None for profile, _ in profiles):
        return ()
    return tuple(profile for profile, units in profiles if profile for _ in range(units))


def advise_layout(
    nodes: Mapping[str, Node], idle: Sequence[str], pods: Sequence[GPUPod], knowledge: Knowledge
) -> Advice:
    """Find a layout of idle nodes for waiting pods.

    `idle` names the GPU nodes without pods. `pods` are the waiting pods, in the order in which they are placed, and
    the running ones, whose mix is expected again.
    """
    mix = Counter(profile for pod in pods for profile in profiles_of(pod))
    queue = [pod for pod in pods if profiles_of(pod) and not pod.node]
    nodes_left = {name: node for name, node in nodes.items() if node.has_gpus}
    fitting = [pod for pod in queue if place_pod(pod, nodes_left)]
    waiting = [pod for pod in queue if pod not in fitting]
    used = {name for name in idle if nodes_left[name] is not nodes[name]}
    layouts: list[NodeLayout] = []
    for idle_nodes in _idle_by_kind([nodes[name] for name in sorted(idle) if name not in used], knowledge):
        candidates = [pod for pod in waiting if _serves(idle_nodes, pod, knowledge)]
        placed = _pack(idle_nodes, candidates)
        waiting = [pod for pod in waiting if pod not in placed]
        layouts += _node_layouts(idle_nodes, mix, knowledge)
    named_layouts, configuration = _with_configurations(layouts)
    return Advice(
        layouts=tuple(named_layouts),
        fitting=tuple(pod.name for pod in fitting),
        unplaced=tuple(pod.name for pod in waiting),
        configuration=configuration,
    )


def _idle_by_kind(idle: Sequence[Node], knowledge: Knowledge) -> list[_IdleNodes]:
    """Group idle nodes that can get MIG slices by kind, GPUs of less memory first, so that large ones stay whole."""
    kinds: dict[tuple[NodeClass, int], list[Node]] = {}
    for node in idle:
        geometry = knowledge.geometry.get(node.node_class.product or "")
        if geometry is not None and not node.node_class.dra_resources:
            kinds.setdefault((node.node_class, gpus_of(node.node_class, geometry, knowledge)), []).append(node)
    groups = [
        _IdleNodes(
            knowledge.geometry[node_class.product or ""],
            tuple(nodes_of_kind),
            gpus,
            [[] for _ in range(gpus * len(nodes_of_kind))],
        )
        for (node_class, gpus), nodes_of_kind in kinds.items()
    ]
    return sorted(groups, key=lambda idle_nodes: (_memory(idle_nodes, knowledge), idle_nodes.nodes[0].name))


def _memory(idle_nodes: _IdleNodes, knowledge: Knowledge) -> int:
    row = knowledge.products.by_form.get(idle_nodes.nodes[0].node_class.product or "")
    return row.memory_mib or 0 if row else 0


def _serves(idle_nodes: _IdleNodes, pod: GPUPod, knowledge: Knowledge) -> bool:
    """Tell whether a node of the kind, with slices for the pod alone, could serve it."""
    profiles = profiles_of(pod)
    if any(profile not in idle_nodes.geometry.slots for profile in profiles):
        return False
    node = with_layout(idle_nodes.nodes[0], [profiles, *[()] * (idle_nodes.gpus - 1)], knowledge)
    return judge_class(pod.demand, class_for_demand(pod.demand, node)) is None


def _pack(idle_nodes: _IdleNodes, pods: Sequence[GPUPod]) -> list[GPUPod]:
    """Place pods on nodes of one kind; returns those that have a place."""
    several = sorted((pod for pod in pods if len(profiles_of(pod)) > 1), key=lambda pod: -len(profiles_of(pod)))
    placed = [pod for pod in several if _place_together(idle_nodes, pod)]
    single = [pod for pod in pods if len(profiles_of(pod)) == 1]
    chosen = _largest_fitting(single, lambda some: _fits(idle_nodes, some, len(idle_nodes.taken)))
    return placed + _place_singly(idle_nodes, chosen)


def _place_together(idle_nodes: _IdleNodes, pod: GPUPod) -> bool:
    """Place all slices of a pod on the first node that has room for them."""
    for number in range(len(idle_nodes.nodes)):
        first = number * idle_nodes.gpus
        placements = place_instances(idle_nodes.layouts(first, first + idle_nodes.gpus), profiles_of(pod))
        if placements is not None:
            for profile, place in zip(profiles_of(pod), placements, strict=True):
                idle_nodes.taken[first + place.gpu].append(Instance(profile, place.start))
            idle_nodes.pods.setdefault(number, []).append(pod)
            return True
    return False


def _largest_fitting(pods: Sequence[GPUPod], fit: Callable[[Sequence[GPUPod]], bool]) -> list[GPUPod]:
    """Choose as many pods as fit: all of them, else one after another in their order."""
    if fit(pods):
        return list(pods)
    chosen: list[GPUPod] = []
    for pod in pods:
        if fit([*chosen, pod]):
            chosen.append(pod)
    return chosen


def _fits(idle_nodes: _IdleNodes, pods: Sequence[GPUPod], gpus: int) -> bool:
    return place_instances(idle_nodes.layouts(0, gpus), [profiles_of(pod)[0] for pod in pods]) is not None


def _place_singly(idle_nodes: _IdleNodes, pods: Sequence[GPUPod]) -> list[GPUPod]:
    """Place pods of one slice each on the fewest GPUs of the kind."""
    if not pods:
        return []
    least = next(count for count in range(1, len(idle_nodes.taken) + 1) if _fits(idle_nodes, pods, count))
    placements = place_instances(idle_nodes.layouts(0, least), [profiles_of(pod)[0] for pod in pods]) or ()
    for pod, place in zip(pods, placements, strict=True):
        idle_nodes.taken[place.gpu].append(Instance(profiles_of(pod)[0], place.start))
        idle_nodes.pods.setdefault(place.gpu // idle_nodes.gpus, []).append(pod)
    return list(pods)


def fill_gpu(geometry: Geometry, profiles: tuple[str, ...], mix: Mapping[str, int]) -> tuple[str, ...]:
    """Add instances to a GPU's new layout until no profile of the mix fits any more.

    The profile is chosen by the highest averages of the mix (D'Hondt), of equal ones the larger. Start slices do not
    matter here: mig-parted takes counts and finds the starts itself.
    """
    while fitting := [
        name for name in mix if name in geometry.slots and geometry.find_starts((*profiles, name)) is not None
    ]:
        averages = {name: (mix[name] / (profiles.count(name) + 1), geometry.slots[name].length) for name in fitting}
        profiles += (max(sorted(fitting), key=averages.__getitem__),)
    return tuple(sorted(profiles))


def _node_layouts(idle_nodes: _IdleNodes, mix: Mapping[str, int], knowledge: Knowledge) -> Iterator[NodeLayout]:
    row = knowledge.products.by_form.get(idle_nodes.nodes[0].node_class.product or "")
    for number, pods in sorted(idle_nodes.pods.items()):
        taken = idle_nodes.taken[number * idle_nodes.gpus : (number + 1) * idle_nodes.gpus]
        new_profiles = (tuple(instance.profile for instance in gpu) for gpu in taken)
        gpus = tuple(fill_gpu(idle_nodes.geometry, new, mix) if new else () for new in new_profiles)
        names = tuple(pod.name for pod in pods)
        yield NodeLayout(idle_nodes.nodes[number].name, row.label if row else "", "", gpus, names)


def _with_configurations(layouts: Sequence[NodeLayout]) -> tuple[list[NodeLayout], dict[str, Any]]:
    """Name the configurations of the layouts and write them; equal layouts share one."""
    names: dict[tuple[tuple[str, ...], ...], str] = {}
    named_layouts = []
    for layout in layouts:
        name = names.setdefault(layout.gpus, f"{CONFIG}-{len(names) + 1}")
        named_layouts.append(NodeLayout(layout.node, layout.product, name, layout.gpus, layout.pods))
    configs = {name: list(_devices(gpus)) for gpus, name in names.items()}
    return named_layouts, {"version": "v1", "mig-configs": configs} if configs else {}


def _devices(gpus: tuple[tuple[str, ...], ...]) -> Iterator[dict[str, Any]]:
    """Write the GPUs of a node that change as mig-parted does (NVIDIA/mig-parted api/spec/v1), equal ones together."""
    indices_by_profiles: dict[tuple[str, ...], list[int]] = {}
    for index, profiles in enumerate(gpus):
        if profiles:
            indices_by_profiles.setdefault(profiles, []).append(index)
    for profiles, indices in indices_by_profiles.items():
        counts = {_mig_parted_name(profile): profiles.count(profile) for profile in profiles}
        yield {"devices": indices, "mig-enabled": True, "mig-devices": counts}


def _mig_parted_name(profile: str) -> str:
    """Write a profile as mig-parted does: a plus where resource names have a second dot."""
    head, dot, rest = profile.partition("gb")
    return head + dot + rest.replace(".", "+", 1)
