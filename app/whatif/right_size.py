# SPDX-License-Identifier: Apache-2.0
"""Right size: the smallest unit that would have carried a workload's peak, as a patch that the engine has tried.

A unit is proposed only where every pod of the workload, created anew with the patch, has a node: after admission, by
the filters and by kube-scheduler's own checks, with the units that the pods hold now given back. CPU use says nothing
here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from app.explain.container_requests import replace_resource
from app.explain.edits import Edit, EditedDocument, edited, judge_edited, set_annotation
from app.explain.survey import review_as_is, without_our_affinity
from app.kube.pods import PRODUCTS
from app.nodes.model import Node
from app.placement.ranking import place_on_best
from app.usage.units import (
    OfferedUnit,
    Peak,
    Unsized,
    offered_units,
    product_labels,
    smaller_units,
    unit_on,
)
from app.usage.workloads import template_patch
from app.whatif.placing_in_turn import GPUPod, place_pod, with_units_returned
from app.world.world import World

MOST_TRIED = 8
"""Units tried for one workload, the smallest first; each takes one admission and a look at every node per pod."""
OWN_FIELDS = ("nodeName", "resourceVersion")


@dataclass(frozen=True, slots=True)
class SizedWorkload:
    """A workload with running pods that hold GPUs. `documents` are their Pods, in the order of `pods`.

    `name` is as in the table of use, and `owner` the kind of its controller with a template; empty for bare pods.
    """

    name: str
    owner: str
    pods: tuple[GPUPod, ...]
    documents: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class RightSize:
    """A proposal for one workload.

    `holds` and `to` are the unit of each pod, now and then: a resource, and the product of its nodes. `peak_memory_mib`
    and `peak_part` are what one pod used at most, of `known_hours`. `patch` is a strategic merge patch of the template,
    or of the Pod of a workload without one. `frees` and `takes` are units of all pods. `would_start` are pods that wait
    now and would have a place then.
    """

    workload: str
    pods: int
    holds: str
    to: str
    peak_memory_mib: int
    peak_part: float
    known_hours: float
    patch: Mapping[str, Any]
    frees: Mapping[str, int]
    takes: Mapping[str, int]
    would_start: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RightSizes:
    """The proposals, those that free most first, workloads that have their right size, and those left undecided."""

    proposals: tuple[RightSize, ...]
    right: tuple[str, ...]
    undecided: tuple[Unsized, ...]


def workloads_of(
    pods: Iterable[GPUPod], documents: Mapping[str, Mapping[str, Any]], owners: Mapping[str, str]
) -> tuple[SizedWorkload, ...]:
    """Group the bound pods by workload; `documents` and `owners` are by namespace/name."""
    groups: dict[str, list[GPUPod]] = {}
    for pod in pods:
        if pod.node:
            groups.setdefault(owners[pod.name], []).append(pod)
    return tuple(
        SizedWorkload(name, _kind(name), tuple(some), tuple(documents[pod.name] for pod in some))
        for name, some in sorted(groups.items())
    )


def _kind(workload: str) -> str:
    parts = workload.split("/")
    return parts[1] if len(parts) == 3 else ""


def right_sizes(
    workloads: Iterable[SizedWorkload],
    peaks: Mapping[str, Peak | Unsized],
    waiting: Sequence[GPUPod],
    snapshot: World,
) -> RightSizes:
    """Propose units for workloads; `waiting` are the pods without a node, in the order in which they are placed."""
    units = offered_units(snapshot.nodes.values(), snapshot.knowledge)
    before = _placed(waiting, snapshot.nodes)
    proposals: list[RightSize] = []
    right: list[str] = []
    undecided: list[Unsized] = []
    for workload in workloads:
        peak = peaks.get(workload.name) or Unsized(workload.name, "its use is unknown")
        own = _own_unit(workload, snapshot) if isinstance(peak, Peak) else peak
        if isinstance(own, Unsized) or isinstance(peak, Unsized):
            undecided.append(own if isinstance(own, Unsized) else Unsized(workload.name, ""))
            continue
        proposal = _RightSizing(workload, peak, own, units, snapshot).search(waiting, before)
        if proposal is None:
            right.append(workload.name)
        else:
            proposals.append(proposal)
    ordered = sorted(proposals, key=lambda one: (-len(one.would_start), -sum(one.frees.values()), one.workload))
    return RightSizes(tuple(ordered), tuple(right), tuple(undecided))


def _own_unit(workload: SizedWorkload, snapshot: World) -> OfferedUnit | Unsized:
    """Describe the unit that every pod of a workload holds one of."""
    asked = {pod.demand.resources for pod in workload.pods}
    if len(asked) != 1 or [amount for _, amount in next(iter(asked))] != [1]:
        return Unsized(workload.name, "a pod of it asks for several GPUs, which no smaller unit can replace")
    resource = next(iter(asked))[0][0]
    classes = {snapshot.nodes[pod.node].node_class for pod in workload.pods if pod.node in snapshot.nodes}
    own = {unit_on(node_class, resource, snapshot.knowledge) for node_class in classes}
    if len(own) != 1 or (unit := own.pop()) is None:
        return Unsized(
            workload.name, "what one unit of its resource is on its nodes is unknown, or not the same on all"
        )
    return unit


def _placed(waiting: Sequence[GPUPod], nodes: Mapping[str, Node]) -> frozenset[str]:
    """Name the waiting pods that have a place, one after another."""
    open_nodes = {name: node for name, node in nodes.items() if node.has_gpus}
    return frozenset(pod.name for pod in waiting if place_pod(pod, open_nodes))


class _RightSizing:
    """The search for one workload."""

    def __init__(
        self,
        workload: SizedWorkload,
        peak: Peak,
        own: OfferedUnit,
        units: Sequence[OfferedUnit],
        snapshot: World,
    ) -> None:
        self._workload, self._peak, self._own = workload, peak, own
        self._units = units
        nodes = dict(snapshot.nodes)
        for pod in workload.pods:
            nodes[pod.node] = with_units_returned(nodes[pod.node], [pod])
        self._snapshot = replace(snapshot, nodes=nodes)
        self._labels = product_labels((own, *units), snapshot.knowledge)

    def search(self, waiting: Sequence[GPUPod], before: frozenset[str]) -> RightSize | None:
        """Try the smaller units, the smallest first; None where the engine proves none of them."""
        smaller = smaller_units(self._units, self._peak, self._own)
        for unit in islice(smaller, MOST_TRIED):
            edits = self._edits(unit)
            nodes = self._proven(edits)
            if nodes is not None:
                return self._proposal(unit, edits, tuple(sorted(_placed(waiting, nodes) - before)))
        return None

    def _edits(self, unit: OfferedUnit) -> tuple[Edit, ...]:
        """Ask for the unit; the product is named where another product offers the resource too, or is left."""
        edits = []
        if unit.resource != self._own.resource:
            edits.append(Edit("right-size", unit.resource, 0, replace_resource(self._own.resource, unit.resource)))
        others = {other.product for other in self._units if other.resource == unit.resource} - {unit.product}
        if others:
            edits.append(Edit("right-size", unit.product, 0, set_annotation(PRODUCTS, self._labels[unit.product])))
        return tuple(edits)

    def _proven(self, edits: tuple[Edit, ...]) -> Mapping[str, Node] | None:
        """Place every pod anew with the edits; returns the nodes then, None where a pod has none."""
        nodes = {name: node for name, node in self._snapshot.nodes.items() if node.has_gpus}
        for document in self._workload.documents:
            judge = judge_edited(as_created(document, self._snapshot), edits, self._snapshot)
            if not place_on_best(judge.scheduled_pod.demand, nodes, judge.fits):
                return None
        return nodes

    def _proposal(self, unit: OfferedUnit, edits: tuple[Edit, ...], would_start: tuple[str, ...]) -> RightSize:
        workload, peak, count = self._workload, self._peak, len(self._workload.pods)
        base = as_created(workload.documents[0], self._snapshot)
        return RightSize(
            workload=workload.name,
            pods=count,
            holds=f"{self._own.resource} of {self._labels[self._own.product]}",
            to=f"{unit.resource} of {self._labels[unit.product]}",
            peak_memory_mib=round(peak.memory_mib),
            peak_part=peak.part,
            known_hours=peak.hours,
            patch=template_patch(base, edited(base, edits), workload.owner),
            frees={self._own.resource: count},
            takes={unit.resource: count},
            would_start=would_start,
        )


def as_created(document: Mapping[str, Any], snapshot: World) -> EditedDocument:
    """Give a running Pod as it would be created again: without its node, its status, and the affinity that we wrote."""
    bare = dict(without_our_affinity(review_as_is(document, snapshot)))
    bare.pop("status", None)
    spec = bare.get("spec") or {}
    bare["spec"] = {name: value for name, value in spec.items() if name not in OWN_FIELDS}
    return bare
