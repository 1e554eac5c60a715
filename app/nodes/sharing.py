# SPDX-License-Identifier: Apache-2.0
"""What one unit of a GPU resource is on a node: a whole GPU, a share or a slice; and how many units a GPU makes."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from app.knowledge.mig_profiles import RESOURCE_PREFIX, profile_of
from app.knowledge.tables import Knowledge
from app.nodes.model import REPLICAS, NodeClass, Sharing

PRODUCT = "nvidia.com/gpu.product"
REPLICAS_LABEL = "nvidia.com/gpu.replicas"
SHARING = "nvidia.com/gpu.sharing-strategy"
WHOLE = "nvidia.com/gpu"
LONGEST_REGISTRATION = 1 << 15
"""Characters of HAMi's annotation that are read: one GPU takes some 300."""
NOT_REGISTERED, COUNT_UNKNOWN = -1, 0
"""What `registered` says of a node that HAMi does not share out, and of one whose registration cannot be read."""
_SLICE_LABEL = re.compile(r"-MIG-(.+?)(?:-SHARED)?$", re.IGNORECASE)
Amounts = tuple[tuple[str, int], ...]


def whole(text: str | None) -> int | None:
    """Read a whole number of at most twelve digits; None for anything else."""
    return int(text) if text and text.isdecimal() and len(text) <= 12 else None


def single_profile(label: str) -> str | None:
    """Take the slice profile out of a strategy-single product label (`…-MIG-1g.5gb`, `…-MIG-1g.5gb-SHARED`)."""
    found = _SLICE_LABEL.search(label)
    return None if found is None or found[1].upper() == "INVALID" else found[1].replace("+", ".")


def sharing_of(
    labels: Mapping[str, str], strategy: str | None, profile: str | None, offered: Amounts, knowledge: Knowledge
) -> Sharing:
    """Say what one unit of the whole-GPU resource is.

    With `renameByDefault` the shared resource has a name of its own, and the plain one, where offered, is whole.
    """
    label = labels.get(PRODUCT, "")
    renamed = any(name.endswith(".shared") for name, _ in offered) and not label.endswith("-SHARED")
    if not renamed and strategy == "mps":
        return Sharing.MPS
    if not renamed and (strategy == "time-slicing" or label.endswith("-SHARED")):
        return Sharing.TimeSlicing
    if profile or mig_without_strategy(labels, offered):
        return Sharing.MIG
    return Sharing.Exclusive if _told(labels, strategy, knowledge) else Sharing.Unknown


def mig_without_strategy(labels: Mapping[str, str], offered: Amounts) -> bool:
    """Tell whether whole GPUs are offered of which every one has MIG enabled.

    GFD counts replicas of GPUs without MIG only, so that 0 says that there are none (NVIDIA/k8s-device-plugin
    internal/lm/resource.go); CUDA then sees one slice of such a GPU at most (MIG User Guide, device enumeration).
    """
    return labels.get(REPLICAS_LABEL) == "0" and any(name == WHOLE and units > 0 for name, units in offered)


def _told(labels: Mapping[str, str], strategy: str | None, knowledge: Knowledge) -> bool:
    """Tell whether somebody labelled the node who would have said that its GPUs are shared."""
    by_gfd = any(labels.get(key) for key in (PRODUCT, SHARING, REPLICAS_LABEL))
    return bool(by_gfd or strategy or knowledge.clouds.tells_sharing(labels))


def shared_slices(labels: Mapping[str, str], offered: Amounts) -> Iterator[str]:
    """List the profiles whose plain resource is a share: time-slicing on MIG without another name for it."""
    for resource, _ in offered:
        profile = profile_of(resource)
        strategy = labels.get(f"{RESOURCE_PREFIX}{profile}.sharing-strategy")
        if profile and strategy in ("time-slicing", "mps") and f"{resource}.shared" not in dict(offered):
            yield profile


def shares(found: NodeClass, labels: Mapping[str, str], resources: Amounts) -> Iterator[tuple[str, int]]:
    """Say for each resource whose units are shares as how many of them one GPU, or one slice, is given out."""
    for resource, units in resources:
        unit = found.unit(resource)
        if unit in REPLICAS:
            profile = profile_of(resource)
            said = whole(labels.get(f"{RESOURCE_PREFIX}{profile}.replicas")) if profile else found.replicas
            if said and said > 1:
                yield resource, said
        elif unit is Sharing.HAMi:
            gpus = found.registered or found.labelled
            if gpus and units > gpus:
                yield resource, -(-units // gpus)


def slice_memory(labels: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """List the memory of MIG slices that labels tell, in MiB, by profile."""
    for key, text in labels.items():
        if key.startswith(RESOURCE_PREFIX) and key.endswith(".memory") and (mib := whole(text)):
            yield key.removeprefix(RESOURCE_PREFIX).removesuffix(".memory"), mib


def budgets(found: NodeClass, label: str, knowledge: Knowledge) -> Iterator[tuple[str, int]]:
    """Say how much memory the shared GPUs (slices) of each resource have together.

    See docs/reference/sharing-and-memory.md#memory-budgets.

    HAMi keeps its own count of memory, by its own resources.
    """
    for resource, amount in found.offered:
        if found.unit(resource) not in REPLICAS:
            continue
        memory = found.memory_mib
        if profile := profile_of(resource):
            size = knowledge.mig.size(label, profile)
            memory = found.slice_mib(profile) or (size.memory_mib if size else None)
        if memory is not None:
            yield resource, memory * (amount // found.sharers(resource))


@lru_cache(maxsize=1024)
def registered_gpus(text: str) -> int:
    """Count the GPUs in the value of `hami.io/node-nvidia-register`; COUNT_UNKNOWN where it cannot be read.

    A JSON list of objects; up to HAMi v2.5 a text with a colon behind each GPU (Project-HAMi/HAMi
    pkg/device/devices.go).
    """
    if len(text) > LONGEST_REGISTRATION:
        return COUNT_UNKNOWN
    if not text.lstrip().startswith("["):
        return sum("," in part for part in text.split(":"))
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return COUNT_UNKNOWN
    return len(found) if isinstance(found, list) else COUNT_UNKNOWN
