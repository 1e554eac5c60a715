# SPDX-License-Identifier: Apache-2.0
"""Comparison of the GPU counts in a node's labels, its capacity and its allocatable."""

from collections.abc import Iterator, Mapping

from app.knowledge.mig_profiles import profile_of
from app.knowledge.tables import Knowledge
from app.nodes.label_keys import SLICES
from app.nodes.model import NodeClass, Sharing
from app.nodes.sharing import Amounts, parse_count


def unhealthy_units(offered: Amounts, capacity: Amounts) -> Amounts:
    """List the units by which capacity exceeds allocatable (`offered`), as pairs of GPU resource and units.

    The kubelet counts unhealthy devices in capacity only.
    """
    healthy = dict(offered)
    return tuple((name, amount - healthy.get(name, 0)) for name, amount in capacity if amount > healthy.get(name, 0))


def labels_are_stale(node_class: NodeClass, labels: Mapping[str, str], capacity: Amounts | None) -> bool:
    """Tell whether the labels contradict the node's capacity: it has fewer GPUs or other slices than they say.

    Under MIG strategy mixed the slices have count labels of their own, and `gpu.count` covers only some of the GPUs. A
    capacity of more GPUs than `gpu.count` means several models (`has_several_models`). A node without any GPU resource
    in its capacity is not compared: its device plugin is missing, or DRA serves its GPUs. On a HAMi node the capacity
    is HAMi's number of shares, which no label has.
    """
    units = dict(capacity or ())
    if not any(units.values()) or node_class.mig_invalid or node_class.sharing is Sharing.HAMi:
        return False
    if node_class.mig_strategy == "mixed":
        slices = _promised_slices(labels)
        return any(units.get(name, 0) + units.get(f"{name}.shared", 0) != promised for name, promised in slices)
    slice_units = sum(amount for name, amount in units.items() if profile_of(name))
    promised_units = node_class.labelled_gpus * node_class.replicas
    return node_class.labelled_gpus > 0 and (slice_units > 0 or sum(units.values()) < promised_units)


def has_several_models(node_class: NodeClass, capacity: Amounts | None, knowledge: Knowledge) -> bool:
    """Tell whether a node has GPUs of several models, that is, more GPUs than its labels count.

    GPU Feature Discovery (GFD) counts the GPUs of each model, and labels the node with the product and the count of one
    model, which may differ at each run (NVIDIA/k8s-device-plugin internal/lm/nvml.go). Under MIG strategy mixed no
    label counts all GPUs, so that the answer is no.
    """
    if node_class.mig_strategy == "mixed" or node_class.mig_invalid or node_class.sharing is Sharing.HAMi:
        return False
    whole = knowledge.families.mig_gpu
    units = {name: amount for name, amount in capacity or () if name.startswith(whole) or profile_of(name)}
    if not node_class.labelled_gpus or any(map(profile_of, units)):
        return False
    return sum(units.values()) > node_class.labelled_gpus * node_class.replicas


def _promised_slices(labels: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """List the MIG resources that the labels count, with their units."""
    for key in labels:
        if key.startswith(SLICES) and key.endswith(".count"):
            resource = key.removesuffix(".count")
            replicas = max(1, parse_count(labels.get(f"{resource}.replicas")) or 1)
            yield resource, (parse_count(labels.get(key)) or 0) * replicas
