# SPDX-License-Identifier: Apache-2.0
"""Sizing: another slice than the one asked where the fleet has it not, the smallest that holds what the pod needs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.admission.affinity.mutator import REQUIRED, get, prefer
from app.admission.affinity.terms import NEED_WEIGHT
from app.admission.case import PodChange, ReviewedPod
from app.admission.fleet_facts import NodeGroup, serving, telling_keys
from app.admission.json_patch import Operation, apply, put
from app.admission.tolerations import tolerable
from app.knowledge.mig_profiles import SliceSize, nominal_size, profile_of
from app.nodes.labels import PRODUCT
from app.policy.schema_placement import SharingWish
from app.values.errors import BadInput
from app.values.json_members import member, objects, strings
from app.values.label_requirements import Requirement, requirement

MEDIA = ".me"
"""In the name of a profile that has media engines."""


@dataclass(frozen=True, slots=True)
class SliceOffer:
    """A slice resource that nodes advertise which fit: its least size on any of them, and whether one is free."""

    resource: str
    size: SliceSize
    free: bool


def fall_back(case: ReviewedPod) -> Iterator[PodChange]:
    """Rewrite a slice that is asked "at least" to the smallest sufficient one that a node advertises.

    See docs/reference/sharing-and-memory.md#mig-at-least.

    The name of a resource is exact for kube-scheduler and kubelet; after admission nobody can relax it.
    """
    mode, wish = case.rules.mig_fallback, case.ruling.demand.mig_profile
    asked = _slice_asked(case)
    if mode == "Off" or wish is None or not wish[1] or asked is None or not case.fleet.node_groups:
        return
    present = any(group.node_class.allocatable(asked) > 0 for group in case.fleet.node_groups)
    if present and mode is None:
        return
    offers = [each for each in _offers(case) if _covers(each, wish[0])]
    if not offers or (best := offers[0].resource) == asked:
        return
    why = f"no node has {asked}" if not present else f"it is the smallest that covers {wish[0]}"
    if mode == "Warn":
        yield PodChange((), f"{asked} could be {best}", f"{asked} could be {best}: {why}")
        return
    yield PodChange(tuple(_renamed(case, asked, best)), f"{asked} made {best}", f"{asked} made {best}: {why}")


def right_size(case: ReviewedPod) -> Iterator[PodChange]:
    """Give a pod of one GPU that states its memory the smallest slice, or else product, that holds it (F130)."""
    demand, whole = case.ruling.demand, "nvidia.com/gpu"
    if not case.rules.right_sizing or not demand.memory_mib or demand.resources != ((whole, 1),):
        return
    if demand.sharing is not SharingWish.Any or demand.nvlink or demand.mig_profile is not None:
        return
    offers = _offers(case)
    if offers:
        best = offers[0].resource
        why = f"{demand.memory_mib} MiB is all that gpu-memory asks"
        yield PodChange(tuple(_renamed(case, whole, best)), f"{whole} made {best}", f"{whole} made {best}: {why}")
        return
    products = _smallest_products(case)
    if products:
        term = ({"key": PRODUCT, "operator": "In", "values": products},)
        operations = prefer(case.document, [(NEED_WEIGHT, term)])
        if operations:
            names = " and ".join(products)
            yield PodChange(operations, f"{names} preferred, the smallest that holds what gpu-memory asks")


def _slice_asked(case: ReviewedPod) -> str | None:
    """Give the one slice resource that the pod asks for; None if there is none, or several."""
    slices = [name for name, _ in case.amounts() if profile_of(name)]
    return slices[0] if len(slices) == 1 and not slices[0].endswith(".shared") else None


def _covers(offer: SliceOffer, profile: str) -> bool:
    """Tell whether a slice is at least a profile; one with media engines is no other.

    See docs/reference/sharing-and-memory.md#mig-at-least.
    """
    wanted = nominal_size(profile)
    return wanted is not None and offer.size.covers(wanted) and (MEDIA in offer.resource or MEDIA not in profile)


def _offers(case: ReviewedPod) -> list[SliceOffer]:
    """List the slices on nodes that fit the pod in all else; free ones first, then by size, plain ones first."""
    found: dict[str, SliceOffer] = {}
    for group in case.fleet.node_groups:
        for resource, units in group.node_class.offered if _reachable(case, group) else ():
            profile = profile_of(resource)
            size = case.knowledge.mig.size(group.node_class.product, profile) if profile and units > 0 else None
            if size is None or resource.endswith(".shared") or group not in _fitting(case, resource):
                continue
            free = case.fleet.free.get((group, resource), 0) > 0
            known = found.get(resource)
            least = size if known is None or known.size.covers(size) else known.size
            found[resource] = SliceOffer(resource, least, free or (known is not None and known.free))
    return sorted(found.values(), key=_rank)


def _rank(offer: SliceOffer) -> tuple[Any, ...]:
    return (not offer.free, offer.size.memory_mib, offer.size.compute, len(offer.resource), offer.resource)


def _fitting(case: ReviewedPod, resource: str) -> tuple[NodeGroup, ...]:
    """List the kinds of nodes that would take the pod if it asked for this slice."""
    return serving(replace(case.ruling.demand, resources=((resource, 1),), mig_profile=None), case.fleet)


def _reachable(case: ReviewedPod, group: NodeGroup) -> bool:
    """Tell whether the pod's own selector, affinity and tolerations surely let it there; labels not known are a no."""
    spec = case.document["spec"]
    chosen = strings(spec, "nodeSelector", "spec.")
    known = telling_keys(case.knowledge)
    if any(group.label(key) != value for key, value in chosen.items()):
        return False
    terms = get(case.document, REQUIRED)
    if terms and not (isinstance(terms, list) and any(_lets(group, term, known) for term in terms)):
        return False
    return all(tolerable(case, taint) for taint in group.taints)


def _lets(group: NodeGroup, term: Any, known: tuple[str, ...]) -> bool:
    """Tell whether a term surely lets the pod there; one that the API server is yet to refuse does not."""
    if not isinstance(term, dict) or term.get("matchFields"):
        return False
    try:
        wanted = [_wanted(each) for _, each in objects(term, "matchExpressions", "")]
    except BadInput:
        return False
    return bool(wanted) and all(each.key in known and each.allows(group.label(each.key)) for each in wanted)


def _wanted(item: Mapping[str, Any]) -> Requirement:
    """Read an expression of the pod's own, which nobody has validated yet.

    Raises BadInput.
    """
    values = member(item, "values", list, "") or []
    if not all(isinstance(value, str) for value in values):
        raise BadInput("values: wants strings")
    return requirement(member(item, "key", str, "") or "", member(item, "operator", str, "") or "", values)


def _smallest_products(case: ReviewedPod) -> list[str]:
    """Name the products with the least memory that holds the pod; none where all have the same."""
    sizes: dict[str, int] = {}
    for group in serving(case.ruling.demand, case.fleet):
        label, memory = group.label(PRODUCT), group.node_class.memory_mib
        if label and memory and _reachable(case, group):
            sizes[label] = min(memory, sizes.get(label, memory))
    least = min(sizes.values(), default=0)
    return sorted(label for label, size in sizes.items() if size == least) if len(set(sizes.values())) > 1 else []


def _renamed(case: ReviewedPod, asked: str, given: str) -> Iterator[Operation]:
    """Ask for another resource in every container, in requests and limits, in the same amounts."""
    document: Any = case.document
    for container in case.pod.containers:
        for side in ("limits", "requests"):
            amounts = (case.raw(container).get("resources") or {}).get(side) or {}
            if asked in amounts:
                path = ("spec", container.list_name, str(container.index), "resources", side)
                for operation in (put(document, (*path, given), amounts[asked]), Operation("remove", (*path, asked))):
                    document = apply(document, [operation])
                    yield operation
