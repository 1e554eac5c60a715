# SPDX-License-Identifier: Apache-2.0
"""Reading of a node's JSON into the model: its class, which many nodes share, and its own free resources.

A RuntimeClass names a handler that nodes have or lack. The kubelet publishes the handlers of its container runtime from
Kubernetes 1.31 on (core/v1 NodeStatus.runtimeHandlers); where the list is absent, as with containerd 1.x, nothing is
known about them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

from app.knowledge.mig_profiles import profile_of
from app.knowledge.products import normal_form
from app.knowledge.tables import Knowledge
from app.kube.device_classes import DeviceClass
from app.kube.device_models import NVIDIA_DRIVER, DeviceModel
from app.kube.devices import Device
from app.kube.objects import NodeObject
from app.kube.pod_requests import read_amounts
from app.kube.records import read_record
from app.nodes.conditions import ARCHITECTURE, NVIDIA_DOMAIN, read_bad_conditions, read_not_ready
from app.nodes.labels import NODE_CLASSES_KEPT, read_node_class
from app.nodes.model import UNSHARED, WHOLE_MILLI, FreeResources, Node, NodeClass, Sharing
from app.nodes.sharing import NOT_REGISTERED, count_registered_gpus
from app.values.errors import MalformedPod, QuantityError
from app.values.quantity import parse_quantity


def lacks_handler(node_class: NodeClass, handler: str) -> bool:
    """Tell whether a node is known to lack a runtime handler."""
    return node_class.runtime_handlers is not None and handler not in node_class.runtime_handlers


Fact = TypeVar("Fact")


def read_node(document: Mapping[str, Any], knowledge: Knowledge, used: Mapping[str, int] | None = None) -> Node:
    """Read a Node of a snapshot, as `node_of` does. Raises MalformedPod if the shape of the object is wrong."""
    return node_of(read_record(NodeObject, document), knowledge, used)


def node_of(node: NodeObject, knowledge: Knowledge, used: Mapping[str, int] | None = None) -> Node:
    """Work out the facts of a Node; `used` are the units of each GPU resource that the pods on it hold.

    The fact of a label that does not parse is unknown, so that one such node does not stop the reading of the others.
    Raises MalformedPod for one without a name.
    """
    metadata, status = node.metadata, node.status
    if not metadata.name:
        raise MalformedPod("metadata.name: got nothing, wants the node's name")
    labels, allocatable, capacity = metadata.labels or {}, status.allocatable or {}, status.capacity or {}
    offered = _amounts(allocatable, knowledge)
    withheld = capacity != allocatable
    in_all = (_amounts(capacity, knowledge) if withheld else offered) if capacity else None
    gone = _withdrawn_elsewhere(capacity, allocatable, knowledge) if withheld else ()
    # GPUs that are offered to virtual machines: its labels promise containers none.
    for_machines = not offered and any(
        knowledge.families.passthrough_family(name) for name in allocatable if "/" in name
    )
    other = {key: value for key, value, _ in knowledge.evidence.other_nodes if labels.get(key) == value}
    labels_read = other or labels
    if (architecture := status.node_info.architecture) and ARCHITECTURE not in labels_read:
        labels_read = {**labels_read, ARCHITECTURE: architecture}
    registered = _registered(metadata.annotations or {}, knowledge)
    handlers = frozenset([handler.name or "" for handler in status.runtime_handlers or ()]) or None
    node_class = read_node_class(labels_read, offered, knowledge, in_all, registered, for_machines, handlers)
    if conditions := read_bad_conditions(status.conditions or (), knowledge):
        bad = tuple((condition.name, condition.severity) for condition in conditions)
        node_class = replace(node_class, bad_conditions=bad)
    not_ready = read_not_ready(node)
    if gone:
        node_class = replace(node_class, withdrawn_elsewhere=gone)
    units = {resource: amount - (used or {}).get(resource, 0) for resource, amount in offered}
    return Node(
        name=metadata.name,
        node_class=node_class,
        free=FreeResources(units, memory=dict(node_class.budgets)),
        labels=labels,
        taints=tuple((taint.key, taint.value or "", taint.effect or "") for taint in node.spec.taints or ()),
        allocatable=allocatable,
        unschedulable=node.spec.unschedulable is True,
        container_runtime=status.node_info.container_runtime_version,
        conditions=conditions,
        not_ready=not_ready,
    )


def _registered(annotations: Mapping[str, str], knowledge: Knowledge) -> int:
    """Count the GPUs that a device plugin shares by its annotation; NOT_REGISTERED without such an annotation."""
    text = next(filter(None, map(annotations.get, knowledge.clouds.sharing_annotations)), None)
    return count_registered_gpus(text) if text else NOT_REGISTERED


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


def _withdrawn_elsewhere(
    capacity: Mapping[str, Any], allocatable: Mapping[str, Any], knowledge: Knowledge
) -> tuple[tuple[str, int, int], ...]:
    named = {name: amount for name, amount in capacity.items() if knowledge.families.elsewhere(name)}
    left = read_amounts(allocatable) if named else {}
    amounts = sorted(read_amounts(named).items())
    return tuple((name, all_ - left.get(name, 0), all_) for name, all_ in amounts if all_ > left.get(name, 0))


def with_devices(node: Node, devices: Iterable[Device], serving: Iterable[DeviceClass], knowledge: Knowledge) -> Node:
    """Replace facts about a node by those of its DRA devices; facts that these lack stay as labelled.

    `serving` are the DeviceClasses that serve an extended resource. Those of them count that serve a resource of the
    vendor and select a device of this node. A resource of which the node has units in allocatable is the device
    plugin's, as kube-scheduler has it (noderesources/fit.go shouldDelegateResourceToDRA). Where a device plugin offers
    GPUs the labels describe these, and stay. GPUs of which all devices are tainted count as unhealthy, as those do
    which a device plugin withdraws.
    """
    all_devices = tuple(devices)
    if not all_devices:
        return node
    models = frozenset([device.model for device in all_devices])
    of_plugin = {resource for resource, amount in node.node_class.offered if amount > 0}
    served = frozenset(
        device_class.extended_resource
        for device_class in serving
        if device_class.extended_resource
        and device_class.extended_resource not in of_plugin
        and (family := knowledge.families.of(device_class.extended_resource)) is not None
        and NVIDIA_DRIVER in family.device_classes
        and any(map(device_class.selects, models))
    )
    if of_plugin:
        with_served = replace(node.node_class, dra_resources=served)
        return replace(node, node_class=with_served, free=replace(node.free, uncounted=served)) if served else node
    tainted = {device.gpu for device in all_devices if device.taints and device.tainted}
    usable = {device.gpu for device in all_devices if not device.tainted} if tainted else {""}
    tainted_gpus = len(tainted - usable)
    untainted = frozenset([device.model for device in all_devices if not device.tainted]) if tainted else models
    node_class = _class_with_devices(
        node.node_class, models, untainted or models, served, bool(usable), tainted_gpus, knowledge
    )
    free = node.free if node.free.uncounted == served else replace(node.free, uncounted=served)
    return replace(node, node_class=node_class, free=free)


@lru_cache(maxsize=NODE_CLASSES_KEPT)
def _class_with_devices(
    node_class: NodeClass,
    models: frozenset[DeviceModel],
    untainted: frozenset[DeviceModel],
    served: frozenset[str],
    usable: bool,
    tainted_gpus: int,
    knowledge: Knowledge,
) -> NodeClass:
    """Replace the facts of a class by those of devices, once for all nodes that are alike.

    `untainted` are the models whose facts count: those without a taint, or all where each device has one. MIG slices
    add no facts where there are whole GPUs.
    """
    node_class = replace(
        node_class,
        sharing=Sharing.MIG if all(model.mig_profile for model in models) else Sharing.Exclusive,
        dra_profiles=frozenset([model.mig_profile for model in models if model.mig_profile]),
        budgets=(),
        count_doubt=None,
        promises=(),
        memory_at_most=None,
        unhealthy_units=tuple(
            (resource, tainted_gpus) for resource in sorted(served) if tainted_gpus and not profile_of(resource)
        ),
        withdrawn=tainted_gpus,
        dra_resources=served if usable else frozenset(),
        claims_only=NVIDIA_DOMAIN,
    )
    whole = [model for model in untainted if not model.mig_profile]
    different = sorted({model.facts for model in whole or untainted}, key=repr)
    variants = tuple(_with_device_facts(node_class, DeviceModel(*facts), knowledge) for facts in different)
    if len(variants) == 1:
        return variants[0]
    facts_of_all: list[Any] = [_same(values) for values in zip(*different, strict=True)]
    shared = _with_device_facts(node_class, DeviceModel(*facts_of_all), knowledge)
    return replace(shared, product=_same(variant.product for variant in variants), device_variants=variants)


def with_other_devices(
    node: Node, by_driver: Mapping[str, Sequence[Device]], serving: Iterable[DeviceClass], knowledge: Knowledge
) -> Node:
    """Add what the DRA devices of another vendor have in common, where no device plugin offers the node's GPUs.

    `serving` are the DeviceClasses that serve an extended resource and may take a device of the node.
    """
    family = next(filter(None, map(knowledge.families.of_device_class, by_driver)), None)
    models = {device.model for of_driver in by_driver.values() for device in of_driver}
    facts = node.node_class
    if family is None or facts.uses_device_plugin or facts.dra_resources:
        return node
    resources = (device_class.extended_resource for device_class in serving)
    served = frozenset(name for name in resources if name and knowledge.families.of(name) is family)
    products = {normal_form(model.label) for model in models if model.label}
    partitions = {model.partition for model in models if model.partition}
    labels = next((row for row in knowledge.clouds.vendors if row.family == family.name), None)
    is_part = labels is not None and bool(partitions) and all(map(labels.is_partition, partitions))
    node_class = replace(
        facts,
        vendor=family.name,
        runs_cuda=knowledge.families.runs_cuda(family.name),
        promises=(),
        dra_resources=served,
        claims_only=f"{family.whole.partition('/')[0]}/",
        product=products.pop() if len(products) == 1 else facts.product,
        memory_mib=_same(model.memory_mib for model in models) or facts.memory_mib,
        driver=_same(model.driver for model in models) or facts.driver,
        cuda=None,
        sharing=Sharing.Part if is_part else facts.sharing,
    )
    return replace(node, node_class=node_class, free=replace(node.free, uncounted=served))


def _same(facts: Iterable[Fact | None]) -> Fact | None:
    """Give the fact that all devices have; None if they differ."""
    different = set(facts)
    return different.pop() if len(different) == 1 else None


def class_of_device(
    node_class: NodeClass, model: DeviceModel, knowledge: Knowledge, is_share: bool = False
) -> NodeClass:
    """Give the class as it would be with devices of one kind alone, for a claim that gets such devices, or shares."""
    alone = replace(
        node_class,
        device_variants=(),
        claimable=(),
        by_claim=True,
        sharing=Sharing.Share if is_share else Sharing.MIG if model.mig_profile else Sharing.Exclusive,
        dra_profiles=frozenset((model.mig_profile,)) if model.mig_profile else frozenset(),
        count_doubt=None,
        memory_at_most=None,
    )
    return _with_device_facts(alone, model, knowledge)


def _with_device_facts(node_class: NodeClass, model: DeviceModel, knowledge: Knowledge) -> NodeClass:
    """Replace facts by those of a device; a fact that it lacks is that of its driver or product, or else the node's."""
    row = knowledge.products.find(model.label) if model.label else None
    reported_cuda = model.cuda or knowledge.cuda.highest_cuda(model.driver)
    capability = model.compute_capability or (row and row.compute_capability)
    whole_gpu = row if not model.mig_profile else None
    is_part = row is not None and row.milli < WHOLE_MILLI and node_class.sharing in UNSHARED
    return replace(
        node_class,
        sharing=Sharing.Part if is_part else node_class.sharing,
        product=normal_form(model.label) if model.label else node_class.product,
        driver=model.driver or node_class.driver,
        cuda=reported_cuda or node_class.cuda,
        compute_capability=capability or node_class.compute_capability,
        memory_mib=model.memory_mib or (whole_gpu and whole_gpu.memory_mib) or node_class.memory_mib,
        mig_profile=model.mig_profile,
        nvlink=row.nvlink if row else node_class.nvlink,
        form_factor=row.form_factor if row else node_class.form_factor,
        datacenter=row.datacenter if row else node_class.datacenter,
    )
