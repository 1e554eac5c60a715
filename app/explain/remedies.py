# SPDX-License-Identifier: Apache-2.0
"""Remedies: small edits that may let a pod run, one function for each kind; the tuple at the foot is the product.

A remedy only proposes; `counterfactual.py` proves. It looks at one objection against one node.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.explain.funnel import Objection
from app.explain.intree import REQUIRED, Cause, InTree
from app.explain.survey import Posed, World
from app.holdings import Holding
from app.nodeclass import Node
from app.ordinary import units
from app.pods import PREFIX
from app.reasons import Code
from app.versions import show_version

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Near:
    """A node that the pod misses, and one of the things that stand between them."""

    posed: Posed
    node: Node
    objection: Objection
    world: World

    @property
    def code(self) -> Cause | Code:
        """What stands between them."""
        return self.objection.cause if isinstance(self.objection, InTree) else self.objection.code

    @property
    def about(self) -> tuple[str, ...]:
        """What it is about; the filters' reasons say that in their text only."""
        return self.objection.about if isinstance(self.objection, InTree) else ()


@dataclass(frozen=True, slots=True)
class Edit:
    """One change. `weight`: among edits of one sort, smaller ones come first.

    `pod` changes the Pod in place; `node` gives the node `on` as it would be; `evicts`: pods that must go for it.
    """

    kind: str
    text: str
    weight: int
    pod: Callable[[Document], None] | None = None
    node: Callable[[Node], Node] | None = None
    on: str = ""
    evicts: tuple[Holding, ...] = ()


Remedy = Callable[[Near], Iterator[Edit]]


def tolerate(near: Near) -> Iterator[Edit]:
    """Add a toleration for a taint."""
    if near.code is not Cause.UntoleratedTaint:
        return
    key, value, effect = near.about
    said = {"key": key, "operator": "Equal" if value else "Exists", **({"value": value} if value else {})}

    def add(pod: Document) -> None:
        pod["spec"].setdefault("tolerations", []).append({**said, "effect": effect})

    yield Edit("tolerate", f"add a toleration for {key}{f'={value}' if value else ''}:{effect}", 20, add)


def drop_selector(near: Near) -> Iterator[Edit]:
    """Drop a key of nodeSelector."""
    if near.code is Cause.NodeAffinityMismatch and near.about[0] == "nodeSelector":
        _, key, value = near.about
        there = near.node.labels.get(key)

        def drop(pod: Document) -> None:
            del pod["spec"]["nodeSelector"][key]

        def change(pod: Document) -> None:
            pod["spec"]["nodeSelector"][key] = there

        if there is not None:
            yield Edit("change-selector", f"set nodeSelector {key}: {there} instead of {value}", 21, change)
        yield Edit("drop-selector", f"drop {key}: {value} from nodeSelector", 22, drop)


def drop_affinity(near: Near) -> Iterator[Edit]:
    """Drop the expressions of one required affinity term that the node does not fulfil; all, where none is left."""
    if near.code is not Cause.NodeAffinityMismatch or near.about[0] != "affinity":
        return
    for index, term in enumerate(near.posed.own.terms or ()):
        unmet = [place for place, (key, wanted) in enumerate(term.expressions)
                 if wanted is None or not wanted.allows(near.node.labels.get(key))]  # fmt: skip
        keys = ", ".join(term.expressions[place][0] for place in unmet)
        unnamed = any((name == near.node.name) is not within for within, name in term.names)

        def drop(pod: Document, index: int = index, unmet: list[int] = unmet, unnamed: bool = unnamed) -> None:
            affinity = pod["spec"]["affinity"]["nodeAffinity"]
            terms = affinity[REQUIRED]["nodeSelectorTerms"]
            said = terms[index].get("matchExpressions") or []
            terms[index]["matchExpressions"] = [each for place, each in enumerate(said) if place not in unmet]
            if unnamed:
                terms[index]["matchFields"] = []
            if not (terms[index]["matchExpressions"] or terms[index].get("matchFields")):
                del affinity[REQUIRED]

        what = ", ".join(filter(None, (keys, "metadata.name" if unnamed else "")))
        yield Edit("drop-affinity", f"drop {what} from the required node affinity", 22 + len(unmet), drop)


def unname_node(near: Near) -> Iterator[Edit]:
    """Leave the choice of the node to the scheduler."""
    if near.code is Cause.NodeNameMismatch:
        yield Edit("unname-node", "remove spec.nodeName", 10, lambda pod: pod["spec"].pop("nodeName"))


def remove_gates(near: Near) -> Iterator[Edit]:
    """Remove the scheduling gates."""
    if near.code is Cause.SchedulingGated:
        text = f"remove the scheduling gates {', '.join(near.about)}: their controller has not let the pod go"
        yield Edit("remove-gates", text, 10, lambda pod: pod["spec"].pop("schedulingGates"))


def uncordon(near: Near) -> Iterator[Edit]:
    """Uncordon the node."""
    if near.code is Cause.NodeUnschedulable:
        yield Edit("uncordon", f"kubectl uncordon {near.node.name}", 50,
                   node=lambda node: replace(node, unschedulable=False), on=near.node.name)  # fmt: skip


def request_less(near: Near) -> Iterator[Edit]:
    """Ask for as much CPU or memory as the node has left."""
    if near.code is not Cause.InsufficientResource:
        return
    resource = near.about[0]
    used = near.world.used.get(near.node.name, {})
    left = dict(near.node.amounts).get(resource, 0) - used.get(resource, 0)
    short = dict(near.posed.seeker.requests)[resource] - left
    if left <= 0:
        return

    def lower(pod: Document) -> None:
        most = max(pod["spec"]["containers"], key=lambda each: _units(each, resource))
        for kind in ("requests", "limits") if not _units(most, resource, "requests") else ("requests",):
            if _units(most, resource, kind):
                most["resources"][kind][resource] = _text(resource, _units(most, resource, kind) - short)

    text = f"request {_text(resource, left)} of {resource} in all, {_text(resource, short)} less"
    yield Edit("request-less", text, 30, lower)


def _units(container: Mapping[str, Any], resource: str, kind: str | None = None) -> int:
    resources = container.get("resources") or {}
    said = (
        (resources.get(kind) or {})
        if kind
        else {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    )
    return units(resource, str(said[resource])) if resource in said else 0


def _text(resource: str, amount: int) -> str:
    if resource == "cpu":
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    if resource in ("memory", "ephemeral-storage") and amount >= 1 << 30:
        return f"{amount / (1 << 30):.4g}Gi" if amount % (1 << 30) else f"{amount >> 30}Gi"
    return str(amount)


def ask_fewer(near: Near) -> Iterator[Edit]:
    """Ask for as many GPUs as the node has free, or in all."""
    if near.code not in (Code.InsufficientGPUs, Code.RequestExceedsNode, Code.TooManyGPUs):
        return
    for resource, amount in near.posed.demand.resources:
        free = near.node.free.units.get(resource, 0)
        if 0 < free < amount:
            yield Edit("ask-fewer", f"ask for {free} {resource} instead of {amount}", 30 + amount - free,
                       _lowered(resource, amount - free))  # fmt: skip


def _lowered(resource: str, by: int) -> Callable[[Document], None]:
    def lower(pod: Document) -> None:
        most = max(pod["spec"]["containers"], key=lambda each: _units(each, resource))
        for amounts in (most["resources"].get("limits"), most["resources"].get("requests")):
            if amounts and resource in amounts:
                amounts[resource] = str(int(str(amounts[resource])) - by)

    return lower


def ask_another(near: Near) -> Iterator[Edit]:
    """Ask for another resource of the same make: the MIG profile, the share or the whole GPU that the node has."""
    if near.code not in (Code.ResourceNotOffered, Code.MIGProfileAbsent, Code.SharingNotAllowed):
        return
    for resource, amount in near.posed.demand.resources:
        domain = resource.partition("/")[0]
        for other, free in near.node.free.units.items():
            if other != resource and other.partition("/")[0] == domain and free >= amount:
                yield Edit("ask-another", f"ask for {other} instead of {resource}", 35, _renamed(resource, other))


def _renamed(resource: str, other: str) -> Callable[[Document], None]:
    def rename(pod: Document) -> None:
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            for amounts in (container.get("resources") or {}).values():
                if isinstance(amounts, dict) and resource in amounts:
                    amounts[other] = amounts.pop(resource)

    return rename


def free_gpus(near: Near) -> Iterator[Edit]:
    """Free GPUs on the node: those of the least important pods, and of them the fewest."""
    if near.code is not Code.InsufficientGPUs:
        return
    node = near.node
    for resource, amount in near.posed.demand.resources:
        short = amount - node.free.units.get(resource, 0)
        holders = [(each, dict(each.units).get(resource, 0)) for each in near.world.holdings(node.name)]
        gone: list[Holding] = []
        freed = 0
        for each, held in sorted(holders, key=lambda pair: (pair[0].priority, -pair[1], pair[0].name)):
            if held and freed < short:
                gone.append(each)
                freed += held
        if 0 < short <= freed:
            names = ", ".join(f"{each.name} (priority {each.priority})" for each in gone[:3])
            more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
            yield Edit("free-gpus", f"free {short} {resource} on {node.name}, held by {names}{more}", 51 + freed,
                       node=_freed(resource, freed), on=node.name, evicts=tuple(gone))  # fmt: skip


def _freed(resource: str, amount: int) -> Callable[[Node], Node]:
    def free(node: Node) -> Node:
        units = {**node.free.units, resource: node.free.units.get(resource, 0) + amount}
        return replace(node, free=replace(node.free, units=units))

    return free


_ANNOTATED: Mapping[Code, tuple[str, Callable[[Node], str | None]]] = {
    Code.GPUMemoryTooSmall: (
        "gpu-memory", lambda node: f"{node.node_class.memory_mib}Mi" if node.node_class.memory_mib else None),
    Code.SharingNotAllowed: ("sharing", lambda _: "Any"),
    Code.InterconnectAbsent: ("interconnect", lambda _: None),
    Code.ComputeCapabilityTooLow: (
        "compute-capability",
        lambda node: show_version(node.node_class.compute_capability) if node.node_class.compute_capability else None),
    Code.MIGProfileAbsent: ("mig-profile", lambda _: None),
    Code.DriverTooOld: ("cuda", lambda node: show_version(node.node_class.cuda) if node.node_class.cuda else None),
    Code.GPUMemoryBudgetExceeded: ("gpu-memory", lambda _: None),
}  # fmt: skip
"""Which annotation states the need that a filter refuses for, and what it would have to say on the node."""


def say_otherwise(near: Near) -> Iterator[Edit]:
    """Lower a need that the pod's own annotation states, or drop it."""
    found = _ANNOTATED.get(near.code) if isinstance(near.code, Code) else None
    annotations = near.posed.document["metadata"].get("annotations") or {}
    if found is None or PREFIX + found[0] not in annotations:
        return
    key, value = PREFIX + found[0], found[1](near.node)
    if value is not None and value != annotations[key]:
        yield Edit("lower-need", f"set {key}: {value} instead of {annotations[key]}", 24, _annotated(key, value))
    else:
        yield Edit("drop-need", f"drop the annotation {key}: {annotations[key]}", 25, _annotated(key, None))


def allow_product(near: Near) -> Iterator[Edit]:
    """Add the node's product to those that the pod's annotation allows."""
    key, product = PREFIX + "products", near.node.node_class.product
    said = (near.posed.document["metadata"].get("annotations") or {}).get(key)
    if near.code is not Code.ProductNotAllowed or not said or product is None:
        return
    row = near.world.setting.knowledge.products.by_form.get(product)
    name = row.label if row else product
    kept = [each for each in said.split(",") if not each.strip().startswith("!")]
    denied = [each for each in said.split(",") if each.strip().startswith("!")]
    if kept:
        value = ",".join((*(each.strip() for each in said.split(",")), name))
        yield Edit("allow-product", f"allow {name} too, in {key}", 23, _annotated(key, value))
    if denied:
        text = ",".join(each.strip() for each in kept)
        yield Edit("allow-product", f"deny no product in {key}, which has {', '.join(denied)}", 24,
                   _annotated(key, text or None))  # fmt: skip


def _annotated(key: str, value: str | None) -> Callable[[Document], None]:
    def annotate(pod: Document) -> None:
        annotations = pod["metadata"].setdefault("annotations", {})
        annotations.pop(key, None)
        if value is not None:
            annotations[key] = value

    return annotate


OLD_IMAGE = "nvcr.io/nvidia/cuda:{}.0-base-ubuntu22.04"


def older_image(near: Near) -> Iterator[Edit]:
    """Use an image built for a CUDA that the node's driver runs."""
    cuda = near.node.node_class.cuda
    if near.code not in (Code.DriverTooOld, Code.ImageRequirementUnmet) or cuda is None:
        return
    name = show_version(cuda)

    def change(pod: Document) -> None:
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            if near.world.setting.knowledge.images.infer(str(container.get("image") or "")) is not None:
                container["image"] = OLD_IMAGE.format(name)

    yield Edit("older-image", f"use an image built for CUDA <= {name}", 40, change)


REMEDIES: tuple[Remedy, ...] = (
    remove_gates,
    unname_node,
    tolerate,
    drop_selector,
    drop_affinity,
    allow_product,
    say_otherwise,
    request_less,
    ask_fewer,
    ask_another,
    older_image,
    uncordon,
    free_gpus,
)


def edited(document: Mapping[str, Any], edits: tuple[Edit, ...]) -> Document:
    """Give the Pod as it would be."""
    changed: Document = copy.deepcopy(dict(document))
    for edit in edits:
        if edit.pod is not None:
            edit.pod(changed)
    return changed
