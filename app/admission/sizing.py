# SPDX-License-Identifier: Apache-2.0
"""Sizing: another slice than the one asked where the fleet has it not, the smallest that holds what the pod needs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from app.admission.affinity import prefer
from app.admission.case import Case, Change
from app.admission.fleet import serving
from app.admission.patch import Operation, apply, put
from app.admission.terms import NEED_WEIGHT
from app.knowledge.mig import SliceSize, nominal_size, profile_of
from app.nodes import PRODUCT
from app.policy.schema import SharingWish


@dataclass(frozen=True, slots=True)
class Offer:
    """A slice resource that some node advertises: its least size on any of them, and whether one is free."""

    resource: str
    size: SliceSize
    free: bool


def fall_back(case: Case) -> Iterator[Change]:
    """Rewrite a slice that is asked "at least" to the smallest sufficient one that a node advertises (INTERFACES §7).

    The name of a resource is exact for kube-scheduler and kubelet; after admission nobody can relax it.
    """
    mode, wish = case.rules.mig_fallback, case.ruling.demand.mig_profile
    asked = _slice_asked(case)
    if mode == "Off" or wish is None or not wish[1] or asked is None or not case.fleet.kin:
        return
    present = any(kin.node_class.allocatable(asked) > 0 for kin in case.fleet.kin)
    if present and mode is None:
        return
    offers = [each for each in _offers(case) if _covers(each.size, wish[0])]
    if not offers or (best := offers[0].resource) == asked:
        return
    why = f"no node has {asked}" if not present else f"it is the smallest that covers {wish[0]}"
    if mode == "Warn":
        yield Change((), f"{asked} could be {best}", f"{asked} could be {best}: {why}")
        return
    yield Change(tuple(_renamed(case, asked, best)), f"{asked} made {best}", f"{asked} made {best}: {why}")


def right_size(case: Case) -> Iterator[Change]:
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
        yield Change(tuple(_renamed(case, whole, best)), f"{whole} made {best}", f"{whole} made {best}: {why}")
        return
    product = _smallest_product(case)
    if product is not None:
        term = ({"key": PRODUCT, "operator": "In", "values": [product]},)
        operations = prefer(case.document, [(NEED_WEIGHT, term)])
        if operations:
            yield Change(operations, f"{product} preferred, the smallest that holds what gpu-memory asks")


def _slice_asked(case: Case) -> str | None:
    """Give the one slice resource that the pod asks for; None if there is none, or several."""
    slices = [name for name, _ in case.amounts() if profile_of(name)]
    return slices[0] if len(slices) == 1 and not slices[0].endswith(".shared") else None


def _covers(size: SliceSize, profile: str) -> bool:
    wanted = nominal_size(profile)
    return wanted is not None and size.covers(wanted)


def _offers(case: Case) -> list[Offer]:
    """List the slices on nodes that fit the pod in all else; free ones first, then by size."""
    found: dict[str, SliceSize] = {}
    for kin in case.fleet.kin:
        for resource, units in kin.node_class.offered:
            profile = profile_of(resource)
            size = case.knowledge.mig.size(kin.node_class.product, profile) if profile and units > 0 else None
            if size is None or resource.endswith(".shared"):
                continue
            known = found.get(resource)
            found[resource] = size if known is None or known.covers(size) else known
    fitting = (
        Offer(resource, size, case.fleet.free.get(resource, 0) > 0)
        for resource, size in found.items()
        if _holds(case, resource)
    )
    return sorted(fitting, key=lambda each: (not each.free, each.size.memory_mib, each.size.compute, each.resource))


def _holds(case: Case, resource: str) -> bool:
    """Tell whether some node would take the pod if it asked for this slice."""
    demand = replace(case.ruling.demand, resources=((resource, 1),), mig_profile=None)
    return bool(serving(demand, case.fleet))


def _smallest_product(case: Case) -> str | None:
    """Name the product with the least memory that holds the pod; None where all have the same."""
    sizes: dict[str, int] = {}
    for kin in serving(case.ruling.demand, case.fleet):
        label, memory = kin.label(PRODUCT), kin.node_class.memory_mib
        if label and memory:
            sizes[label] = min(memory, sizes.get(label, memory))
    return min(sizes, key=lambda label: (sizes[label], label)) if len(set(sizes.values())) > 1 else None


def _renamed(case: Case, asked: str, given: str) -> Iterator[Operation]:
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
