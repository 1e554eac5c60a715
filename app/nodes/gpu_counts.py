# SPDX-License-Identifier: Apache-2.0
"""How many GPUs a node has by its labels, its capacity and its allocatable, and what it means where they differ."""

from collections.abc import Iterator, Mapping

from app.knowledge.mig_profiles import RESOURCE_PREFIX, profile_of
from app.nodes.model import NodeClass, Sharing
from app.nodes.sharing import WHOLE, Amounts, whole


def lacking(offered: Amounts, capacity: Amounts) -> Amounts:
    """Say what allocatable lacks of capacity: the kubelet counts unhealthy devices in capacity alone."""
    healthy = dict(offered)
    return tuple((name, amount - healthy.get(name, 0)) for name, amount in capacity if amount > healthy.get(name, 0))


def stale(found: NodeClass, labels: Mapping[str, str], capacity: Amounts | None) -> bool:
    """Tell whether labels contradict what the node has: fewer GPUs, other slices, or none of what they promise.

    Under strategy mixed the slices have counts of their own, and `gpu.count` speaks of some of the GPUs only. More GPUs
    than `gpu.count` are of another model (several_models). Where capacity has no GPU resource at all there is nothing
    to compare (a ghost, or DRA), and where HAMi shares GPUs out it is HAMi's number of shares.
    """
    has = dict(capacity or ())
    if not any(has.values()) or found.mig_invalid or found.sharing is Sharing.HAMi:
        return False
    if found.mig_strategy == "mixed":
        return any(has.get(name, 0) + has.get(f"{name}.shared", 0) != units for name, units in _promised(labels))
    slices = sum(amount for name, amount in has.items() if profile_of(name))
    return found.labelled > 0 and (slices > 0 or sum(has.values()) < found.labelled * found.replicas)


def several_models(found: NodeClass, capacity: Amounts | None) -> bool:
    """Tell whether a node has more GPUs than its labels count.

    GFD counts the GPUs of each model and writes the count and the product of one of them, another one at each run
    (NVIDIA/k8s-device-plugin internal/lm/nvml.go). Under MIG strategy mixed no count is of all GPUs.
    """
    has = [(name, units) for name, units in capacity or () if name.startswith(WHOLE) or profile_of(name)]
    if found.mig_strategy == "mixed" or found.mig_invalid or found.sharing is Sharing.HAMi or not found.labelled:
        return False
    return not any(profile_of(name) for name, _ in has) and sum(units for _, units in has) > (
        found.labelled * found.replicas
    )


def _promised(labels: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """List the slice resources that labels promise, with their units."""
    for key in labels:
        if key.startswith(RESOURCE_PREFIX) and key.endswith(".count"):
            resource = key.removesuffix(".count")
            replicas = max(1, whole(labels.get(f"{resource}.replicas")) or 1)
            yield resource, (whole(labels.get(key)) or 0) * replicas
