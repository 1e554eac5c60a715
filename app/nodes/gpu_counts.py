# SPDX-License-Identifier: Apache-2.0
"""Comparison of the GPU counts in a node's labels, its capacity and its allocatable.

A difference has several causes. The number of GPUs of the machine, where its provisioner or its type tells it, rules
some of them out. What is left is named by CountDoubt; nothing is taken for certain that the objects do not show.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from app.knowledge.mig_profiles import nominal_size, profile_of
from app.knowledge.products import normal_form
from app.knowledge.tables import Knowledge
from app.nodes.label_keys import PRODUCT, SLICES
from app.nodes.model import SHARES, CountDoubt, NodeClass, Sharing
from app.nodes.sharing import Amounts, parse_count

ROUNDING_MIB = 1024
"""By how much the memory in a profile's name may differ between a label and a resource: GPU Feature Discovery wrote
3g.21gb where the device plugin wrote 3g.20gb (NVIDIA/gpu-feature-discovery#7)."""


def unhealthy_units(offered: Amounts, capacity: Amounts) -> Amounts:
    """List the units by which capacity exceeds allocatable (`offered`), as pairs of GPU resource and units.

    The kubelet counts unhealthy devices in capacity only.
    """
    healthy = dict(offered)
    return tuple((name, amount - healthy.get(name, 0)) for name, amount in capacity if amount > healthy.get(name, 0))


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
    return [key.removesuffix(".count") for key in labels if key.startswith(SLICES) and key.endswith(".count")]


def _size(resource: str) -> tuple[int, int]:
    """Give compute slices and MiB by the name of a MIG resource; (0, 0) for a name of another form."""
    size = nominal_size(profile_of(resource) or "")
    return (size.compute, size.memory_mib) if size else (0, 0)
