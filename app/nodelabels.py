# SPDX-License-Identifier: Apache-2.0
"""Node labels read into facts: those of GPU Feature Discovery, MIG Manager, the GPU Operator, and clouds."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from app.errors import VersionError
from app.knowledge.mig import RESOURCE_PREFIX, profile_of
from app.knowledge.products import Product, normal_form
from app.knowledge.require import CONSUMER_BRANDS
from app.knowledge.tables import Knowledge
from app.nodeclass import NodeClass, Sharing
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
PLUGIN = "nvidia.com/gpu.deploy.device-plugin"
COMPUTE = ("nvidia.com/gpu.compute", ("major", "minor"))
SINGLE_KEYS = (PRODUCT, MEMORY, COUNT, REPLICAS, SHARING, MIG_STRATEGY, MIG_STATE, UPGRADE_STATE, PLUGIN)
VERSIONS = (DRIVER, OLD_DRIVER, RUNTIME, OLD_RUNTIME, COMPUTE)
CLASSES_KEPT = 4096
"""Makes of nodes remembered; fleets have dozens, and one costs some 4 kB."""
LARGEST_KEPT = 1 << 13
"""Characters of labels and resources of a make that is remembered, 32 MB for all of them at most: nodes that the
scheduler sends may have passed nobody's checks (a guess; those of a real node that tell are some 700)."""


PAUSED_FOR_MIG, PAUSED_FOR_DRIVER = "paused-for-mig-change", "paused-for-driver-upgrade"
"""What MIG Manager and the driver manager write over PLUGIN while they work (facts: gfd_labels deploy labels)."""
MIG_STATE_AT_WORK, UPGRADE_STATE_AT_WORK = "pending", "pod-restart-required"
"""The states that a paused device plugin stands for where their own labels lag."""
Amounts = tuple[tuple[str, int], ...]
"""(GPU resource, units), sorted."""


def read_class(
    labels: Mapping[str, str], offered: Amounts, knowledge: Knowledge, capacity: Amounts | None = None
) -> NodeClass:
    """Read what the labels say, and complete it from the fact tables where they leave gaps.

    `capacity`: None where the node does not tell it. Nodes of one make are read once: the labels that tell are few.
    """
    exact, prefix = _telling(knowledge)
    told = tuple((key, labels[key]) for key in labels if key in exact or key.startswith(prefix))
    names = sum(len(name) for name, _ in (*offered, *(capacity or ())))
    small = names + sum(len(key) + len(value) for key, value in told) <= LARGEST_KEPT
    return (_read_class if small else _read_class.__wrapped__)(told, offered, knowledge, capacity)


@lru_cache(maxsize=4)
def _telling(knowledge: Knowledge) -> tuple[frozenset[str], str]:
    """Give the keys of the labels that tell of a node's class, and the beginning of others that do."""
    of_driver = (f"{key}.{part}" for key, parts in VERSIONS for part in ("full", *parts))
    return frozenset((*SINGLE_KEYS, *of_driver, *knowledge.clouds.telling())), RESOURCE_PREFIX


@lru_cache(maxsize=CLASSES_KEPT)
def _read_class(
    told: tuple[tuple[str, str], ...], offered: Amounts, knowledge: Knowledge, capacity: Amounts | None
) -> NodeClass:
    labels = dict(told)
    label = labels.get(PRODUCT) or knowledge.clouds.product(labels) or ""
    candidates = () if label else knowledge.clouds.candidates(labels)
    row = knowledge.products.find(label) if label else None
    driver = _version(labels, DRIVER) or _version(labels, OLD_DRIVER)
    profile = _single_profile(label) or (None if PRODUCT in labels else knowledge.clouds.profile(labels))
    memory = _number(labels, MEMORY) or _memory_of(row, label, profile, knowledge)
    strategy = labels.get(SHARING) or knowledge.clouds.sharing_strategy(labels)
    replicas = max(1, _number(labels, REPLICAS) or _whole(knowledge.clouds.replicas(labels)) or 1)
    mig_state, upgrade_state = labels.get(MIG_STATE), labels.get(UPGRADE_STATE)
    found = NodeClass(
        product=normal_form(label) if label else None,
        may_be=frozenset(map(normal_form, candidates)),
        driver=driver,
        cuda=_version(labels, RUNTIME) or _version(labels, OLD_RUNTIME) or _cuda_of(driver, knowledge),
        compute_capability=_version(labels, COMPUTE)
        or (row.compute_capability if row else _common_capability(candidates, knowledge)),
        memory_mib=memory or _whole(knowledge.clouds.memory(labels)),
        renamed=Sharing.MPS if strategy == "mps" else Sharing.TimeSlicing,
        sharing=_sharing(strategy, label, profile, offered),
        shared_slices=frozenset(_shared_slices(labels, offered)),
        replicas=replicas,
        mig_strategy=labels.get(MIG_STRATEGY) or None,
        mig_profile=profile,
        mig_invalid=label.upper().endswith("-MIG-INVALID"),
        mig_state=MIG_STATE_AT_WORK if labels.get(PLUGIN) == PAUSED_FOR_MIG else mig_state or None,
        upgrade_state=UPGRADE_STATE_AT_WORK if labels.get(PLUGIN) == PAUSED_FOR_DRIVER else upgrade_state or None,
        nvlink=row.nvlink if row else None,
        form_factor=row.form_factor if row else None,
        datacenter=row.datacenter if row else _datacenter(label, candidates, knowledge),
        labelled=_number(labels, COUNT) or 0,
        offered=offered,
        lacking=_lacking(offered, capacity or ()),
    )
    return replace(
        found,
        stale=_stale(found, labels, capacity),
        withdrawn=sum(-(-amount // _sharers(found, name, labels)) for name, amount in found.lacking),
        budgets=tuple(_budgets(found, label, labels, knowledge)),
    )


def _sharers(found: NodeClass, resource: str, labels: Mapping[str, str]) -> int:
    """Say as how many units one GPU, or one slice, is given out."""
    if found.unit(resource) not in (Sharing.TimeSlicing, Sharing.MPS):
        return 1
    if profile := profile_of(resource):
        return max(1, _number(labels, f"{RESOURCE_PREFIX}{profile}.replicas") or 1)
    return found.replicas


def _lacking(offered: Amounts, capacity: Amounts) -> Amounts:
    """Say what allocatable lacks of capacity: the kubelet counts unhealthy devices in capacity alone."""
    healthy = dict(offered)
    return tuple((name, amount - healthy.get(name, 0)) for name, amount in capacity if amount > healthy.get(name, 0))


def _stale(found: NodeClass, labels: Mapping[str, str], capacity: Amounts | None) -> bool:
    """Tell whether labels contradict what the node has: another count of GPUs or slices, or none of what they promise.

    Under strategy mixed the slices have counts of their own, and `gpu.count` speaks of some of the GPUs only. Where
    capacity has no GPU resource at all there is nothing to compare (a ghost, or DRA).
    """
    has = dict(capacity or ())
    if not any(has.values()) or found.mig_invalid:
        return False
    if found.mig_strategy == "mixed":
        promised = _slices_promised(labels)
        return any(has.get(name, 0) + has.get(f"{name}.shared", 0) != units for name, units in promised)
    slices = sum(amount for name, amount in has.items() if profile_of(name))
    return found.labelled > 0 and (slices > 0 or sum(has.values()) != found.labelled * found.replicas)


def _slices_promised(labels: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """List the slice resources that labels promise, with their units."""
    for key in labels:
        if key.startswith(RESOURCE_PREFIX) and key.endswith(".count"):
            resource = key.removesuffix(".count")
            replicas = max(1, _number(labels, f"{resource}.replicas") or 1)
            yield resource, (_number(labels, key) or 0) * replicas


def _shared_slices(labels: Mapping[str, str], offered: Amounts) -> Iterator[str]:
    """List the profiles whose plain resource is a share: time-slicing on MIG without another name for it."""
    for resource, _ in offered:
        profile = profile_of(resource)
        strategy = labels.get(f"{RESOURCE_PREFIX}{profile}.sharing-strategy")
        if profile and strategy in ("time-slicing", "mps") and f"{resource}.shared" not in dict(offered):
            yield profile


def _budgets(
    found: NodeClass, label: str, labels: Mapping[str, str], knowledge: Knowledge
) -> Iterator[tuple[str, int]]:
    """Say how much memory the shared GPUs (slices) of each resource have together (INTERFACES §8)."""
    for resource, amount in found.offered:
        if found.unit(resource) not in (Sharing.TimeSlicing, Sharing.MPS):
            continue
        memory = found.memory_mib
        if profile := profile_of(resource):
            memory = _number(labels, f"{RESOURCE_PREFIX}{profile}.memory")
            if memory is None and (size := knowledge.mig.size(label, profile)) is not None:
                memory = size.memory_mib
        if memory is not None:
            yield resource, memory * (amount // _sharers(found, resource, labels))


def _common_capability(candidates: tuple[str, ...], knowledge: Knowledge) -> Version | None:
    """Give the compute capability that all products which a node may have share."""
    rows = [knowledge.products.find(each) for each in candidates]
    found = {row.compute_capability if row else None for row in rows}
    return found.pop() if len(found) == 1 else None


def _datacenter(label: str, candidates: tuple[str, ...], knowledge: Knowledge) -> bool | None:
    """Tell of an unlisted product whether it is a data-centre GPU: no by its name, else what all candidates are."""
    if any(brand in label.lower() for brand in CONSUMER_BRANDS):
        return False
    rows = [knowledge.products.find(each) for each in candidates]
    found = {row.datacenter if row else None for row in rows}
    return found.pop() if len(found) == 1 else None


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
