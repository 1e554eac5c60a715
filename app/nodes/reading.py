# SPDX-License-Identifier: Apache-2.0
"""Reading of a node's JSON into the model: its class, which many nodes share, and its own free resources."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from app.knowledge.mig_profiles import profile_of
from app.knowledge.products import normal_form
from app.knowledge.tables import Knowledge
from app.kube.resource_slices import NVIDIA_DRIVER, Device, DeviceClass, distinct_devices, shared_facts
from app.nodes.labels import read_class
from app.nodes.model import FreeResources, Node, NodeClass, Sharing
from app.nodes.runtime_handlers import read_runtime_handlers
from app.nodes.sharing import NOT_REGISTERED, count_registered_gpus
from app.values.errors import MalformedPod, QuantityError
from app.values.json_members import member, objects, strings
from app.values.quantity import parse_quantity


def read_node(document: Mapping[str, Any], knowledge: Knowledge, used: Mapping[str, int] | None = None) -> Node:
    """Read a Node; `used` are the units of each GPU resource that the pods on it hold.

    The fact of a label that does not parse is unknown, so that one such node does not stop the reading of the others.
    Raises MalformedPod if the shape of the object is wrong.
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
    for_machines = not offered and _gives_gpus_to_machines(allocatable, knowledge)
    node_class = replace(
        read_class(labels, offered, knowledge, in_all, _registered(metadata, knowledge), for_machines),
        runtime_handlers=read_runtime_handlers(status),
        runtime_class_unneeded=knowledge.runtimes.why_unneeded(labels),
    )
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
    """Count the GPUs that a device plugin shares by its annotation; NOT_REGISTERED without such an annotation."""
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict):
        for key in knowledge.clouds.sharing_annotations:
            text = annotations.get(key)
            if isinstance(text, str) and text:
                return count_registered_gpus(text)
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


def _gives_gpus_to_machines(allocatable: Mapping[str, Any], knowledge: Knowledge) -> bool:
    """Tell whether a node offers GPUs to virtual machines, so that its labels promise containers none."""
    extended = [name for name in allocatable if "/" in name]  # none on most nodes
    return any(knowledge.families.passthrough_family(name) for name in extended)


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
    """Replace facts about a node by those of its DRA devices; facts that these lack stay as labelled (F135).

    `serving` are the DeviceClasses that serve an extended resource. Those of them count that serve a resource of the
    vendor and select a device of this node. If none counts and a device plugin offers GPUs, the node is unchanged,
    since the labels then describe the plugin's GPUs. GPUs of which all devices are tainted count as unhealthy, as
    those do which a device plugin withdraws.
    """
    all_devices = tuple(devices)
    if not all_devices:
        return node
    served = frozenset(
        device_class.resource
        for device_class in serving
        if device_class.resource
        and _is_nvidia_resource(device_class.resource, knowledge)
        and any(map(device_class.selects, all_devices))
    )
    if node.node_class.uses_device_plugin and not served:
        return node
    sliced = all(device.mig_profile for device in all_devices)
    usable = {device.gpu for device in all_devices if not device.tainted}
    tainted_gpus = {device.gpu for device in all_devices} - usable
    node_class = replace(
        node.node_class,
        sharing=Sharing.MIG if sliced else Sharing.Exclusive,
        dra_profiles=frozenset(device.mig_profile for device in all_devices if device.mig_profile),
        budgets=(),
        count_doubt=None,
        promises=(),
        memory_at_most=None,
        unhealthy_units=tuple(
            (resource, len(tainted_gpus)) for resource in sorted(served) if tainted_gpus and not profile_of(resource)
        ),
        withdrawn=len(tainted_gpus),
        dra_resources=served if usable else frozenset(),
    )
    node_class = _with_all_device_facts(node_class, distinct_devices(all_devices), knowledge)
    return replace(node, node_class=node_class, free=replace(node.free, uncounted=served))


def _with_all_device_facts(node_class: NodeClass, devices: tuple[Device, ...], knowledge: Knowledge) -> NodeClass:
    """Replace facts by those of distinct devices; of several devices by those that they share."""
    variants = tuple(_with_device_facts(node_class, device, knowledge) for device in devices)
    if len(variants) == 1:
        return variants[0]
    shared = _with_device_facts(node_class, shared_facts(devices), knowledge)
    products = {variant.product for variant in variants}
    product = variants[0].product if len(products) == 1 else None
    return replace(shared, product=product, device_variants=variants)


def class_of_device(node_class: NodeClass, device: Device, knowledge: Knowledge) -> NodeClass:
    """Give the class as it would be with devices of one kind alone, for a claim that gets such devices."""
    alone = replace(
        node_class,
        device_variants=(),
        claimable=(),
        sharing=Sharing.MIG if device.mig_profile else Sharing.Exclusive,
        dra_profiles=frozenset((device.mig_profile,)) if device.mig_profile else frozenset(),
        count_doubt=None,
        memory_at_most=None,
    )
    return _with_device_facts(alone, device, knowledge)


def _is_nvidia_resource(resource: str, knowledge: Knowledge) -> bool:
    family = knowledge.families.of(resource)
    return family is not None and NVIDIA_DRIVER in family.device_classes


def _with_device_facts(node_class: NodeClass, device: Device, knowledge: Knowledge) -> NodeClass:
    """Replace facts by those of a device; a fact that it lacks is that of its driver or product, or else the node's."""
    row = knowledge.products.find(device.label) if device.label else None
    reported_cuda = device.cuda or (knowledge.cuda.highest_cuda(device.driver) if device.driver else None)
    capability = device.compute_capability or (row and row.compute_capability)
    whole_gpu = row if not device.mig_profile else None
    return replace(
        node_class,
        product=normal_form(device.label) if device.label else node_class.product,
        driver=device.driver or node_class.driver,
        cuda=reported_cuda or node_class.cuda,
        compute_capability=capability or node_class.compute_capability,
        memory_mib=device.memory_mib or (whole_gpu and whole_gpu.memory_mib) or node_class.memory_mib,
        mig_profile=device.mig_profile,
        nvlink=row.nvlink if row else node_class.nvlink,
        form_factor=row.form_factor if row else node_class.form_factor,
        datacenter=row.datacenter if row else node_class.datacenter,
    )
