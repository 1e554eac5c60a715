# SPDX-License-Identifier: Apache-2.0
"""GPU sharing: what one unit of a GPU resource is on a node, and into how many units each GPU is divided.

The GPU counts in a node's labels, its capacity and its allocatable are compared. A difference has several causes. The
number of GPUs of the machine, where its provisioner or its type tells it, rules some of them out. What is left is named
by CountDoubt; nothing is taken for certain that the objects do not show.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from app.knowledge.mig_profiles import nominal_size, profile_of
from app.knowledge.products import normal_form
from app.knowledge.tables import Knowledge
from app.kube.pod_requests import Amounts
from app.nodes.conditions import PRODUCT, SHARING, SLICE_LABELS
from app.nodes.conditions import REPLICAS as REPLICAS_LABEL
from app.nodes.model import SHARED_UNITS, SHARES, CountDoubt, NodeClass, Sharing

LONGEST_REGISTRATION = 1 << 15
"""Characters of HAMi's annotation that are read; one GPU takes about 300."""
NOT_REGISTERED, COUNT_UNKNOWN = -1, 0
"""Values of `registered` for a node without HAMi's annotation, and for one whose annotation cannot be read."""
_SLICE_LABEL = re.compile(r"-MIG-(.+?)(?:-SHARED)?$", re.IGNORECASE)


def parse_count(text: str | None) -> int | None:
    """Read a whole number of at most twelve digits; None for anything else."""
    return int(text) if text and text.isdecimal() and len(text) <= 12 else None


def profile_in_product_label(label: str) -> str | None:
    """Read the MIG profile from a product label under MIG strategy single (`…-MIG-1g.5gb`, `…-MIG-1g.5gb-SHARED`)."""
    match = _SLICE_LABEL.search(label)
    return None if match is None or match[1].upper() == "INVALID" else match[1].replace("+", ".")


def sharing_of(
    labels: Mapping[str, str], strategy: str | None, profile: str | None, offered: Amounts, knowledge: Knowledge
) -> Sharing:
    """Work out what one unit of the whole-GPU resource is.

    With `renameByDefault` the shared resource has the suffix `.shared`, and a unit of the plain one is a whole GPU.
    """
    label = labels.get(PRODUCT, "")
    renamed = any(name.endswith(".shared") for name, _ in offered) and not label.endswith("-SHARED")
    if not renamed and strategy == "mps":
        return Sharing.MPS
    if not renamed and (strategy == "time-slicing" or label.endswith("-SHARED")):
        return Sharing.TimeSlicing
    if profile or mig_without_strategy(labels, offered, knowledge):
        return Sharing.MIG
    by_gfd = any(labels.get(key) for key in (PRODUCT, SHARING, REPLICAS_LABEL))
    labelled = by_gfd or strategy or knowledge.clouds.labels_sharing(labels)
    return Sharing.Exclusive if labelled else Sharing.Unknown


def mig_without_strategy(labels: Mapping[str, str], offered: Amounts, knowledge: Knowledge) -> bool:
    """Tell whether the node offers whole GPUs that all have MIG enabled.

    GFD counts replicas only of GPUs without MIG, so that 0 means that there are none (NVIDIA/k8s-device-plugin
    internal/lm/resource.go). CUDA then sees at most one slice of such a GPU (MIG User Guide, device enumeration).
    """
    whole = knowledge.families.mig_gpu
    return labels.get(REPLICAS_LABEL) == "0" and any(name == whole and units > 0 for name, units in offered)


def shared_slices(labels: Mapping[str, str], offered: Amounts) -> Iterator[str]:
    """List the MIG profiles whose plain resource is a share, by time-slicing of MIG slices without renaming."""
    for resource, _ in offered:
        profile = profile_of(resource)
        strategy = labels.get(f"{SLICE_LABELS}{profile}.sharing-strategy")
        if profile and strategy in ("time-slicing", "mps") and f"{resource}.shared" not in dict(offered):
            yield profile


def replicas_by_resource(
    node_class: NodeClass, labels: Mapping[str, str], resources: Amounts
) -> Iterator[tuple[str, int]]:
    """List for each resource whose units are shares the number of units for one GPU, or for one MIG slice."""
    for resource, units in resources:
        unit = node_class.unit(resource)
        if unit in SHARED_UNITS:
            profile = profile_of(resource)
            replicas = parse_count(labels.get(f"{SLICE_LABELS}{profile}.replicas")) if profile else node_class.replicas
            if replicas and replicas > 1:
                yield resource, replicas
        elif unit is Sharing.HAMi:
            gpus = node_class.hami_gpus or node_class.labelled_gpus
            if gpus and units > gpus:
                yield resource, -(-units // gpus)


def slice_memory(labels: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """List the labelled memory of MIG slices, in MiB, by profile."""
    for key, text in labels.items():
        if key.startswith(SLICE_LABELS) and key.endswith(".memory") and (mib := parse_count(text)):
            yield key.removeprefix(SLICE_LABELS).removesuffix(".memory"), mib


def memory_budgets(node_class: NodeClass, label: str, knowledge: Knowledge) -> Iterator[tuple[str, int]]:
    """List the total memory of the shared GPUs (or MIG slices) of each resource, in MiB.

    See docs/reference/sharing-and-memory.md#memory-budgets.

    HAMi's GPUs are left out, since HAMi counts their memory itself, by resources of its own.
    """
    for resource, amount in node_class.offered:
        if node_class.unit(resource) not in SHARED_UNITS:
            continue
        memory = node_class.memory_mib
        if profile := profile_of(resource):
            size = knowledge.mig.size(label, profile)
            memory = node_class.slice_mib(profile) or (size.memory_mib if size else None)
        if memory is not None:
            yield resource, memory * (amount // node_class.replicas_of(resource))


@lru_cache(maxsize=1024)
def count_registered_gpus(text: str) -> int:
    """Count the GPUs in the value of `hami.io/node-nvidia-register`; COUNT_UNKNOWN where it cannot be read.

    The value is a JSON list of objects; up to HAMi v2.5 it was a text with a colon after each GPU (Project-HAMi/HAMi
    pkg/device/devices.go).
    """
    if len(text) > LONGEST_REGISTRATION:
        return COUNT_UNKNOWN
    if not text.lstrip().startswith("["):
        return sum("," in part for part in text.split(":"))
    try:
        registered = json.loads(text)
    except (ValueError, RecursionError):
        return COUNT_UNKNOWN
    return len(registered) if isinstance(registered, list) else COUNT_UNKNOWN


ROUNDING_MIB = 1024
"""By how much the memory in a profile's name may differ between a label and a resource: GPU Feature Discovery wrote
3g.21gb where the device plugin wrote 3g.20gb (NVIDIA/gpu-feature-discovery#7)."""


def unhealthy_units(offered: Amounts, capacity: Amounts) -> Amounts:
    """List the units by which capacity exceeds allocatable (`offered`), as pairs of GPU resource and units.

    The kubelet counts unhealthy devices in capacity only.
    """
    healthy = dict(offered)
    return tuple((name, amount - healthy.get(name, 0)) for name, amount in capacity if amount > healthy.get(name, 0))


def remembered_names(offered: Amounts, knowledge: Knowledge) -> frozenset[str]:
    """List names without units of GPUs that the node offers by another name.

    A kubelet keeps a name in its capacity, with no unit allocatable, after a device plugin has begun to offer the same
    GPUs by another: shared or not, in partitions or not (pkg/kubelet/cm/devicemanager/manager.go GetCapacity).
    """
    of = knowledge.families.gpus_behind
    present = {of(name) for name, units in offered if units > 0}
    return frozenset(name for name, units in offered if units == 0 and of(name) in present)


def with_count_doubt(
    node_class: NodeClass, labels: Mapping[str, str], capacity: Amounts | None, knowledge: Knowledge
) -> NodeClass:
    """Return the class with the doubt about its counts, and with the sharing that the counts leave possible.

    A node without any GPU resource in its capacity is not compared: its device plugin is missing, or DRA serves its
    GPUs. On a HAMi node the capacity is HAMi's number of shares, which no label has.
    """
    of_mig_vendor = knowledge.families.of(knowledge.families.mig_gpu)
    units = {name: amount for name, amount in capacity or () if of_mig_vendor and of_mig_vendor.has(name)}
    if not any(units.values()) or node_class.mig_invalid or node_class.sharing is Sharing.HAMi:
        return node_class
    if node_class.mig_strategy == "mixed":
        return replace(node_class, count_doubt=CountDoubt.Slices) if slices_differ(labels, units) else node_class
    if not node_class.labelled_gpus:
        return node_class
    if any(map(profile_of, units)):
        sliced = any(amount for name, amount in units.items() if profile_of(name))
        return replace(node_class, count_doubt=CountDoubt.Slices) if sliced else node_class
    amount, labelled = sum(units.values()), node_class.labelled_gpus * node_class.replicas
    if amount < labelled:
        return replace(node_class, count_doubt=CountDoubt.Fewer)
    return _with_more_units(node_class, labels, units, knowledge) if amount > labelled else node_class


def _with_more_units(
    node_class: NodeClass, labels: Mapping[str, str], units: Mapping[str, int], knowledge: Knowledge
) -> NodeClass:
    """Return the class of a node with more units than its labels count.

    GPU Feature Discovery (GFD) counts the GPUs of each model, and labels the node with the product and the count of one
    model, which may differ at each run (NVIDIA/k8s-device-plugin internal/lm/nvml.go). Where it does not have the
    device plugin's config it labels GPUs that the plugin shares as if they were whole (NVIDIA/k8s-device-plugin#732).
    """
    amount, counted = sum(units.values()), node_class.labelled_gpus
    renamed = all(name.endswith(".shared") for name, number in units.items() if number)
    gpus = counted if renamed and node_class.replicas == 1 else _gpus_of_machine(labels, knowledge)
    if gpus is None or gpus < counted:
        possible = amount % counted == 0 and node_class.sharing is Sharing.Exclusive
        sharing = Sharing.Unknown if possible else node_class.sharing
        return replace(node_class, sharing=sharing, count_doubt=CountDoubt.SeveralCauses)
    if amount <= gpus * node_class.replicas:
        return replace(node_class, count_doubt=CountDoubt.MoreThanLabelled)
    shared = node_class.sharing if renamed or node_class.sharing in SHARES else Sharing.Share
    replicas = amount // gpus if amount % gpus == 0 else 1
    return replace(node_class, sharing=shared, replicas=replicas, count_doubt=CountDoubt.UnlabelledShares)


def _gpus_of_machine(labels: Mapping[str, str], knowledge: Knowledge) -> int | None:
    """Give the number of the machine's GPUs, which are of one model; None if it is unknown, or of another model."""
    without_product = {key: value for key, value in labels.items() if key != PRODUCT}
    products = {normal_form(name) for name in knowledge.clouds.possible_products(without_product)}
    if products and PRODUCT in labels and normal_form(labels[PRODUCT]) not in products:
        return None
    return knowledge.evidence.machine_count(labels)


def slices_differ(labels: Mapping[str, str], units: Mapping[str, int]) -> bool:
    """Tell whether the node has other numbers of slices than its labels count, whatever the names of their profiles.

    Slices of one size are one kind, since their names have several forms: with media engines or without, shared or
    not. A profile that no label counts is no difference.
    """
    promised: Counter[tuple[int, int]] = Counter()
    for resource in labelled_slices(labels):
        replicas = max(1, parse_count(labels.get(f"{resource}.replicas")) or 1)
        promised[_size(resource)] += (parse_count(labels.get(f"{resource}.count")) or 0) * replicas
    offered: Counter[tuple[int, int]] = Counter()
    for name, amount in units.items():
        if profile_of(name):
            size = _size(name)
            alike = (one for one in promised if one[0] == size[0] and abs(one[1] - size[1]) <= ROUNDING_MIB)
            offered[next(alike, size)] += amount
    return any(offered[size] != amount for size, amount in promised.items())


def labelled_slices(labels: Mapping[str, str]) -> list[str]:
    """List the MIG resources that the labels count."""
    return [key.removesuffix(".count") for key in labels if key.startswith(SLICE_LABELS) and key.endswith(".count")]


def _size(resource: str) -> tuple[int, int]:
    """Give compute slices and MiB by the name of a MIG resource; (0, 0) for a name of another form."""
    size = nominal_size(profile_of(resource) or "")
    return (size.compute, size.memory_mib) if size else (0, 0)
