# SPDX-License-Identifier: Apache-2.0
"""GPU sharing: what one unit of a GPU resource is on a node, and into how many units each GPU is divided."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from app.knowledge.mig_profiles import profile_of
from app.knowledge.tables import Knowledge
from app.nodes.label_keys import PRODUCT, SHARING, SLICES
from app.nodes.label_keys import REPLICAS as REPLICAS_LABEL
from app.nodes.model import REPLICAS, NodeClass, Sharing

LONGEST_REGISTRATION = 1 << 15
"""Characters of HAMi's annotation that are read; one GPU takes about 300."""
NOT_REGISTERED, COUNT_UNKNOWN = -1, 0
"""Values of `registered` for a node without HAMi's annotation, and for one whose annotation cannot be read."""
_SLICE_LABEL = re.compile(r"-MIG-(.+?)(?:-SHARED)?$", re.IGNORECASE)
Amounts = tuple[tuple[str, int], ...]
"""Pairs of resource and units."""


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
    return Sharing.Exclusive if _sharing_is_labelled(labels, strategy, knowledge) else Sharing.Unknown


def mig_without_strategy(labels: Mapping[str, str], offered: Amounts, knowledge: Knowledge) -> bool:
    """Tell whether the node offers whole GPUs that all have MIG enabled.

    GFD counts replicas only of GPUs without MIG, so that 0 means that there are none (NVIDIA/k8s-device-plugin
    internal/lm/resource.go). CUDA then sees at most one slice of such a GPU (MIG User Guide, device enumeration).
    """
    whole = knowledge.families.mig_gpu
    return labels.get(REPLICAS_LABEL) == "0" and any(name == whole and units > 0 for name, units in offered)


def _sharing_is_labelled(labels: Mapping[str, str], strategy: str | None, knowledge: Knowledge) -> bool:
    """Tell whether the node has labels of software that labels shared GPUs as such, GFD or a cloud's provisioner."""
    by_gfd = any(labels.get(key) for key in (PRODUCT, SHARING, REPLICAS_LABEL))
    return bool(by_gfd or strategy or knowledge.clouds.labels_sharing(labels))


def shared_slices(labels: Mapping[str, str], offered: Amounts) -> Iterator[str]:
    """List the MIG profiles whose plain resource is a share, by time-slicing of MIG slices without renaming."""
    for resource, _ in offered:
        profile = profile_of(resource)
        strategy = labels.get(f"{SLICES}{profile}.sharing-strategy")
        if profile and strategy in ("time-slicing", "mps") and f"{resource}.shared" not in dict(offered):
            yield profile


def replicas_by_resource(
    node_class: NodeClass, labels: Mapping[str, str], resources: Amounts
) -> Iterator[tuple[str, int]]:
    """List for each resource whose units are shares the number of units for one GPU, or for one MIG slice."""
    for resource, units in resources:
        unit = node_class.unit(resource)
        if unit in REPLICAS:
            profile = profile_of(resource)
            replicas = parse_count(labels.get(f"{SLICES}{profile}.replicas")) if profile else node_class.replicas
            if replicas and replicas > 1:
                yield resource, replicas
        elif unit is Sharing.HAMi:
            gpus = node_class.hami_gpus or node_class.labelled_gpus
            if gpus and units > gpus:
                yield resource, -(-units // gpus)


def slice_memory(labels: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """List the labelled memory of MIG slices, in MiB, by profile."""
    for key, text in labels.items():
        if key.startswith(SLICES) and key.endswith(".memory") and (mib := parse_count(text)):
            yield key.removeprefix(SLICES).removesuffix(".memory"), mib


def memory_budgets(node_class: NodeClass, label: str, knowledge: Knowledge) -> Iterator[tuple[str, int]]:
    """List the total memory of the shared GPUs (or MIG slices) of each resource, in MiB.

    See docs/reference/sharing-and-memory.md#memory-budgets.

    HAMi's GPUs are left out, since HAMi counts their memory itself, by resources of its own.
    """
    for resource, amount in node_class.offered:
        if node_class.unit(resource) not in REPLICAS:
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
