# SPDX-License-Identifier: Apache-2.0
"""Node labels read into facts: those of GPU Feature Discovery, MIG Manager, the GPU Operator, and clouds."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from app.knowledge.mig_profiles import RESOURCE_PREFIX
from app.knowledge.nvidia_require import CONSUMER_BRANDS
from app.knowledge.products import Product, normal_form
from app.knowledge.tables import Knowledge
from app.nodes.gpu_counts import lacking, several_models, stale
from app.nodes.model import NodeClass, Sharing
from app.nodes.sharing import (
    NOT_REGISTERED,
    Amounts,
    budgets,
    shared_slices,
    shares,
    sharing_of,
    single_profile,
    slice_memory,
    whole,
)
from app.nodes.sharing import PRODUCT as PRODUCT
from app.nodes.sharing import REPLICAS_LABEL as REPLICAS
from app.nodes.sharing import SHARING as SHARING
from app.values.errors import VersionError
from app.values.versions import Version, parse_version

Fact = TypeVar("Fact")

# Label keys of GPU Feature Discovery, MIG Manager and the GPU Operator; the second of a pair is the deprecated
# name that v0.20.0 still writes (NVIDIA/k8s-device-plugin internal/lm/nvml.go, CHANGELOG.md).
MEMORY = "nvidia.com/gpu.memory"
COUNT = "nvidia.com/gpu.count"
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
"""What MIG Manager and the driver manager write over PLUGIN while they work (NVIDIA/gpu-operator
controllers/state_manager.go)."""
MIG_STATE_AT_WORK, UPGRADE_STATE_AT_WORK = "pending", "pod-restart-required"
"""The states that a paused device plugin stands for where their own labels lag."""


def read_class(
    labels: Mapping[str, str],
    offered: Amounts,
    knowledge: Knowledge,
    capacity: Amounts | None = None,
    registered: int = NOT_REGISTERED,
) -> NodeClass:
    """Read what the labels say, and complete it from the fact tables where they leave gaps.

    `offered`: (GPU resource, units), sorted. `capacity`: the same; None where the node does not tell it. `registered`:
    the GPUs that HAMi shares out. Nodes of one make are read once: the labels that tell are few.
    """
    exact, prefix = _telling(knowledge)
    told = tuple((key, labels[key]) for key in labels if key in exact or key.startswith(prefix))
    names = sum(len(name) for name, _ in (*offered, *(capacity or ())))
    small = names + sum(len(key) + len(value) for key, value in told) <= LARGEST_KEPT
    return (_read_class if small else _read_class.__wrapped__)(told, offered, knowledge, capacity, registered)


@lru_cache(maxsize=4)
def _telling(knowledge: Knowledge) -> tuple[frozenset[str], str]:
    """Give the keys of the labels that tell of a node's class, and the beginning of others that do."""
    of_driver = (f"{key}.{part}" for key, parts in VERSIONS for part in ("full", *parts))
    return frozenset((*SINGLE_KEYS, *of_driver, *knowledge.clouds.telling())), RESOURCE_PREFIX


@lru_cache(maxsize=CLASSES_KEPT)
def _read_class(
    told: tuple[tuple[str, str], ...],
    offered: Amounts,
    knowledge: Knowledge,
    capacity: Amounts | None,
    registered: int,
) -> NodeClass:
    labels = dict(told)
    found = _completed(_labelled(labels, offered, knowledge, registered), labels, knowledge)
    resources = tuple(sorted({**dict(offered), **dict(capacity or ())}.items()))
    if shared := tuple(shares(found, labels, resources)):
        found = replace(found, shares=shared)
    lost = lacking(offered, capacity or ())
    found = replace(
        found,
        stale=stale(found, labels, capacity),
        lacking=lost,
        withdrawn=sum(found.gpus(name, amount) for name, amount in lost),
        budgets=tuple(budgets(found, labels.get(PRODUCT, found.product or ""), knowledge)),
    )
    return _of_several_models(found) if several_models(found, capacity) else found


def _labelled(labels: Mapping[str, str], offered: Amounts, knowledge: Knowledge, registered: int) -> NodeClass:
    """Read what labels say themselves."""
    label = labels.get(PRODUCT, "")
    driver = _version(labels, DRIVER) or _version(labels, OLD_DRIVER)
    profile = single_profile(label) or (None if PRODUCT in labels else knowledge.clouds.profile(labels))
    strategy = labels.get(SHARING) or knowledge.clouds.sharing_strategy(labels)
    mig_state, upgrade_state = labels.get(MIG_STATE), labels.get(UPGRADE_STATE)
    shared = registered != NOT_REGISTERED
    return NodeClass(
        driver=driver,
        cuda=_version(labels, RUNTIME) or _version(labels, OLD_RUNTIME) or _cuda_of(driver, knowledge),
        compute_capability=_version(labels, COMPUTE),
        memory_mib=whole(labels.get(MEMORY)) or None,
        slice_memory=tuple(sorted(slice_memory(labels))),
        renamed=Sharing.MPS if strategy == "mps" else Sharing.TimeSlicing,
        sharing=Sharing.HAMi if shared else sharing_of(labels, strategy, profile, offered, knowledge),
        shared_slices=frozenset(shared_slices(labels, offered)),
        replicas=max(1, whole(labels.get(REPLICAS)) or whole(knowledge.clouds.replicas(labels)) or 1),
        registered=max(0, registered),
        mig_strategy=labels.get(MIG_STRATEGY) or None,
        mig_profile=profile,
        mig_invalid=label.upper().endswith("-MIG-INVALID"),
        mig_state=MIG_STATE_AT_WORK if labels.get(PLUGIN) == PAUSED_FOR_MIG else mig_state or None,
        upgrade_state=UPGRADE_STATE_AT_WORK if labels.get(PLUGIN) == PAUSED_FOR_DRIVER else upgrade_state or None,
        labelled=whole(labels.get(COUNT)) or 0,
        offered=offered,
    )


def _completed(found: NodeClass, labels: Mapping[str, str], knowledge: Knowledge) -> NodeClass:
    """Fill the gaps that labels leave with what is known of the product, or what all products that it may be share."""
    label = labels.get(PRODUCT)
    names = (label,) if label else knowledge.clouds.candidates(labels)
    rows = [knowledge.products.find(name) for name in names]
    capability, nvlink = _shared(rows, lambda row: row.compute_capability), _shared(rows, lambda row: row.nvlink)
    memory, most = _memory(found, rows, labels, knowledge)
    sliced = found.sharing is Sharing.MIG and not found.mig_profile
    return replace(
        found,
        product=normal_form(names[0]) if len(names) == 1 else None,
        may_be=frozenset(map(normal_form, names)) if len(names) > 1 else frozenset(),
        compute_capability=found.compute_capability or capability,
        memory_mib=None if sliced else memory,
        memory_at_most=memory or most if sliced else most,
        nvlink=False if sliced else nvlink,
        form_factor=_shared(rows, lambda row: row.form_factor),
        datacenter=_datacenter(label or "", rows),
    )


def _shared(rows: list[Product | None], of: Callable[[Product], Fact]) -> Fact | None:
    """Give the fact that all rows have in common; None where they differ, or one is unknown."""
    found = {of(row) if row else None for row in rows}
    return found.pop() if len(found) == 1 else None


def _datacenter(label: str, rows: list[Product | None]) -> bool | None:
    """Tell whether it is a data-centre GPU: no by its name, else what all products that it may be are."""
    if any(brand in label.lower() for brand in CONSUMER_BRANDS):
        return False
    return _shared(rows, lambda row: row.datacenter)


def _memory(
    found: NodeClass, rows: list[Product | None], labels: Mapping[str, str], knowledge: Knowledge
) -> tuple[int | None, int | None]:
    """Give the memory of one unit in MiB, and what it cannot exceed where it is unknown.

    GFD's label first; a slice's size next; else the least that the product tables, a cloud's label and the machine type
    say: the tables have what a whole GPU reports, clouds its nominal size or that of a part of it.
    """
    if found.memory_mib is not None:
        return found.memory_mib, None
    if found.mig_profile:
        size = knowledge.mig.size(rows[0].label if len(rows) == 1 and rows[0] else None, found.mig_profile)
        return (size.memory_mib if size else None), None
    gpus = sum(units for _, units in found.offered)
    said = knowledge.clouds.memory_mib(labels, gpus)
    sizes = [row.memory_mib if row else None for row in rows]
    known = [size for size in sizes if size is not None]
    if known and len(known) == len(sizes) and len(set(known)) == 1:
        return min(known[0], said or known[0]), None
    most = max(known) if known and len(known) == len(sizes) else None
    if said is not None and (most is None or said <= most):
        return said, None
    return None, most


def _of_several_models(found: NodeClass) -> NodeClass:
    """Forget what the labels say of one of the models, since a pod may get a GPU of another.

    A GeForce or TITAN label counts: the pod may get that one, and consumer GPUs stand beside their like.
    """
    return replace(
        found, several_models=True, product=None, may_be=frozenset(), compute_capability=None, memory_mib=None,
        memory_at_most=None, nvlink=None, form_factor=None, budgets=(),
        datacenter=False if found.datacenter is False else None,
    )  # fmt: skip


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
