# SPDX-License-Identifier: Apache-2.0
"""Nodes: labels, allocatable and taints read into facts. Many nodes share one NodeClass; what is free is their own."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from app.knowledge.mig_profiles import profile_of
from app.knowledge.products import normal_form
from app.knowledge.tables import Knowledge
from app.kube.resource_slices import NVIDIA_DRIVER, Device, DeviceClass, common, makes
from app.nodes.labels import read_class
from app.nodes.model import FreeResources, Node, NodeClass, Sharing
from app.nodes.sharing import NOT_REGISTERED, registered_gpus
from app.values.errors import MalformedPod, QuantityError
from app.values.json_members import member, objects, strings
from app.values.quantity import parse_quantity


def read_node(document: Mapping[str, Any], knowledge: Knowledge, used: Mapping[str, int] | None = None) -> Node:
    """Read a Node; `used`: units of GPU resources that the pods bound there hold.

    A label that does not parse counts as unknown: one odd node must not stop the others.
    Raises MalformedPod where the object's shape is wrong.
    """
    metadata = member(document, "metadata", dict, "") or {}
    status = member(document, "status", dict, "") or {}
    spec = member(document, "spec", dict, "") or {}
    name = member(metadata, "name", str, "metadata.")
    if not name:
        raise MalformedPod("metadata.name: got nothing, wants the node's name")
    labels = strings(metadata, "labels", "metadata.")
    allocatable = member(status, "allocatable", dict, "status.") or {}
    offered = _amounts(allocatable, knowledge)
    capacity = member(status, "capacity", dict, "status.")
    in_all = _amounts(capacity, knowledge) if capacity else None
    node_class = read_class(labels, offered, knowledge, in_all, _registered(metadata, knowledge))
    held = used or {}
    return Node(
        name=name,
        node_class=node_class,
        free=FreeResources(
            {resource: amount - held.get(resource, 0) for resource, amount in offered}, memory=dict(node_class.budgets)
        ),
        labels=labels,
        taints=_taints(spec),
        allocatable=allocatable,
        unschedulable=spec.get("unschedulable") is True,
    )


def _registered(metadata: Mapping[str, Any], knowledge: Knowledge) -> int:
    """Count the GPUs that a plugin says, by annotation, to give out in shares; NOT_REGISTERED if there is none."""
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict):
        for key in knowledge.clouds.sharing_annotations:
            text = annotations.get(key)
            if isinstance(text, str) and text:
                return registered_gpus(text)
    return NOT_REGISTERED


def _amounts(allocatable: Mapping[str, Any], knowledge: Knowledge) -> tuple[tuple[str, int], ...]:
    amounts = []
    for resource, amount in allocatable.items():
        if knowledge.families.of(resource) is None:
            continue
        try:
            amounts.append((resource, int(parse_quantity(str(amount)))))
        except QuantityError:
            continue
    return tuple(sorted(amounts))


def _taints(spec: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (
            member(taint, "key", str, f"spec.taints[{index}].") or "",
            member(taint, "value", str, f"spec.taints[{index}].") or "",
            member(taint, "effect", str, f"spec.taints[{index}].") or "",
        )
        for index, taint in objects(spec, "taints", "spec.")
    )


def with_devices(node: Node, devices: Iterable[Device], serving: Iterable[DeviceClass], knowledge: Knowledge) -> Node:
    """Take a node's facts from its ResourceSlices; what they tell not, or in two ways, stays as labelled (F135).

    `serving`: DeviceClasses; of the extended resources that they serve only the vendor's own can be had here, and of
    devices that the class takes. Where there are none, pods may still claim the devices; but GPUs that a device plugin
    offers besides are its own to tell of. GPUs that taints withhold are lacking, as those are that a plugin withdraws.
    """
    several = tuple(devices)
    if not several:
        return node
    ours = frozenset(
        each.resource
        for each in serving
        if each.resource and _of_nvidia(each.resource, knowledge) and any(map(each.takes, several))
    )
    if node.node_class.plugged and not ours:
        return node
    sliced = all(device.mig_profile for device in several)
    usable = {device.gpu for device in several if not device.withheld}
    lost = {device.gpu for device in several} - usable
    known = replace(
        node.node_class,
        sharing=Sharing.MIG if sliced else Sharing.Exclusive,
        dra_profiles=frozenset(device.mig_profile for device in several if device.mig_profile),
        budgets=(),
        stale=False,
        several_models=False,
        memory_at_most=None,
        lacking=tuple((resource, len(lost)) for resource in sorted(ours) if lost and not profile_of(resource)),
        withdrawn=len(lost),
        by_dra=ours if usable else frozenset(),
    )
    found = makes(several)
    classes = tuple(_of_make(known, make, knowledge) for make in found)
    shared = classes[0]
    if len(classes) > 1:
        products = {make.product for make in classes}
        product = classes[0].product if len(products) == 1 else None
        shared = replace(_of_make(known, common(found), knowledge), product=product, makes=classes)
    return replace(node, node_class=shared, free=replace(node.free, uncounted=ours))


def _of_nvidia(resource: str, knowledge: Knowledge) -> bool:
    family = knowledge.families.of(resource)
    return family is not None and NVIDIA_DRIVER in family.device_classes


def _of_make(known: NodeClass, make: Device, knowledge: Knowledge) -> NodeClass:
    """Take what a device tells of itself; what it does not, its driver or its product tells, and only then the node."""
    row = knowledge.products.find(make.label) if make.label else None
    reported = make.cuda or (knowledge.cuda.highest_cuda(make.driver) if make.driver else None)
    whole = row if not make.mig_profile else None
    return replace(
        known,
        product=normal_form(make.label) if make.label else known.product,
        driver=make.driver or known.driver,
        cuda=reported or known.cuda,
        compute_capability=make.compute_capability or (row and row.compute_capability) or known.compute_capability,
        memory_mib=make.memory_mib or (whole and whole.memory_mib) or known.memory_mib,
        mig_profile=make.mig_profile,
        nvlink=row.nvlink if row else known.nvlink,
        form_factor=row.form_factor if row else known.form_factor,
        datacenter=row.datacenter if row else known.datacenter,
    )
