# SPDX-License-Identifier: Apache-2.0
"""Node labels read into facts: those of GPU Feature Discovery, MIG Manager, the GPU Operator, and clouds."""

import re
from collections.abc import Mapping

from app.errors import VersionError
from app.knowledge.products import Product, normal_form
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
COMPUTE = ("nvidia.com/gpu.compute", ("major", "minor"))


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
