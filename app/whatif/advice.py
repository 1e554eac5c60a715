# SPDX-License-Identifier: Apache-2.0
"""Advice on MIG: a layout of idle GPUs for the pods that wait for slices, in mig-parted's words (F64).

Only nodes without pods are cut, so that nobody is evicted, and of them only the GPUs that it takes: mig-parted leaves a
GPU alone that no `devices` name (NVIDIA/mig-parted, WalkSelectedMigConfigForEachGPU). What is left over on a GPU that
is cut becomes slices in the mix of what all pods ask.

Exact where every pod asks for one slice: kinds of nodes apart, all that can be seated is, on no more GPUs of a kind
than it takes. Pods of several slices, which need one node, are seated first fit, the largest first.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.knowledge.geometry import Geometry, Instance
from app.knowledge.mig_placements import GPULayout, places
from app.knowledge.mig_profiles import profile_of
from app.knowledge.tables import Knowledge
from app.nodes.model import Node, NodeClass
from app.placement.engine import facts, judge_class
from app.whatif.mig_relayout import gpus_of, with_layout
from app.whatif.placing_in_turn import GPUPod, seat

CONFIG = "usher"
"""Name of the configurations, with a number: the value of the node label nvidia.com/mig.config."""


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """One node's new layout. `gpus`: profiles by GPU index, none where it stays as it is. `pods`: whom it is for."""

    node: str
    product: str
    config: str
    gpus: tuple[tuple[str, ...], ...]
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Advice:
    """A layout for the queue. `fitting`: pods that slices there already would do for. `unplaced`: pods left.

    `configuration`: the document for mig-parted; empty where there is nothing to change.
    """

    layouts: tuple[NodeLayout, ...]
    fitting: tuple[str, ...]
    unplaced: tuple[str, ...]
    configuration: Mapping[str, Any]


@dataclass(slots=True)
class _Bench:
    """Idle nodes of one kind, with what lies on their GPUs so far. `sure`: instances that pods have for good."""

    geometry: Geometry
    nodes: tuple[Node, ...]
    gpus: int
    taken: list[list[Instance]] = field(default_factory=list)
    pods: dict[int, list[GPUPod]] = field(default_factory=dict)

    def layouts(self, first: int = 0, last: int | None = None) -> list[GPULayout]:
        """Give the GPUs from one to another as they lie now."""
        return [GPULayout(str(index), self.geometry, tuple(each)) for index, each in enumerate(self.taken)][first:last]


def slices_of(pod: GPUPod) -> tuple[str, ...]:
    """List the profiles that a pod asks for by name, one for each slice; empty where it asks for anything else."""
    found = [(profile_of(resource), units) for resource, units in pod.demand.resources]
    if any(profile is None for profile, _ in found):
        return ()
    return tuple(profile for profile, units in found if profile for _ in range(units))


def advise(nodes: Mapping[str, Node], idle: Sequence[str], pods: Sequence[GPUPod], knowledge: Knowledge) -> Advice:
    """Find a layout of idle nodes for waiting pods. `idle`: GPU nodes that hold nobody.

    `pods`: those that wait, first comes first, and those that run, whose mix is expected again.
    """
    asked = Counter(profile for pod in pods for profile in slices_of(pod))
    queue = [pod for pod in pods if slices_of(pod) and not pod.node]
    left = {name: node for name, node in nodes.items() if node.has_gpus}
    fitting = [pod for pod in queue if seat(pod, left)]
    waiting = [pod for pod in queue if pod not in fitting]
    used = {name for name in idle if left[name] is not nodes[name]}
    layouts: list[NodeLayout] = []
    for bench in _benches([nodes[name] for name in sorted(idle) if name not in used], knowledge):
        able = [pod for pod in waiting if _serves(bench, pod, knowledge)]
        seated = _pack(bench, able)
        waiting = [pod for pod in waiting if pod not in seated]
        layouts += _written(bench, asked, knowledge)
    named, configuration = _configured(layouts)
    return Advice(
        layouts=tuple(named),
        fitting=tuple(pod.name for pod in fitting),
        unplaced=tuple(pod.name for pod in waiting),
        configuration=configuration,
    )


def _benches(idle: Sequence[Node], knowledge: Knowledge) -> list[_Bench]:
    """Group idle nodes that can be carved by kind, GPUs of less memory first: large ones stay whole."""
    kinds: dict[tuple[NodeClass, int], list[Node]] = {}
    for node in idle:
        geometry = knowledge.geometry.get(node.node_class.product or "")
        if geometry is not None and not node.node_class.by_dra:
            kinds.setdefault((node.node_class, gpus_of(node.node_class, geometry)), []).append(node)
    made = [
        _Bench(knowledge.geometry[known.product or ""], tuple(several), gpus, [[] for _ in range(gpus * len(several))])
        for (known, gpus), several in kinds.items()
    ]
    return sorted(made, key=lambda bench: (_memory(bench, knowledge), bench.nodes[0].name))


def _memory(bench: _Bench, knowledge: Knowledge) -> int:
    row = knowledge.products.by_form.get(bench.nodes[0].node_class.product or "")
    return row.memory_mib or 0 if row else 0


def _serves(bench: _Bench, pod: GPUPod, knowledge: Knowledge) -> bool:
    """Tell whether a node of the kind, carved for the pod alone, could serve it."""
    wanted = slices_of(pod)
    if any(profile not in bench.geometry.slots for profile in wanted):
        return False
    made = with_layout(bench.nodes[0], [wanted, *[()] * (bench.gpus - 1)], knowledge)
    return judge_class(pod.demand, facts(pod.demand, made)) is None


def _pack(bench: _Bench, pods: Sequence[GPUPod]) -> list[GPUPod]:
    """Seat pods on a kind; gives those that have a place."""
    several = sorted((pod for pod in pods if len(slices_of(pod)) > 1), key=lambda pod: -len(slices_of(pod)))
    seated = [pod for pod in several if _seat_together(bench, pod)]
    single = [pod for pod in pods if len(slices_of(pod)) == 1]
    most = _most(single, lambda chosen: _fits(bench, chosen, len(bench.taken)))
    return seated + _seat_apart(bench, most)


def _seat_together(bench: _Bench, pod: GPUPod) -> bool:
    """Put all slices of a pod on the first node that has room for them."""
    for number in range(len(bench.nodes)):
        first = number * bench.gpus
        found = places(bench.layouts(first, first + bench.gpus), slices_of(pod))
        if found is not None:
            for profile, place in zip(slices_of(pod), found, strict=True):
                bench.taken[first + place.gpu].append(Instance(profile, place.start))
            bench.pods.setdefault(number, []).append(pod)
            return True
    return False


def _most(pods: Sequence[GPUPod], fit: Callable[[Sequence[GPUPod]], bool]) -> list[GPUPod]:
    """Choose as many as fit: all of them, else one after another in their order."""
    if fit(pods):
        return list(pods)
    chosen: list[GPUPod] = []
    for pod in pods:
        if fit([*chosen, pod]):
            chosen.append(pod)
    return chosen


def _fits(bench: _Bench, pods: Sequence[GPUPod], gpus: int) -> bool:
    return places(bench.layouts(0, gpus), [slices_of(pod)[0] for pod in pods]) is not None


def _seat_apart(bench: _Bench, pods: Sequence[GPUPod]) -> list[GPUPod]:
    """Put pods of one slice each on as few GPUs of the kind as they take."""
    if not pods:
        return []
    least = next(count for count in range(1, len(bench.taken) + 1) if _fits(bench, pods, count))
    found = places(bench.layouts(0, least), [slices_of(pod)[0] for pod in pods]) or ()
    for pod, place in zip(pods, found, strict=True):
        bench.taken[place.gpu].append(Instance(slices_of(pod)[0], place.start))
        bench.pods.setdefault(place.gpu // bench.gpus, []).append(pod)
    return list(pods)


def filled(geometry: Geometry, profiles: tuple[str, ...], asked: Mapping[str, int]) -> tuple[str, ...]:
    """Add instances to those of a GPU that is cut, until none of what is asked fits.

    In the mix of what is asked, by its highest averages (D'Hondt), of equal ones the larger. Starts do not matter:
    mig-parted takes counts, and finds them.
    """
    while fitting := [each for each in asked if each in geometry.slots and _fits_too(geometry, profiles, each)]:
        wants = {each: (asked[each] / (profiles.count(each) + 1), geometry.slots[each].length) for each in fitting}
        profiles += (max(sorted(fitting), key=wants.__getitem__),)
    return tuple(sorted(profiles))


def _fits_too(geometry: Geometry, profiles: tuple[str, ...], profile: str) -> bool:
    return geometry.places((*profiles, profile)) is not None


def _written(bench: _Bench, asked: Mapping[str, int], knowledge: Knowledge) -> Iterator[NodeLayout]:
    row = knowledge.products.by_form.get(bench.nodes[0].node_class.product or "")
    for number, pods in sorted(bench.pods.items()):
        taken = bench.taken[number * bench.gpus : (number + 1) * bench.gpus]
        cut = (tuple(each.profile for each in gpu) for gpu in taken)
        gpus = tuple(filled(bench.geometry, each, asked) if each else () for each in cut)
        names = tuple(pod.name for pod in pods)
        yield NodeLayout(bench.nodes[number].name, row.label if row else "", "", gpus, names)


def _configured(layouts: Sequence[NodeLayout]) -> tuple[list[NodeLayout], dict[str, Any]]:
    """Give the layouts the names of their configurations, and write those; equal ones share one."""
    names: dict[tuple[tuple[str, ...], ...], str] = {}
    named = []
    for each in layouts:
        name = names.setdefault(each.gpus, f"{CONFIG}-{len(names) + 1}")
        named.append(NodeLayout(each.node, each.product, name, each.gpus, each.pods))
    configs = {name: list(_devices(gpus)) for gpus, name in names.items()}
    return named, {"version": "v1", "mig-configs": configs} if configs else {}


def _devices(gpus: tuple[tuple[str, ...], ...]) -> Iterator[dict[str, Any]]:
    """Write the GPUs of a node that are cut as mig-parted does (NVIDIA/mig-parted api/spec/v1): alike ones together."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for index, profiles in enumerate(gpus):
        if profiles:
            alike.setdefault(profiles, []).append(index)
    for profiles, indices in alike.items():
        counts = {_parted(profile): profiles.count(profile) for profile in profiles}
        yield {"devices": indices, "mig-enabled": True, "mig-devices": counts}


def _parted(profile: str) -> str:
    """Write a profile as mig-parted does: resource names have a dot for its plus."""
    head, dot, rest = profile.partition("gb")
    return head + dot + rest.replace(".", "+", 1)
