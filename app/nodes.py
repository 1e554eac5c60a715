# SPDX-License-Identifier: Apache-2.0
"""Nodes: labels, allocatable and taints read into facts. Many nodes share one NodeClass; what is free is their own."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from app.errors import MalformedPod, QuantityError, VersionError
from app.knowledge.layout import Layout
from app.knowledge.mig import profile_of
from app.knowledge.products import Product, normal_form
from app.knowledge.require import Host
from app.knowledge.tables import Knowledge
from app.pods import member, objects, strings
from app.quantity import parse_quantity
from app.slices import Device, common, makes
from app.versions import Version, parse_version

# Label keys of GPU Feature Discovery, MIG Manager and the GPU Operator; the second of a pair is the deprecated
# name that v0.20.0 still writes (NVIDIA/k8s-device-plugin internal/lm/nvml.go, CHANGELOG.md).
PRODUCT = "nvidia.com/gpu.product"
MEMORY = "nvidia.com/gpu.memory"
COUNT = "nvidia.com/gpu.count"
REPLICAS = "nvidia.com/gpu.replicas"
SHARING = "nvidia.com/gpu.sharing-strategy"
MIG_STRATEGY = "nvidia.com/mig.strategy"
MIG_STATE = "nvidia.com/mig.config.state"
UPGRADE_STATE = "nvidia.com/gpu-driver-upgrade-state"
DRIVER = ("nvidia.com/cuda.driver-version", ("major", "minor", "revision"))
OLD_DRIVER = ("nvidia.com/cuda.driver", ("major", "minor", "rev"))
RUNTIME = ("nvidia.com/cuda.runtime-version", ("major", "minor"))
OLD_RUNTIME = ("nvidia.com/cuda.runtime", ("major", "minor"))
COMPUTE = ("nvidia.com/gpu.compute", ("major", "minor"))


class Sharing(Enum):
    """What one `nvidia.com/gpu` means on a node."""

    Exclusive = "a whole GPU"
    TimeSlicing = "a time-slice"
    MPS = "an MPS share"
    MIG = "a MIG slice"


@dataclass(frozen=True, slots=True)
class NodeClass:
    """Facts that evicting pods cannot change; equal for nodes of one make. None is unknown.

    `product`: normal form. `memory_mib`: per unit of the whole-GPU resource: a GPU's, under MIG strategy single
    a slice's. `cuda`: highest CUDA of the driver. `sharing`, `renamed`: what one unit of the whole-GPU resource, and
    of a `.shared` one, is. `offered`: (resource, allocatable), GPU families only, sorted.
    `labelled`: the GPUs that the labels promise. `by_dra`: resources that DRA serves, which kube-scheduler counts;
    `dra_profiles`: the MIG profiles that it shows, made or to be made on demand.
    `makes`: the class that the node would be with GPUs of each of its products, where DRA shows several.
    """

    product: str | None = None
    driver: Version | None = None
    cuda: Version | None = None
    compute_capability: Version | None = None
    memory_mib: int | None = None
    sharing: Sharing = Sharing.Exclusive
    renamed: Sharing = Sharing.TimeSlicing
    replicas: int = 1
    mig_strategy: str | None = None
    mig_profile: str | None = None
    mig_invalid: bool = False
    mig_state: str | None = None
    upgrade_state: str | None = None
    nvlink: bool | None = None
    datacenter: bool = True
    labelled: int = 0
    offered: tuple[tuple[str, int], ...] = ()
    by_dra: frozenset[str] = frozenset()
    dra_profiles: frozenset[str] = frozenset()
    makes: tuple["NodeClass", ...] = ()

    @property
    def host(self) -> Host:
        """What the node answers to a container's requirement."""
        return Host(self.driver, self.cuda, self.compute_capability, self.datacenter)

    def allocatable(self, resource: str) -> int:
        """Say how many units of a resource the node has in all."""
        return next((amount for name, amount in self.offered if name == resource), 0)


@dataclass(frozen=True, slots=True)
class Free:
    """What is free now.

    `units`: by GPU resource. `gpus`: free milli per GPU, largest first; None on device-plugin nodes.
    `uncounted`: resources that DRA serves: how many are free is kube-scheduler's to know.
    `layouts`: the GPUs that are carved into MIG slices on demand and not given away whole; None where there are none
    such, or their geometry is unknown.
    """

    units: Mapping[str, int]
    gpus: tuple[int, ...] | None = None
    uncounted: frozenset[str] = frozenset()
    layouts: tuple[Layout, ...] | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `labels` and `taints` (key, value, effect) are what admission looks at."""

    name: str
    node_class: NodeClass
    free: Free
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)
    taints: tuple[tuple[str, str, str], ...] = ()

    @property
    def has_gpus(self) -> bool:
        """Tell whether the node offers or promises any GPU."""
        return bool(self.node_class.offered) or self.node_class.labelled > 0 or bool(self.node_class.by_dra)


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
    offered = _offered(member(status, "allocatable", dict, "status.") or {}, knowledge)
    held = used or {}
    return Node(
        name=name,
        node_class=read_class(labels, offered, knowledge),
        free=Free({resource: amount - held.get(resource, 0) for resource, amount in offered}),
        labels=labels,
        taints=_taints(spec),
    )


def _offered(allocatable: Mapping[str, Any], knowledge: Knowledge) -> tuple[tuple[str, int], ...]:
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


def read_class(labels: Mapping[str, str], offered: tuple[tuple[str, int], ...], knowledge: Knowledge) -> NodeClass:
    """Read what the labels say, and complete it from the fact tables where they leave gaps."""
    label = labels.get(PRODUCT) or knowledge.clouds.product(labels) or ""
    row = knowledge.products.find(label) if label else None
    driver = _version(labels, DRIVER) or _version(labels, OLD_DRIVER)
    profile = _single_profile(label)
    memory = _number(labels, MEMORY) or _memory_of(row, label, profile, knowledge)
    strategy = labels.get(SHARING) or knowledge.clouds.sharing_strategy(labels)
    return NodeClass(
        product=normal_form(label) if label else None,
        driver=driver,
        cuda=_version(labels, RUNTIME) or _version(labels, OLD_RUNTIME) or _cuda_of(driver, knowledge),
        compute_capability=_version(labels, COMPUTE) or (row.compute_capability if row else None),
        memory_mib=memory or _whole(knowledge.clouds.memory(labels)),
        renamed=Sharing.MPS if strategy == "mps" else Sharing.TimeSlicing,
        sharing=_sharing(strategy, label, profile, offered),
        replicas=max(1, _number(labels, REPLICAS) or 1),
        mig_strategy=labels.get(MIG_STRATEGY) or None,
        mig_profile=profile,
        mig_invalid=label.upper().endswith("-MIG-INVALID"),
        mig_state=labels.get(MIG_STATE) or None,
        upgrade_state=labels.get(UPGRADE_STATE) or None,
        nvlink=row.nvlink if row else None,
        datacenter=row.datacenter if row else "geforce" not in label.lower(),
        labelled=_number(labels, COUNT) or 0,
        offered=offered,
    )


def _memory_of(row: Product | None, label: str, profile: str | None, knowledge: Knowledge) -> int | None:
    """Take the memory that no label tells from the tables: the slice's, or the GPU's."""
    if profile:
        size = knowledge.mig.size(label, profile)
        return size.memory_mib if size else None
    return row.memory_mib if row else None


def _single_profile(label: str) -> str | None:
    """Take the slice profile out of a strategy-single product label (`…-MIG-1g.5gb`, `…-MIG-1g.5gb-SHARED`)."""
    found = _SLICE_LABEL.search(label)
    return None if found is None or found[1].upper() == "INVALID" else found[1].replace("+", ".")


_SLICE_LABEL = re.compile(r"-MIG-(.+?)(?:-SHARED)?$", re.IGNORECASE)


def _sharing(strategy: str | None, label: str, profile: str | None, offered: tuple[tuple[str, int], ...]) -> Sharing:
    """Say what one unit of the whole-GPU resource is.

    With `renameByDefault` the shared resource has a name of its own, and the plain one, where offered, is whole.
    """
    renamed = any(name.endswith(".shared") for name, _ in offered) and not label.endswith("-SHARED")
    if not renamed and strategy == "mps":
        return Sharing.MPS
    if not renamed and (strategy == "time-slicing" or label.endswith("-SHARED")):
        return Sharing.TimeSlicing
    return Sharing.MIG if profile else Sharing.Exclusive


def _cuda_of(driver: Version | None, knowledge: Knowledge) -> Version | None:
    return knowledge.cuda.highest_cuda(driver) if driver else None


def _version(labels: Mapping[str, str], key: tuple[str, tuple[str, ...]]) -> Version | None:
    """Read `<key>.full`, or put the parts together; GFD leaves the revision empty for a driver with two fields."""
    prefix, parts = key
    text = labels.get(prefix + ".full") or ".".join(filter(None, (labels.get(f"{prefix}.{part}") for part in parts)))
    try:
        return parse_version(text) if text else None
    except VersionError:
        return None


def _number(labels: Mapping[str, str], key: str) -> int | None:
    return _whole(labels.get(key))


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) <= 12 else None


def with_devices(node: Node, devices: Iterable[Device], served: frozenset[str], knowledge: Knowledge) -> Node:
    """Take a node's facts from its ResourceSlices; what they tell not, or in two ways, stays as labelled (F135)."""
    several = tuple(devices)
    if not several or not served:
        return node
    sliced = all(device.mig_profile for device in several)
    known = replace(
        node.node_class,
        sharing=Sharing.MIG if sliced else Sharing.Exclusive,
        dra_profiles=frozenset(device.mig_profile for device in several if device.mig_profile),
        by_dra=served,
    )
    found = makes(several)
    classes = tuple(_of_make(known, make, knowledge) for make in found)
    shared = classes[0]
    if len(classes) > 1:
        shared = replace(_of_make(known, common(found), knowledge), product=None, makes=classes)
    return replace(node, node_class=shared, free=replace(node.free, uncounted=served))


def _of_make(known: NodeClass, make: Device, knowledge: Knowledge) -> NodeClass:
    row = knowledge.products.find(make.label) if make.label else None
    return replace(
        known,
        product=normal_form(make.label) if make.label else known.product,
        driver=make.driver or known.driver,
        cuda=make.cuda or known.cuda,
        compute_capability=make.compute_capability or known.compute_capability,
        memory_mib=make.memory_mib or known.memory_mib,
        mig_profile=make.mig_profile,
        nvlink=row.nvlink if row else known.nvlink,
        datacenter=row.datacenter if row else known.datacenter,
    )


def slice_profiles(node_class: NodeClass) -> tuple[str, ...]:
    """List the MIG profiles that a node offers as resources, positive amounts only."""
    found = (profile_of(resource) for resource, amount in node_class.offered if amount > 0)
    return tuple(profile for profile in found if profile)
