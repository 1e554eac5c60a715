# SPDX-License-Identifier: Apache-2.0
"""Another MIG layout before it is made: what nodes would offer, which pods it evicts, where they would fit.

Fragmentation of MIG nodes is one number: the expected share of free capacity that the next pod cannot use. Capacity is
in memory slices, and the next pod follows the mix of demands: F of Weng et al., "Beware of Fragmentation" (USENIX ATC
'23, section 3), with slices instead of GPU shares.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.knowledge.mig_geometry import Geometry
from app.knowledge.mig_profiles import parse_profile, profile_of
from app.knowledge.tables import Knowledge
from app.nodes.model import Node, NodeClass, Sharing
from app.placement.mig_slices import distinct_profiles, usable_memory
from app.values.errors import BadInput
from app.whatif.placing_in_turn import GPUPod, gpu_units_of, place_pod, pods_by_node, shares_counters


def fragmented_share(nodes: Iterable[Node], mix: Mapping[str, int], knowledge: Knowledge) -> float:
    """Return the expected share of the free memory slices that the next requested unit cannot use, in [0, 1].

    0 means that any next unit can use all free slices, and is also the value where nothing is free; 1 means that it can
    use none. `mix` is the expected mix, as units by resource; where it is empty, each profile of the nodes' products
    is expected equally often. A slice that a device plugin offers serves its own profile only; on a GPU with DRA, what
    instances of the profile could still be created counts. Nodes of unknown geometry do not count.
    """
    nodes_with_geometry = [(node, geometry) for node in nodes if (geometry := _geometry(node, knowledge))]
    whole, mig_prefix = knowledge.families.mig_gpu, knowledge.families.mig_prefix
    weights = mix or {
        f"{mig_prefix}{slot.profile}": 1 for _, geometry in nodes_with_geometry for slot in distinct_profiles(geometry)
    }
    free = sum(_free(node, geometry, whole) for node, geometry in nodes_with_geometry)
    total = sum(weights.values())
    if not free or not total:
        return 0.0
    usable_slices = sum(
        weight * _usable(node, geometry, name, whole)
        for name, weight in weights.items()
        for node, geometry in nodes_with_geometry
    )
    return 1.0 - usable_slices / (free * total)


def _geometry(node: Node, knowledge: Knowledge) -> Geometry | None:
    return knowledge.geometry.get(node.node_class.product or "")


def _free(node: Node, geometry: Geometry, whole: str) -> int:
    if node.free.layouts is not None:
        occupied = (layout.geometry.occupancy(layout.taken) for layout in node.free.layouts)
        return sum(geometry.memory_total - gpu.taken_memory.bit_count() for gpu in occupied)
    return sum(_offered(node, geometry, name, whole) for name in node.free.units)


def _usable(node: Node, geometry: Geometry, resource: str, whole: str) -> int:
    """Count the free memory slices that units of a resource could use; `whole` is the resource of whole GPUs."""
    if node.free.layouts is None:
        return _offered(node, geometry, resource, whole)
    slot = geometry.slots.get(profile_of(resource) or "")
    occupied = (layout.geometry.occupancy(layout.taken) for layout in node.free.layouts)
    if resource == whole:
        return sum(geometry.memory_total for gpu in occupied if not gpu.taken_memory)
    return sum(usable_memory(slot, gpu.taken_memory, gpu.free_compute) for gpu in occupied) if slot else 0


def _offered(node: Node, geometry: Geometry, resource: str, whole: str) -> int:
    return max(0, node.free.units.get(resource, 0)) * _size(node.node_class, geometry, resource, whole)


def _size(node_class: NodeClass, geometry: Geometry, resource: str, whole: str) -> int:
    """Return the memory slices of one unit; 0 for a resource that is neither GPU nor slice, such as a share."""
    single = node_class.mig_profile if resource == whole and node_class.sharing is Sharing.MIG else None
    slot = geometry.slots.get(single or profile_of(resource) or "")
    if slot is not None and not resource.endswith(".shared"):
        return slot.length
    is_whole_gpu = resource == whole and node_class.sharing in (Sharing.Exclusive, Sharing.Unknown)
    return geometry.memory_total if is_whole_gpu else 0


SINGLE, MIXED = "single", "mixed"
"""MIG strategies of the device plugin: slices are offered as nvidia.com/gpu, or under names of their own."""
BALANCED, OFF = "all-balanced", "all-disabled"
"""mig-parted's names of a mixed layout, and of none (deployments/systemd/config-default.yaml)."""

CARVED = "DRA partitions its GPUs on demand"
PUBLISHED = "its layout is the devices that its ResourceSlices publish, and DRA does not change it"
"""Why a node with DRA gets no other layout: its GPUs have shared counters (KEP-4815), or they have none."""

LayoutOfProduct = Callable[[Geometry], tuple[str, ...]]
"""From a product's geometry to the profiles on each of its GPUs. It raises BadInput where they do not fit."""


@dataclass(frozen=True, slots=True)
class NodeRelayout:
    """One node. `before` and `after` are units by resource. `evicts` are its pods with GPUs. `problem` may be empty."""

    node: str
    before: Mapping[str, int]
    after: Mapping[str, int]
    evicts: tuple[str, ...]
    problem: str


@dataclass(frozen=True, slots=True)
class MIGRelayout:
    """The result of a layout: the evicted and waiting pods that gain a place, lose theirs, or wait as before.

    `fragmentation_before` and `fragmentation_after` are those of the chosen nodes once the pods have their places, by
    the mix of all pods' demands; in [0, 1], rounded to three digits.
    """

    nodes: tuple[NodeRelayout, ...]
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    waiting: tuple[str, ...]
    fragmentation_before: float
    fragmentation_after: float


def parse_layout(text: str) -> LayoutOfProduct:
    """Read `all-1g.10gb` (as many as fit), `all-balanced`, `all-disabled`, or `1g.10gb:2,3g.40gb:1`.

    Raises BadInput.
    """
    if text == OFF:
        return lambda _geometry: ()
    if text == BALANCED:
        return balanced
    if text.startswith("all-"):
        profile = _profile(text.removeprefix("all-"))
        return lambda geometry: (profile,) * most_of(geometry, profile)
    profiles: list[str] = []
    for part in text.split(","):
        name, _, count = part.strip().partition(":")
        if not count.isdecimal() or not 0 < int(count) < 100:
            raise BadInput(
                f"--layout: got {text[:60]!r}, wants all-1g.10gb, all-balanced, all-disabled or 1g.10gb:2,3g.40gb:1"
            )
        profiles += [_profile(name)] * int(count)
    return lambda geometry: _checked(geometry, tuple(profiles))


def _profile(text: str) -> str:
    profile, at_least = parse_profile(text)
    if at_least:
        raise BadInput(f"--layout: got {text[:40]!r}, wants a profile such as 1g.10gb")
    return profile


def balanced(geometry: Geometry) -> tuple[str, ...]:
    """Return mig-parted's `all-balanced` layout: two 1-slice profiles, one 2-slice, and of seven slices one 3-slice.

    Slices here are compute slices. Of several profiles it takes the one with the least memory, without media engines.

    Raises BadInput for a product without such profiles.
    """
    smallest = {
        slot.compute: slot
        for slot in sorted(geometry.slots.values(), key=lambda slot: (-slot.length, -len(slot.profile)))
    }
    sizes = (1, 1, 2, 3) if geometry.compute_total == COMPUTE_SLICES_OF_LARGE_GPUS else (1, 1, 2)
    if not smallest.keys() >= set(sizes):
        raise BadInput(f"{BALANCED}: the product has no slices of {', '.join(map(str, sorted(set(sizes))))}")
    return _checked(geometry, tuple(smallest[size].profile for size in sizes))


COMPUTE_SLICES_OF_LARGE_GPUS = 7
"""Compute slices of A100, H100 and similar GPUs; A30 and RTX PRO 6000 have four."""


def most_of(geometry: Geometry, profile: str) -> int:
    """Return how many instances of a profile fit on one GPU.

    Raises BadInput where the product has no such profile.
    """
    _checked(geometry, (profile,))
    count = 1
    while geometry.find_starts((profile,) * (count + 1)) is not None:
        count += 1
    return count


def _checked(geometry: Geometry, profiles: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [profile for profile in profiles if profile not in geometry.slots]
    if unknown:
        raise BadInput(f"no profile {unknown[0]}, wants one of {', '.join(geometry.slots)}")
    if geometry.find_starts(profiles) is None:
        raise BadInput(f"{' + '.join(profiles)} do not fit on one GPU")
    return profiles


def gpus_of(node_class: NodeClass, geometry: Geometry, knowledge: Knowledge) -> int:
    """Count a node's GPUs; under MIG strategy single its labels count slices."""
    count = node_class.labelled_gpus or node_class.capacity(knowledge.families.mig_gpu)
    if node_class.sharing is Sharing.MIG and node_class.mig_profile and node_class.mig_profile in geometry.slots:
        return max(1, count // most_of(geometry, node_class.mig_profile))
    return count


def node_class_with_layout(node_class: NodeClass, gpus: Sequence[tuple[str, ...]], knowledge: Knowledge) -> NodeClass:
    """Return a node's class as it would be with these profiles on its GPUs.

    Strategy single remains only where all slices are of one profile, since the device plugin refuses other layouts.
    """
    counts = Counter(profile for profiles in gpus for profile in profiles)
    row = knowledge.products.by_form.get(node_class.product or "")
    memory = row.memory_mib if row else node_class.memory_mib
    whole = sum(not profiles for profiles in gpus)
    gpu, mig_prefix = knowledge.families.mig_gpu, knowledge.families.mig_prefix
    without_mig = replace(node_class, sharing=Sharing.Exclusive, mig_profile=None, mig_invalid=False, memory_mib=memory,
                    replicas=1, shares=(), shared_slices=frozenset(), slice_memory=(), memory_at_most=None,
                    unhealthy_units=(), withdrawn=0, count_doubt=None, budgets=(),
                    labelled_gpus=len(gpus), mig_state="success" if counts else node_class.mig_state)  # fmt: skip
    if node_class.mig_strategy == SINGLE and len(counts) == 1 and not whole:
        ((profile, count),) = counts.items()
        size = knowledge.mig.size(node_class.product, profile)
        return replace(without_mig, sharing=Sharing.MIG, mig_profile=profile, offered=((gpu, count),),
                       labelled_gpus=count, memory_mib=size.memory_mib if size else None)  # fmt: skip
    slices = [(f"{mig_prefix}{profile}", count) for profile, count in counts.items()]
    strategy = MIXED if counts else node_class.mig_strategy
    return replace(without_mig, offered=tuple(sorted([(gpu, whole), *slices])), mig_strategy=strategy)


def with_layout(node: Node, gpus: Sequence[tuple[str, ...]], knowledge: Knowledge) -> Node:
    """Return a node without pods, with these profiles on its GPUs."""
    node_class = node_class_with_layout(node.node_class, gpus, knowledge)
    return replace(node, node_class=node_class, free=replace(node.free, units=dict(node_class.offered), memory={}))


def relayout(
    nodes: Mapping[str, Node],
    chosen: Iterable[str],
    pods: Sequence[GPUPod],
    layout: LayoutOfProduct,
    knowledge: Knowledge,
) -> MIGRelayout:
    """Compute the effect of a layout on every GPU of the chosen nodes."""
    pods_on = pods_by_node(pods, ("", *nodes))
    after, rows = dict(nodes), []
    for name in sorted(chosen):
        changed, problem = _with_new_layout(nodes[name], layout, knowledge)
        after[name] = changed
        evicts = tuple(sorted(pod.name for pod in pods_on[name])) if not problem else ()
        offers = [dict(node.node_class.offered) for node in (nodes[name], changed)]
        rows.append(NodeRelayout(name, offers[0], offers[1], evicts, problem))
    evicted = [pod for row in rows if row.evicts for pod in pods_on[row.node]]
    queue = _largest_first(pods_on[""])
    moving = [*_largest_first(evicted), *queue]
    (placed_before, left_before), (placed_after, left_after) = _place_all(queue, nodes), _place_all(moving, after)
    was, now = {pod.uid for pod in (*evicted, *placed_before)}, {pod.uid for pod in placed_after}
    mix = demand_mix(pods)

    def named(keep: Callable[[str], bool]) -> tuple[str, ...]:
        return tuple(sorted(pod.name for pod in moving if keep(pod.uid)))

    def fragmented(left: Mapping[str, Node]) -> float:
        return round(fragmented_share([left[row.node] for row in rows], mix, knowledge), 3)

    return MIGRelayout(
        nodes=tuple(rows),
        gained=named(lambda uid: uid in now - was),
        lost=named(lambda uid: uid in was - now),
        waiting=named(lambda uid: uid not in was | now),
        fragmentation_before=fragmented(left_before),
        fragmentation_after=fragmented(left_after),
    )


def _with_new_layout(node: Node, layout: LayoutOfProduct, knowledge: Knowledge) -> tuple[Node, str]:
    """Return a node with the layout, or the unchanged node and the problem."""
    node_class = node.node_class
    geometry = knowledge.geometry.get(node_class.product or "")
    if geometry is None:
        return node, "its product has no MIG, or its geometry is not known"
    if node_class.dra_resources or (node.devices is not None and not node_class.uses_device_plugin):
        return node, CARVED if shares_counters(node) else PUBLISHED
    try:
        return with_layout(node, [layout(geometry)] * gpus_of(node_class, geometry, knowledge), knowledge), ""
    except BadInput as error:
        return node, str(error)


def _largest_first(pods: Iterable[GPUPod]) -> list[GPUPod]:
    return sorted(pods, key=lambda pod: (-gpu_units_of([pod]), pod.name))


def demand_mix(pods: Iterable[GPUPod]) -> Mapping[str, int]:
    """Sum up what pods ask for, as units by resource: the mix that is expected of the next pods."""
    mix: Counter[str] = Counter()
    for pod in pods:
        mix.update(dict(pod.demand.resources))
    return mix


def _place_all(pods: Iterable[GPUPod], nodes: Mapping[str, Node]) -> tuple[list[GPUPod], Mapping[str, Node]]:
    """Place pods one after another; returns those that have a place, and the nodes with what is left."""
    nodes_left = {name: node for name, node in nodes.items() if node.has_gpus}
    return [pod for pod in pods if place_pod(pod, nodes_left)], nodes_left
