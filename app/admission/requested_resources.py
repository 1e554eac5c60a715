# SPDX-License-Identifier: Apache-2.0
"""The mutators of what containers request: repairs of requests and limits, and MIG slices in place of others.

A request without a limit, or one that differs from it, is repaired as the policy says. A pod gets another slice than it
asked for, the smallest of the fleet that holds what it needs, where it says "at least", or states its memory.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.admission.affinity_terms import NEED_WEIGHT
from app.admission.json_patch import Operation, apply, put
from app.admission.node_affinity import REQUIRED_TERMS_PATH, prefer_terms, value_at
from app.admission.reviewed_pod import PodChange, ReviewedPod
from app.admission.tolerations import taint_tolerated
from app.knowledge.mig_profiles import SliceSize, nominal_size, profile_of
from app.kube.pods import PREFIX, Container
from app.nodes.conditions import PRODUCT
from app.policy.needs import LEAST_MEMORY, NVLINK
from app.policy.schema_placement import SharingWish
from app.values.errors import BadInput
from app.values.json_members import member, objects, strings
from app.values.label_requirements import Requirement, label_requirement
from app.world.fleet_facts import NodeGroup, affinity_label_keys, fitting_groups


def repair_resources(review: ReviewedPod) -> Iterator[PodChange]:
    """Copy requests without limits to limits, and align requests that differ from limits.

    The API server refuses both for extended resources (kubernetes pkg/apis/core/validation/validation.go).
    """
    document: Any = review.document
    operations: tuple[Operation, ...] = ()
    for container, resource in review.gpus.named:
        if operations:
            document = apply(document, operations)
        change = _repair(review, document, container, resource)
        operations = change.operations if change is not None else ()
        if change is not None:
            yield change


def _repair(review: ReviewedPod, document: Any, container: Container, resource: str) -> PodChange | None:
    if resource not in container.limits:
        copied = review.rules.requests_only == "CopyToLimits"
        return _copy(document, container, resource, "requests", "limits") if copied else None
    differs = resource in container.requests and container.limits[resource] != container.requests[resource]
    if differs and review.rules.mismatch == "UseLimits":
        edited = review.rules.requests_only == "CopyToLimits" and _only_requests_edited(review, container, resource)
        return _copy(document, container, resource, *(("requests", "limits") if edited else ("limits", "requests")))
    return None


def _only_requests_edited(review: ReviewedPod, container: Container, resource: str) -> bool:
    """Tell whether an edit of a template changed requests only; the limits may be those that we added."""
    former = review.former_containers.get(container.name)
    if former is None:
        return False
    same = former.limits.get(resource) == container.limits[resource]
    return same and former.requests.get(resource) != container.requests[resource]


def _copy(document: Any, container: Container, resource: str, source: str, target: str) -> PodChange:
    raw = document["spec"][container.list_name][container.index]["resources"][source][resource]
    path = ("spec", container.list_name, str(container.index), "resources", target, resource)
    action = f"{resource} {target} set to {raw} as in {source}"
    no_limit = resource not in container.limits
    why = "the API server refuses requests without limits" if no_limit else "requests must equal limits"
    return PodChange((put(document, path, raw),), f"{container.name}: {action}", f"{container.name}: {action}: {why}")


@dataclass(frozen=True, slots=True)
class SliceOffer:
    """A slice resource on nodes that fit the pod: its smallest size on any of them, and whether a unit is free."""

    resource: str
    size: SliceSize
    free: bool


def apply_mig_fallback(review: ReviewedPod) -> Iterator[PodChange]:
    """Replace a slice that the pod asks for as "at least" by the smallest sufficient one on a node.

    See docs/reference/sharing-and-memory.md#mig-at-least.
    kube-scheduler and the kubelet take a resource name as exact, so that it can only be relaxed at admission.
    """
    mode, wish = review.rules.mig_fallback, review.ruling.demand.mig_profile
    if mode == "Off" or wish is None or not wish[1] or not review.context.world.fleet.node_groups:
        return
    if (requested := _requested_slice(review)) is None:
        return
    present = any(group.node_class.allocatable(requested) > 0 for group in review.context.world.fleet.node_groups)
    if present and mode is None:
        return
    offers = [offer for offer in _offers(review) if _covers(offer, wish[0])]
    if not offers or (best := offers[0].resource) == requested:
        return
    why = f"no node has {requested}" if not present else f"it is the smallest that covers {wish[0]}"
    if mode == "Warn":
        yield PodChange((), f"{requested} could be {best}", f"{requested} could be {best}: {why}")
        return
    yield _replacement(review, requested, best, why)


def choose_smallest_slice(review: ReviewedPod) -> Iterator[PodChange]:
    """Give a pod that asks for one GPU and states its memory the smallest slice or product that holds it."""
    demand, whole = review.ruling.demand, review.context.world.knowledge.families.mig_gpu
    wanted = LEAST_MEMORY.value(demand)
    if not review.rules.right_sizing or not wanted or demand.resources != ((whole, 1),):
        return
    if demand.sharing is not SharingWish.Any and PREFIX + "sharing" in review.pod.annotations:
        return  # the pod itself wants a whole GPU; a policy with Exclusive allows slices too
    if demand.sharing is SharingWish.Shared or NVLINK.value(demand) or demand.mig_profile is not None:
        return
    offers = _offers(review)
    if offers:
        best = offers[0].size.memory_mib
        why = f"gpu-memory asks for {wanted} MiB, and the slice has {best} MiB"
        yield _replacement(review, whole, offers[0].resource, why)
        return
    sizes: dict[str, int] = {}
    for group in review.fitting:
        label, memory = group.label(PRODUCT), group.node_class.memory_mib
        if label and memory and _pod_may_use(review, group):
            sizes[label] = min(memory, sizes.get(label, memory))
    least = min(sizes.values(), default=0)
    products = sorted(label for label, size in sizes.items() if size == least) if len(set(sizes.values())) > 1 else []
    if products:
        term = ({"key": PRODUCT, "operator": "In", "values": products},)
        operations = prefer_terms(review.document, [(NEED_WEIGHT, term)])
        if operations:
            names = " and ".join(products)
            yield PodChange(operations, f"{names} preferred, the smallest that gpu-memory fits in")


def _requested_slice(review: ReviewedPod) -> str | None:
    """Return the one slice resource that the pod asks for; None if it asks for none, or for several."""
    slices = [name for name, _ in review.gpus.amounts if profile_of(name)]
    return slices[0] if len(slices) == 1 and not slices[0].endswith(".shared") else None


def _covers(offer: SliceOffer, profile: str) -> bool:
    """Tell whether a slice is at least a profile; one with media engines needs a slice with them.

    See docs/reference/sharing-and-memory.md#mig-at-least.
    """
    least = nominal_size(profile)
    return least is not None and offer.size.covers(least)


def _offers(review: ReviewedPod) -> list[SliceOffer]:
    """List the slices on nodes that otherwise fit the pod: free ones first, then by size, plain profiles first."""
    fleet, sizes = review.context.world.fleet, review.context.world.knowledge.mig
    offers: dict[str, SliceOffer] = {}
    for group in fleet.node_groups:
        for resource, units in group.node_class.offered if _pod_may_use(review, group) else ():
            profile = profile_of(resource)
            size = sizes.size(group.node_class.product, profile) if profile and units > 0 else None
            if size is None or resource.endswith(".shared") or group not in _groups_with_slice(review, resource):
                continue
            free = fleet.free.get((group, resource), 0) > 0
            offer = offers.get(resource)
            least = size if offer is None or offer.size.covers(size) else offer.size
            offers[resource] = SliceOffer(resource, least, free or (offer is not None and offer.free))
    return sorted(offers.values(), key=_rank)


def _rank(offer: SliceOffer) -> tuple[Any, ...]:
    return (not offer.free, offer.size.memory_mib, offer.size.compute, len(offer.resource), offer.resource)


def _groups_with_slice(review: ReviewedPod, resource: str) -> tuple[NodeGroup, ...]:
    """List the node groups that would take the pod if it asked for this slice."""
    demand = replace(review.ruling.demand, resources=((resource, 1),), mig_profile=None)
    return fitting_groups(demand, review.context.world.fleet)


def _pod_may_use(review: ReviewedPod, group: NodeGroup) -> bool:
    """Tell whether the pod's selector, affinity and tolerations certainly allow the group; unknown labels do not."""
    spec = review.document["spec"]
    selector = strings(spec, "nodeSelector", "spec.")
    known_keys = affinity_label_keys(review.context.world.knowledge)
    if any(group.label(key) != value for key, value in selector.items()):
        return False
    terms = value_at(review.document, REQUIRED_TERMS_PATH)
    if terms and not (isinstance(terms, list) and any(_term_selects(group, term, known_keys) for term in terms)):
        return False
    return all(taint_tolerated(review, taint) for taint in group.taints)


def _term_selects(group: NodeGroup, term: Any, known_keys: tuple[str, ...]) -> bool:
    """Tell whether a term certainly selects the group; a term that the API server has yet to refuse does not."""
    if not isinstance(term, dict) or term.get("matchFields"):
        return False
    try:
        requirements = [_read_requirement(item) for _, item in objects(term, "matchExpressions", "")]
    except BadInput:
        return False
    return bool(requirements) and all(
        requirement.key in known_keys and requirement.allows(group.label(requirement.key))
        for requirement in requirements
    )


def _read_requirement(item: Mapping[str, Any]) -> Requirement:
    """Read an expression of the pod's own node affinity, which the API server has not validated yet.

    Raises BadInput.
    """
    values = member(item, "values", list, "") or []
    if not all(isinstance(value, str) for value in values):
        raise BadInput("values: wants strings")
    return label_requirement(member(item, "key", str, "") or "", member(item, "operator", str, "") or "", values)


def _replacement(review: ReviewedPod, old: str, new: str, why: str) -> PodChange:
    record = f"{old} replaced by {new}"
    return PodChange(tuple(_replace_resource(review, old, new)), record, f"{record}: {why}")


def _replace_resource(review: ReviewedPod, old: str, new: str) -> Iterator[Operation]:
    """Replace a resource in every container, in requests and limits, with the same amounts."""
    document: Any = review.document
    for container in review.pod.containers:
        for side in ("limits", "requests"):
            amounts = (review.container_object(container).get("resources") or {}).get(side) or {}
            if old in amounts:
                path = ("spec", container.list_name, str(container.index), "resources", side)
                for operation in (put(document, (*path, new), amounts[old]), Operation("remove", (*path, old))):
                    document = apply(document, [operation])
                    yield operation
