# SPDX-License-Identifier: Apache-2.0
"""Another MIG layout before it is made: what nodes would offer, whom that evicts, who has a place then (F64)."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.knowledge.geometry import Geometry
from app.knowledge.mig_profiles import RESOURCE_PREFIX, parse_profile
from app.knowledge.tables import Knowledge
from app.nodes.model import Node, NodeClass, Sharing
from app.values.errors import BadInput
from app.whatif.mig_fragmentation import WHOLE, fragmentation
from app.whatif.placing_in_turn import GPUPod, seat, units_of

SINGLE, MIXED = "single", "mixed"
"""Strategies of the device plugin: slices are nvidia.com/gpu, or have names of their own."""
BALANCED, OFF = "all-balanced", "all-disabled"
"""mig-parted's names for a mixed layout, and for none (deployments/systemd/config-default.yaml)."""

GPULayout = Callable[[Geometry], tuple[str, ...]]
"""From a product's geometry to the profiles on each of its GPUs. Raises BadInput where they do not fit."""


@dataclass(frozen=True, slots=True)
class NodeRelayout:
    """One node. `before`, `after`: units by resource. `evicts`: pods that hold GPUs there. `problem`: else empty."""

    node: str
    before: Mapping[str, int]
    after: Mapping[str, int]
    evicts: tuple[str, ...]
    problem: str


@dataclass(frozen=True, slots=True)
class MIGRelayout:
    """What a layout comes to. Of the evicted and the waiting pods those that gain a place, that lose theirs, that wait
    as before.

    `fragmentation_before`, `fragmentation_after`: of the chosen nodes, once the pods have their places (see
    whatif/fragmentation.py), by the mix of what all pods ask; in [0, 1], of three digits.
    """

    nodes: tuple[NodeRelayout, ...]
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    waiting: tuple[str, ...]
    fragmentation_before: float
    fragmentation_after: float


def parse_layout(text: str) -> GPULayout:
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
    """Give mig-parted's `all-balanced`: two slices of one compute slice, one of two, and one of three where seven are.

    Of the profiles of so many compute slices it takes the one with the least memory, without media engines.

    Raises BadInput for a product that cannot be sliced so.
    """
    plain = {
        slot.compute: slot
        for slot in sorted(geometry.slots.values(), key=lambda slot: (-slot.length, -len(slot.profile)))
    }
    parts = (1, 1, 2, 3) if geometry.compute_total == SEVEN else (1, 1, 2)
    if not plain.keys() >= set(parts):
        raise BadInput(f"{BALANCED}: the product has no slices of {', '.join(map(str, sorted(set(parts))))}")
    return _checked(geometry, tuple(plain[part].profile for part in parts))


SEVEN = 7
"""Compute slices of A100, H100 and their like; A30 and RTX PRO 6000 have four."""


def most_of(geometry: Geometry, profile: str) -> int:
    """Say how many instances of a profile fit on one GPU.

    Raises BadInput where the product has no such profile.
    """
    _checked(geometry, (profile,))
    count = 1
    while geometry.places((profile,) * (count + 1)) is not None:
        count += 1
    return count


def _checked(geometry: Geometry, profiles: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [each for each in profiles if each not in geometry.slots]
    if unknown:
        raise BadInput(f"no profile {unknown[0]}, wants one of {', '.join(geometry.slots)}")
    if geometry.places(profiles) is None:
        raise BadInput(f"{' + '.join(profiles)} do not fit on one GPU")
    return profiles


def gpus_of(known: NodeClass, geometry: Geometry) -> int:
    """Count a node's GPUs; under strategy single its labels count slices."""
    count = known.labelled or known.capacity(WHOLE)
    if known.sharing is Sharing.MIG and known.mig_profile and known.mig_profile in geometry.slots:
        return max(1, count // most_of(geometry, known.mig_profile))
    return count


def carved(known: NodeClass, gpus: Sequence[tuple[str, ...]], knowledge: Knowledge) -> NodeClass:
    """Give a node's facts as they would be with these profiles on its GPUs.

    Strategy single stays only where all slices are of one profile; the device plugin would else refuse the layout.
    """
    counts = Counter(profile for profiles in gpus for profile in profiles)
    row = knowledge.products.by_form.get(known.product or "")
    memory = row.memory_mib if row else known.memory_mib
    whole = sum(not profiles for profiles in gpus)
    fresh = replace(known, sharing=Sharing.Exclusive, mig_profile=None, mig_invalid=False, memory_mib=memory,
                    replicas=1, shares=(), shared_slices=frozenset(), slice_memory=(), memory_at_most=None, lacking=(),
                    withdrawn=0, stale=False, budgets=(),
                    labelled=len(gpus), mig_state="success" if counts else known.mig_state)  # fmt: skip
    if known.mig_strategy == SINGLE and len(counts) == 1 and not whole:
        ((profile, count),) = counts.items()
        size = knowledge.mig.size(known.product, profile)
        return replace(fresh, sharing=Sharing.MIG, mig_profile=profile, offered=((WHOLE, count),), labelled=count,
                       memory_mib=size.memory_mib if size else None)  # fmt: skip
    slices = [(f"{RESOURCE_PREFIX}{profile}", count) for profile, count in counts.items()]
    strategy = MIXED if counts else known.mig_strategy
    return replace(fresh, offered=tuple(sorted([(WHOLE, whole), *slices])), mig_strategy=strategy)


def with_layout(node: Node, gpus: Sequence[tuple[str, ...]], knowledge: Knowledge) -> Node:
    """Give a node, empty of pods, with these profiles on its GPUs."""
    made = carved(node.node_class, gpus, knowledge)
    return replace(node, node_class=made, free=replace(node.free, units=dict(made.offered), memory={}))


def reshape(
    nodes: Mapping[str, Node],
    chosen: Iterable[str],
    pods: Sequence[GPUPod],
    layout: GPULayout,
    knowledge: Knowledge,
) -> MIGRelayout:
    """Tell what a layout on every GPU of the chosen nodes changes."""
    there: dict[str, list[GPUPod]] = {}
    for pod in pods:
        there.setdefault(pod.node, []).append(pod)
    after, rows = dict(nodes), []
    for name in sorted(chosen):
        made, problem = _reshaped(nodes[name], layout, knowledge)
        after[name] = made
        evicts = tuple(sorted(pod.name for pod in there.get(name, ()))) if not problem else ()
        offers = [dict(each.node_class.offered) for each in (nodes[name], made)]
        rows.append(NodeRelayout(name, offers[0], offers[1], evicts, problem))
    evicted = [pod for row in rows if row.evicts for pod in there[row.node]]
    queue = _largest_first(there.get("", ()))
    moving = [*_largest_first(evicted), *queue]
    (stayed, left_before), (moved, left_after) = _seated(queue, nodes), _seated(moving, after)
    was, now = {pod.uid for pod in (*evicted, *stayed)}, {pod.uid for pod in moved}
    asked = asked_of(pods)

    def named(keep: Callable[[str], bool]) -> tuple[str, ...]:
        return tuple(sorted(pod.name for pod in moving if keep(pod.uid)))

    def fragmented(left: Mapping[str, Node]) -> float:
        return round(fragmentation([left[row.node] for row in rows], asked, knowledge), 3)

    return MIGRelayout(
        nodes=tuple(rows),
        gained=named(lambda uid: uid in now - was),
        lost=named(lambda uid: uid in was - now),
        waiting=named(lambda uid: uid not in was | now),
        fragmentation_before=fragmented(left_before),
        fragmentation_after=fragmented(left_after),
    )


def _reshaped(node: Node, layout: GPULayout, knowledge: Knowledge) -> tuple[Node, str]:
    """Give a node with the layout; one that cannot have it stays as it is, and the problem is told."""
    known = node.node_class
    geometry = knowledge.geometry.get(known.product or "")
    if geometry is None:
        return node, "its product has no MIG, or its geometry is not known"
    if known.by_dra:
        return node, "DRA carves its GPUs on demand"
    try:
        return with_layout(node, [layout(geometry)] * gpus_of(known, geometry), knowledge), ""
    except BadInput as error:
        return node, str(error)


def _largest_first(pods: Iterable[GPUPod]) -> list[GPUPod]:
    return sorted(pods, key=lambda pod: (-units_of([pod]), pod.name))


def asked_of(pods: Iterable[GPUPod]) -> Mapping[str, int]:
    """Sum up what pods ask, by resource: the mix that is expected of those to come."""
    asked: Counter[str] = Counter()
    for pod in pods:
        asked.update(dict(pod.demand.resources))
    return asked


def _seated(pods: Iterable[GPUPod], nodes: Mapping[str, Node]) -> tuple[list[GPUPod], Mapping[str, Node]]:
    """Seat pods one after another; gives those that have a place, and what it leaves of the nodes."""
    left = {name: node for name, node in nodes.items() if node.has_gpus}
    return [pod for pod in pods if seat(pod, left)], left
